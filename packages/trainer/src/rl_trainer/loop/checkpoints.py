"""Saving and resuming a run: its state, its models, and the batches under way."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rl_controller import WorkerGroup
from rl_protocol import RLProtocolError

from ..config.loading import to_yaml
from ..errors import CheckpointError
from ..state.checkpoint import CheckpointStore, read_state
from ..state.run_folder import check_same_run
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
        with self.store.writing(
            state.global_step, parts, keep_also=state.best_of(self.store.steps())
        ) as folder:
            for name, group in self.models.items():
                group.save_checkpoint(str(folder.resolve() / name), state.global_step)
            self.rollouts.save(folder / IN_FLIGHT)
            (folder / "config.yaml").write_text(to_yaml(self.recorder.config))

    def resume(self) -> None:
        """Go on from the newest sound step of the run's folder, or from the one that `resume_mode` names.

        Raises:
            CheckpointError: there is one and `trainer.resume_mode=disable`; or none of those there is sound.
        """
        mode = self.recorder.config.trainer.resume_mode
        folders = self.store.newest_first() if mode in ("auto", "disable") else [Path(mode)]
        if folders and mode == "disable":
            raise CheckpointError(
                f"{folders[0]} holds a checkpoint and trainer.resume_mode=disable; "
                "choose another trainer.default_local_dir or remove the folder"
            )
        problems = []
        for folder in folders:
            try:
                self._load(folder)
                return
            except CheckpointError as error:
                problems.append(str(error))
                self.recorder.stage(f"{folder} can't be used: {error}")
        if problems:
            raise CheckpointError(
                f"no checkpoint of the run can be used: {problems[0]}; restore it, or name another step with "
                "trainer.resume_mode=<folder>, or start a new run in another trainer.default_local_dir"
            )

    def _load(self, folder: Path) -> None:
        """Go on from one step, after all of it was found sound: nothing is changed by one that is not."""
        state = read_state(folder)
        config = self.recorder.config
        changes = check_same_run(
            folder, config, allowed=config.trainer.resume_mode not in ("auto", "disable")
        )
        for name, group in self.models.items():
            told = next(filter(None, group.checkpoint_problem(str(folder.resolve() / name))), "")
            if told:
                raise CheckpointError(told)
        try:
            self.rollouts.load(folder / IN_FLIGHT, state[IN_FLIGHT])
        except (RLProtocolError, OSError) as error:
            raise CheckpointError(f"{folder / IN_FLIGHT} can't be read: {error}") from error
        self.rollouts.state.load_state_dict(state)
        for line in (f"going on from {folder}", *changes):
            self.recorder.stage(line)
        for name, group in self.models.items():
            group.load_checkpoint(str(folder.resolve() / name))
