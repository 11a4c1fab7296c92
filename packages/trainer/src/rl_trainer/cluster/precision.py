"""What `auto` precision means on a cluster: what every one of its nodes computes natively."""

from __future__ import annotations

from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rl_rollout.precision import common_dtype, native_dtype

from ..config.running import TrainerConfig
from ..errors import TrainingError

ANSWER_TIMEOUT_S = 120.0


def nodes_dtype(config: TrainerConfig) -> str:
    """The precision that all nodes of the connected cluster share: bfloat16 if each has it, else float32.

    On CUDA the nodes with GPUs count, on a CPU all.

    Raises:
        TrainingError: a node did not answer.
    """
    cuda = config.device == "cuda"
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    chosen = [node for node in nodes if node["Alive"] and (not cuda or node["Resources"].get("GPU"))]
    ask: Any = ray.remote(native_dtype)
    answers = [
        ask.options(
            num_cpus=0,
            num_gpus=0.01 if cuda else 0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
        ).remote(config.device)
        for node in chosen
    ]
    try:
        return common_dtype(ray.get(answers, timeout=ANSWER_TIMEOUT_S))
    except ray.exceptions.GetTimeoutError as error:
        raise TrainingError(
            f"a node did not say within {ANSWER_TIMEOUT_S:.0f} s what it computes in: set the keys "
            "compute_dtype and rollout.dtype, which are auto, to float32 or bfloat16"
        ) from error
