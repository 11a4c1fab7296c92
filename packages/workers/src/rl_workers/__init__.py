"""FSDP2 workers: actor, rollout, reference, critic, reward model."""

from rl_workers.actor import ActorRolloutRefWorker
from rl_workers.checkpoint import Checkpointer
from rl_workers.config import (
    ActorConfig,
    ActorRolloutRefConfig,
    CriticConfig,
    FSDPConfig,
    ModelConfig,
    OptimConfig,
    PolicyLossConfig,
    RefConfig,
    RewardModelConfig,
)
from rl_workers.critic import CriticWorker
from rl_workers.engine import FSDPEngine
from rl_workers.engine_worker import EngineWorker
from rl_workers.errors import (
    BatchError,
    CheckpointError,
    ModelSupportError,
    RLWorkersError,
    TokenBudgetError,
    WorkerConfigError,
    WorkerStateError,
)
from rl_workers.logprob import LogitForm, linear_log_probs
from rl_workers.micro_batches import balanced_order, check_longest_row, plan_micro_batches
from rl_workers.packing import PackedBatch, pack_rows, pad_rows, tabulate_rows
from rl_workers.profiler import DistProfiler, ProfilerConfig
from rl_workers.reward_model import RewardModelWorker

__version__ = "0.1.0"

__all__ = [
    "ActorConfig",
    "ActorRolloutRefConfig",
    "ActorRolloutRefWorker",
    "BatchError",
    "CheckpointError",
    "Checkpointer",
    "CriticConfig",
    "CriticWorker",
    "DistProfiler",
    "EngineWorker",
    "FSDPConfig",
    "FSDPEngine",
    "LogitForm",
    "ModelConfig",
    "ModelSupportError",
    "OptimConfig",
    "PackedBatch",
    "PolicyLossConfig",
    "ProfilerConfig",
    "RLWorkersError",
    "RefConfig",
    "RewardModelConfig",
    "RewardModelWorker",
    "TokenBudgetError",
    "WorkerConfigError",
    "WorkerStateError",
    "balanced_order",
    "check_longest_row",
    "linear_log_probs",
    "pack_rows",
    "pad_rows",
    "plan_micro_batches",
    "tabulate_rows",
]
