"""Sharded checkpoints by torch.distributed.checkpoint: complete or absent, loadable on any number of ranks.

A checkpoint is a folder. It is written beside its place, synced, and renamed, so that under its name it is
whole at any time. A frozen base model under adapters is not in it: it comes from its own folder.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from rl_workers.errors import CheckpointError
from rl_workers.fsdp.dtensors import with_local
from rl_workers.fsdp.integrity import check_manifest, write_manifest
from rl_workers.fsdp.safe_reader import INDEX, SafeReader
from rl_workers.model.heads import HeadedModel

logger = logging.getLogger(__name__)

_STATE = "worker_state.json"
_FORMAT = 2
_WITHOUT_MANIFEST = 1  # the format before
_FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


class Saved(Protocol):
    """What is saved of an engine: all that its checkpointer knows of it."""

    module: HeadedModel
    optimizer: Optimizer | None
    scheduler: LambdaLR | None

    def parameters(self) -> list[DTensor]:
        """The parameters that are trained."""

    def reshard(self) -> None:
        """Make parameters shards."""


class Checkpointer:
    """Saves and loads an engine's weights, optimizer and schedule. Every method is collective."""

    def __init__(self, engine: Saved) -> None:
        self.engine = engine
        self._group: dist.ProcessGroup | None = None
        self._writer: ThreadPoolExecutor | None = None
        self._pending: Future[None] | None = None

    def save(
        self, path: str, global_step: int, *, with_optimizer: bool = True, blocking: bool = True
    ) -> None:
        """Save to the folder ``path``, replacing one that is there.

        With ``blocking=False`` the state is copied and written in the background; the next ``save``,
        ``load`` or :meth:`wait` waits for it. Until it is whole, the folder is what it was.
        """
        self.wait()
        final, partial = Path(path), Path(f"{path}.partial")
        description = json.dumps(self._description(global_step, with_optimizer), indent=1)
        _on_rank_zero(lambda: _begin(partial, description), final, None)
        state = self._state(with_optimizer)
        if blocking:
            _write(state, partial, final, None)
            return
        if self._writer is None:
            # its own group: collectives of the writer and of training would otherwise meet each other
            self._writer = ThreadPoolExecutor(1, "rl-workers-checkpoint")
            self._group = dist.new_group(backend="gloo")
        self._pending = self._writer.submit(_write, _staged(state), partial, final, self._group)

    def wait(self) -> None:
        """Wait for a save in the background.

        Raises:
            CheckpointError: it failed; the checkpoint before it is untouched.
        """
        pending, self._pending = self._pending, None
        if pending is None:
            return
        pending.result()

    def load(self, path: str, *, with_optimizer: bool = True) -> int:
        """Load a checkpoint that any number of ranks saved, and return its global step.

        Raises:
            CheckpointError: there is none, it is not whole, or it lacks what is asked for.
        """
        self.wait()
        folder = recover(Path(path))
        described = self.check(path)
        wants = with_optimizer and self.engine.optimizer is not None
        if wants and not described["optimizer"]:
            raise CheckpointError(
                f"{path} was saved without its optimizer: load it with with_optimizer=False"
            )
        state = self._state(wants)
        try:
            dcp_load(state, storage_reader=SafeReader(folder))
        except (Exception, CheckpointException) as error:
            raise CheckpointError(f"{path} does not fit this model: {error}") from error
        if wants:
            self._restore_optimizer(state["optimizer"], int(described["schedule_step"]))
        return int(described["global_step"])

    def check(self, path: str) -> dict[str, Any]:
        """What a checkpoint says of itself, once all of its files are known to be what was written.

        Raises:
            CheckpointError: there is none, or it is not whole, or a file of it, which is named, was changed.
        """
        folder = recover(Path(path))
        described = self._read_description(folder)
        if described["format"] != _WITHOUT_MANIFEST:
            check_manifest(folder)
        return described

    def _state(self, with_optimizer: bool) -> dict[str, Any]:
        self.engine.reshard()
        trained_only = any(not p.requires_grad for p in self.engine.module.parameters()) and bool(
            self.engine.parameters()
        )
        named = self.engine.module.named_parameters()  # a tied tensor once
        weights = {name: p.detach() for name, p in named if p.requires_grad or not trained_only}
        state: dict[str, Any] = {"model": weights}
        optimizer = self.engine.optimizer
        if with_optimizer and optimizer is not None:
            flat = get_optimizer_state_dict(self.engine.module, optimizer, options=_FLAT)
            # hyperparameters come from the configuration and the schedule, not from the checkpoint
            state["optimizer"] = {k: v for k, v in flat.items() if isinstance(v, Tensor)}
        return state

    def _restore_optimizer(self, tensors: dict[str, Any], schedule_step: int) -> None:
        module, optimizer, scheduler = self.engine.module, self.engine.optimizer, self.engine.scheduler
        assert optimizer is not None and scheduler is not None
        flat = get_optimizer_state_dict(module, optimizer, options=_FLAT)
        set_optimizer_state_dict(module, optimizer, {**flat, **tensors}, options=_FLAT)
        scheduler.last_epoch = schedule_step
        factors = [rule(schedule_step) for rule in scheduler.lr_lambdas]
        rates = [base * factor for base, factor in zip(scheduler.base_lrs, factors, strict=True)]
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        scheduler._last_lr = rates

    def _description(self, global_step: int, with_optimizer: bool) -> dict[str, Any]:
        scheduler = self.engine.scheduler
        return {
            "format": _FORMAT,
            "global_step": global_step,
            "schedule_step": 0 if scheduler is None else scheduler.last_epoch,
            "optimizer": with_optimizer and self.engine.optimizer is not None,
            "ranks": dist.get_world_size(),
            "torch": torch.__version__,
        }

    def _read_description(self, folder: Path) -> dict[str, Any]:
        if not (folder / INDEX).is_file() or not (folder / _STATE).is_file():
            raise CheckpointError(
                f"{folder} holds no complete checkpoint: expected {_STATE} and {INDEX} in it"
            )
        return read_description(folder / _STATE)


