"""Jobs beside training that need the same workers: score a model on a dataset, export a checkpoint."""

from __future__ import annotations

from pathlib import Path

from .errors import ConfigError
from .ray_trainer import RayPPOTrainer
from .task_runner import TaskRunner
from .training_run import FitResult


class EvaluationRunner(TaskRunner):
    """Scores the run's newest checkpoint, or the model itself where there is none, on `data.val_files`."""

    def work(self, trainer: RayPPOTrainer) -> FitResult:
        """Load and validate once."""
        if trainer.val_dataset is None:
            raise ConfigError("data.val_files is empty: name the files to evaluate on")
        trainer.load_checkpoint()
        trainer.tracking = None
        trainer.validate()
        return trainer.result()


class ExportRunner(TaskRunner):
    """Writes the run's newest checkpoint as a Hugging Face model to `<run>/export`."""

    def work(self, trainer: RayPPOTrainer) -> FitResult:
        """Load and export."""
        if trainer.checkpoints.latest() is None:
            raise ConfigError(f"{trainer.checkpoints.folder} holds no checkpoint: name the folder of a run")
        trainer.load_checkpoint()
        return trainer.result(trainer.export(Path(trainer.config.trainer.default_local_dir) / "export"))
