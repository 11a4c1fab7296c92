"""The environment vLLM needs, which must be there before torch or vllm is imported.

This module sets nothing: whoever starts the process does (Ray: `runtime_env`; a script: its first lines).
"""

from __future__ import annotations

import os
import sys

from rl_rollout.errors import EngineEnvironmentError


def engine_env(device: str, single_node: bool = True, offline: bool = False) -> dict[str, str]:
    """Variables for a process that will hold an engine on `device` ("cpu" or "cuda").

    `single_node` lets gloo use the loopback device (never right on several nodes); `offline` forbids
    Hugging Face hub look-ups.
    """
    env = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine lives in the trainer's process
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    if offline:
        env["HF_HUB_OFFLINE"] = "1"
    if _is_cpu(device):
        env |= {
            "TORCHDYNAMO_DISABLE": "1",  # else the first log-probs compile one function for half a minute
            "OMP_NUM_THREADS": "1",
            "OMP_WAIT_POLICY": "PASSIVE",  # spinning threads of several processes starve each other
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        }
        if single_node and sys.platform == "linux":
            env["GLOO_SOCKET_IFNAME"] = "lo"
    return env


_CHECKED_CPU = ("VLLM_ENABLE_V1_MULTIPROCESSING", "TORCHDYNAMO_DISABLE", "VLLM_CPU_OMP_THREADS_BIND")


def check_engine_env(device: str) -> None:
    """Raise EngineEnvironmentError, naming the variables, where this process can't hold an engine."""
    wanted = engine_env(device)
    names = _CHECKED_CPU if _is_cpu(device) else _CHECKED_CPU[:1]
    wrong = {name: wanted[name] for name in names if os.environ.get(name) != wanted[name]}
    if wrong:
        raise EngineEnvironmentError(
            f"set {', '.join(f'{k}={v}' for k, v in wrong.items())} before torch and vllm are imported "
            f"(rl_rollout.engine_env({device!r}) returns them; with Ray, pass them as runtime_env)"
        )


def _is_cpu(device: str) -> bool:
    return device.partition(":")[0] == "cpu"