def read_description(file: Path) -> dict[str, Any]:
    """What a checkpoint says of itself.

    Raises:
        CheckpointError: the file is damaged, or of another format; names the field.
    """
    try:
        described = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{file} is damaged: {error}") from error
    fields = {"format": int, "global_step": int, "schedule_step": int, "optimizer": bool}
    for name, kind in fields.items():
        value = described.get(name) if isinstance(described, dict) else None
        if type(value) is not kind or (kind is int and value < 0):  # type: ignore[operator]
            raise CheckpointError(f"{file}: {name} is {value!r}, expected {kind.__name__}: it is damaged")
    if described["format"] not in (_FORMAT, _WITHOUT_MANIFEST):
        raise CheckpointError(f"{file} has format {described['format']}, this version reads {_FORMAT}")
    return cast(dict[str, Any], described)


def _write(state: dict[str, Any], partial: Path, final: Path, group: dist.ProcessGroup | None) -> None:
    """Write this rank's shards; when all ranks have, rank 0 gives the folder its name."""
    try:
        dcp_save(state, checkpoint_id=partial, process_group=group)
    except CheckpointException as error:
        raise CheckpointError(
            f"{final} was not written: {error}; what was there before is untouched"
        ) from error
    write_manifest(partial, group)
    _on_rank_zero(lambda: commit(partial, final), final, group)


def _begin(partial: Path, description: str) -> None:
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    (partial / _STATE).write_text(description)


def _on_rank_zero(act: Callable[[], None], final: Path, group: dist.ProcessGroup | None) -> None:
    """Let rank 0 change the disk; where it can't, every rank says so instead of waiting for it."""
    failure: list[str] = [""]
    if dist.get_rank() == 0:
        try:
            act()
        except OSError as error:
            failure = [str(error)]
    dist.broadcast_object_list(failure, src=0, group=group)
    if failure[0]:
        raise CheckpointError(f"{final} was not written: {failure[0]}; what was there before is untouched")


def _staged(value: Any) -> Any:
    """A copy in CPU memory, which training cannot change."""
    if isinstance(value, dict):
        return {key: _staged(entry) for key, entry in value.items()}
    if isinstance(value, DTensor):
        return with_local(value, value.to_local().to("cpu", copy=True))
    return value.to("cpu", copy=True) if isinstance(value, Tensor) else value


def commit(partial: Path, final: Path) -> None:
    """Sync ``partial`` to disk and give it its name; what had the name is set aside first, then removed."""
    for file in partial.iterdir():
        _sync(file)
    _sync(partial)
    aside = Path(f"{final}.old")
    shutil.rmtree(aside, ignore_errors=True)
    if final.exists():
        final.rename(aside)
    partial.rename(final)
    _sync(final.parent)
    shutil.rmtree(aside, ignore_errors=True)


def recover(final: Path) -> Path:
    """The whole checkpoint under a name: itself, or what was set aside when a rename was interrupted."""
    aside = Path(f"{final}.old")
    return aside if aside.exists() and not final.exists() else final


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
