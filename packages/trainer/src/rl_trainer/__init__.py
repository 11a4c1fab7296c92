"""PPO, GRPO and their relatives over Ray worker groups, end to end.

Names are loaded on first use: reward processes import this package too, and need none of it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import PPOConfig
    from .config_loading import load_config, omega_conf_to_dataclass
    from .dataset import PromptDataset, collate
    from .errors import (
        CheckpointError,
        ConfigError,
        DataError,
        RewardError,
        RLTrainerError,
        TrainingError,
    )
    from .main_ppo import run_ppo
    from .prompt_stream import PromptStream
    from .ray_trainer import RayPPOTrainer
    from .reward import RewardManager, RewardResult
    from .roles import ResourcePoolManager, Role
    from .step_batch import StepBatch
    from .task_runner import TaskRunner
    from .training_run import FitResult

__version__ = "0.1.0"

_HOMES = {
    "CheckpointError": "errors",
    "ConfigError": "errors",
    "DataError": "errors",
    "FitResult": "training_run",
    "PPOConfig": "config",
    "PromptDataset": "dataset",
    "PromptStream": "prompt_stream",
    "RLTrainerError": "errors",
    "RayPPOTrainer": "ray_trainer",
    "ResourcePoolManager": "roles",
    "RewardError": "errors",
    "RewardManager": "reward",
    "RewardResult": "reward",
    "Role": "roles",
    "StepBatch": "step_batch",
    "TaskRunner": "task_runner",
    "TrainingError": "errors",
    "collate": "dataset",
    "load_config": "config_loading",
    "omega_conf_to_dataclass": "config_loading",
    "run_ppo": "main_ppo",
}

__all__ = [
    "CheckpointError",
    "ConfigError",
    "DataError",
    "FitResult",
    "PPOConfig",
    "PromptDataset",
    "PromptStream",
    "RLTrainerError",
    "RayPPOTrainer",
    "ResourcePoolManager",
    "RewardError",
    "RewardManager",
    "RewardResult",
    "Role",
    "StepBatch",
    "TaskRunner",
    "TrainingError",
    "collate",
    "load_config",
    "omega_conf_to_dataclass",
    "run_ppo",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
