"""FSDP2 workers: actor, rollout, reference, critic, reward model."""

from rl_workers.compute.logprob import LogitForm, linear_log_probs
from rl_workers.compute.micro_batches import balanced_order, check_longest_row, plan_micro_batches
from rl_workers.compute.packing import PackedBatch, pack_rows, pad_rows, tabulate_rows
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
from rl_workers.engine.base import TrainEngine
from rl_workers.engine.reduction import reduce_metrics
from rl_workers.errors import (
    BatchError,
    CheckpointError,
    CollectiveError,
    ModelSupportError,
    RLWorkersError,
    TokenBudgetError,
    WorkerConfigError,
    WorkerStateError,
)
from rl_workers.fsdp.checkpoint import Checkpointer
from rl_workers.fsdp.engine import FSDPEngine
from rl_workers.fsdp.evaluation import evaluate_rows
from rl_workers.model.building import build_on_meta, nothing_new
from rl_workers.model.heads import PolicyModel
from rl_workers.profiler import DistProfiler, ProfilerConfig
from rl_workers.roles.actor import ActorRolloutRefWorker
from rl_workers.roles.base import EngineWorker, TrainedWorker
from rl_workers.roles.critic import CriticWorker
from rl_workers.roles.reward_model import RewardModelWorker
from rl_workers.roles.rows import cut_micro_batches

__version__ = "0.1.0"

__all__ = [
    "ActorConfig",
    "ActorRolloutRefConfig",
    "ActorRolloutRefWorker",
    "BatchError",
    "CheckpointError",
    "Checkpointer",
    "CollectiveError",
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
    "PolicyModel",
    "ProfilerConfig",
    "RLWorkersError",
    "RefConfig",
    "RewardModelConfig",
    "RewardModelWorker",
    "TokenBudgetError",
    "TrainEngine",
    "TrainedWorker",
    "WorkerConfigError",
    "WorkerStateError",
    "balanced_order",
    "build_on_meta",
    "check_longest_row",
    "cut_micro_batches",
    "evaluate_rows",
    "linear_log_probs",
    "nothing_new",
    "pack_rows",
    "pad_rows",
    "plan_micro_batches",
    "reduce_metrics",
    "tabulate_rows",
]
