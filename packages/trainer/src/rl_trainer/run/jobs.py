"""Jobs beside training that need the same workers: score a model on a dataset, export a checkpoint."""

from __future__ import annotations

from ..cluster.roles import Role
from ..config.tree import PPOConfig
from ..errors import ConfigError
from ..loop.ray_trainer import RayPPOTrainer
from ..state.run_state import FitResult
from .task_runner import TaskRunner


class PolicyRunner(TaskRunner):
    """A job for which the policy is enough."""

    trains = False

    def add_roles(self, config: PPOConfig) -> dict[Role, type]:
        """The roles in force without those that only training needs."""
        unneeded = (Role.Critic, Role.RefPolicy)
        return {role: cls for role, cls in super().add_roles(config).items() if role not in unneeded}


class EvaluationRunner(PolicyRunner):
    """Scores the run's newest checkpoint, or the model itself where there is none, on `data.val_files`.

    What the run has written stays: samples go to `<run>/evaluations`.
    """

    def work(self, trainer: RayPPOTrainer) -> FitResult:
        """Load and validate once."""
        if trainer.val_dataset is None:
            raise ConfigError("data.val_files is empty: name the files to evaluate on")
        trainer.load_checkpoint()
        trainer.sync_weights()
        trainer.validator.folder = "evaluations"
        trainer.validate()
        return trainer.state.result(trainer.metrics)


class ExportRunner(PolicyRunner):
    """Writes the run's newest checkpoint as a Hugging Face model to `<run>/export`."""

    def work(self, trainer: RayPPOTrainer) -> FitResult:
        """Load and export."""
        steps = trainer.checkpoints.store
        if not steps.newest_first():
            raise ConfigError(f"{steps.folder} holds no checkpoint: name the folder of a run")
        trainer.load_checkpoint()
        return trainer.state.result(trainer.metrics, trainer.export())
