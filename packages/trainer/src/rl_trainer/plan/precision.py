"""What a run computes in: `auto` resolved before anything starts, and what an emulated choice costs."""

from __future__ import annotations

import time

import torch

from rl_rollout.precision import AUTO, compute_keys, fill_auto, native_dtype

from ..config.inputs import needs, uses_reference
from ..config.tree import PPOConfig


def choose_precision(config: PPOConfig) -> None:
    """Fill in every `auto` by this machine's device, in place; a cluster that is joined decides later."""
    trainer = config.trainer
    if trainer.backend == "local" or not trainer.ray_address:
        fill_auto(config, native_dtype(trainer.device))


def computes_in(config: PPOConfig) -> str:
    """The precision of the run's parts, by key where they differ."""
    used = _used(config)
    kinds = set(used.values())
    text = ", ".join(kinds if len(kinds) == 1 else (f"{key}={kind}" for key, kind in used.items()))
    return text + (" (what all nodes have; asked once the cluster is joined)" if AUTO in kinds else "")


def emulated(config: PPOConfig) -> list[str]:
    """One line for each precision that was chosen and that this machine's processor only emulates."""
    trainer = config.trainer
    if trainer.device != "cpu" or (trainer.ray_address and trainer.backend != "local"):
        return []
    used = _used(config)
    lines = []
    for kind in sorted(set(used.values()) - {AUTO, "float32", native_dtype("cpu")}):
        keys = ", ".join(key for key, value in used.items() if value == kind)
        cost = emulation_cost(getattr(torch, kind))
        lines.append(
            f"{keys}: this processor emulates {kind}; a product takes {cost:.1f} x as long as in float32"
        )
    return lines


def emulation_cost(dtype: torch.dtype) -> float:
    """Time of a training-shaped matrix product on this CPU in `dtype`, over that in float32."""
    rows, columns = torch.randn(256, 576), torch.randn(576, 1536)

    def seconds(kind: torch.dtype) -> float:
        a, b = rows.to(kind), columns.to(kind)
        times = []
        for _ in range(3):
            start = time.perf_counter()
            torch.mm(a, b)
            times.append(time.perf_counter() - start)
        return min(times)

    return seconds(dtype) / seconds(torch.float32)


def _used(config: PPOConfig) -> dict[str, str]:
    """Precision by key, of the parts that the run has."""
    exists = {
        "critic.": needs(config, "values"),
        "reward.model.": config.reward.model_enable,
        "actor_rollout_ref.ref.": uses_reference(config),
    }
    absent = tuple(prefix for prefix, is_there in exists.items() if not is_there)
    keys = compute_keys(config)
    return {key: getattr(owner, name) for owner, name, key in keys if not key.startswith(absent)}
