"""PPO, GRPO and their relatives over Ray worker groups, end to end.

Names are loaded on first use: reward processes import this package too, and need none of it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .cluster.roles import ResourcePoolManager as ResourcePoolManager
    from .cluster.roles import Role as Role
    from .config.loading import load_config as load_config
    from .config.loading import omega_conf_to_dataclass as omega_conf_to_dataclass
    from .config.tree import PPOConfig as PPOConfig
    from .data.dataset import PromptDataset as PromptDataset
    from .data.dataset import collate as collate
    from .data.prompt_stream import PromptStream as PromptStream
    from .errors import CheckpointError as CheckpointError
    from .errors import ConfigError as ConfigError
    from .errors import DataError as DataError
    from .errors import RewardError as RewardError
    from .errors import RLTrainerError as RLTrainerError
    from .errors import TrainingError as TrainingError
    from .loop.ray_trainer import RayPPOTrainer as RayPPOTrainer
    from .loop.step_batch import StepBatch as StepBatch
    from .reward.manager import RewardManager as RewardManager
    from .reward.manager import RewardResult as RewardResult
    from .run.launch import run_ppo as run_ppo
    from .run.task_runner import TaskRunner as TaskRunner
    from .state.run_state import FitResult as FitResult

__version__ = "0.1.0"

_HOMES = {
    "cluster.roles": ["ResourcePoolManager", "Role"],
    "config.loading": ["load_config", "omega_conf_to_dataclass"],
    "config.tree": ["PPOConfig"],
    "data.dataset": ["PromptDataset", "collate"],
    "data.prompt_stream": ["PromptStream"],
    "errors": [
        "CheckpointError",
        "ConfigError",
        "DataError",
        "RLTrainerError",
        "RewardError",
        "TrainingError",
    ],
    "loop.ray_trainer": ["RayPPOTrainer"],
    "loop.step_batch": ["StepBatch"],
    "reward.manager": ["RewardManager", "RewardResult"],
    "run.launch": ["run_ppo"],
    "run.task_runner": ["TaskRunner"],
    "state.run_state": ["FitResult"],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOME_OF[name]}", __name__), name)
