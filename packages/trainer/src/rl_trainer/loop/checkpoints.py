"""Saving and resuming a run: its state, its models, and the batches under way."""

from __future__ import annotations

from collections.abc import Mapping

from rl_controller import WorkerGroup

from ..config.loading import to_yaml
from ..errors import CheckpointError
from ..state.checkpoint import CheckpointStore, read_state
from ..view.recorder import Recorder
from .rollouts import Rollouts

IN_FLIGHT = "in_flight"  # a folder of a step, and the key of the batches' versions in its state


class RunCheckpoints:
    """Brings together what a checkpoint is made of, and takes it apart again.

    Args:
        rollouts: holds the batches under way, and the run's state.
        models: groups whose models are trained, by the name of their folder.
        recorder: tells of it; knows the configuration and the run's folder.
    """

    def __init__(self, rollouts: Rollouts, models: Mapping[str, WorkerGroup], recorder: Recorder) -> None:
        self.rollouts, self.models, self.recorder = rollouts, models, recorder
        trainer = recorder.config.trainer
        self.store = CheckpointStore(recorder.run / "checkpoints", trainer.max_ckpt_to_keep)

    def save(self) -> None:
        """Write everything that the next step depends on; complete or absent."""
        state = self.rollouts.state
        parts = state.state_dict() | {IN_FLIGHT: self.rollouts.versions_in_flight}
        with self.store.writing(state.global_step, parts, keep_also=state.best_step) as folder:
            for name, group in self.models.items():
                group.save_checkpoint(str(folder.resolve() / name), state.global_step)
            self.rollouts.save(folder / IN_FLIGHT)
            (folder / "config.yaml").write_text(to_yaml(self.recorder.config))

    def resume(self) -> None:
        """Go on from the newest complete step of the run's folder, if there is one.

        Raises:
            CheckpointError: there is one and `trainer.resume_mode=disable`.
        """
        folder = self.store.latest()
        if folder is None:
            return
        if self.recorder.config.trainer.resume_mode == "disable":
            raise CheckpointError(
                f"{folder} holds a checkpoint and trainer.resume_mode=disable; "
                "choose another trainer.default_local_dir or remove the folder"
            )
        self.recorder.stage(f"going on from {folder}")
        state = read_state(folder)
        self.rollouts.state.load_state_dict(state)
        self.rollouts.load(folder / IN_FLIGHT, state[IN_FLIGHT])
        for name, group in self.models.items():
            group.load_checkpoint(str(folder.resolve() / name))
