"""The worker that both sides measure: the same code over this library's classes or the reference's."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import torch

SIDE = os.environ.get("BENCH_SIDE", "ours")
MB = 1 << 20
ROWS = 4096


def library() -> SimpleNamespace:
    """The names that differ between the sides."""
    if SIDE == "ours":
        import rl_controller as controller
        from rl_protocol import DataProto

        return SimpleNamespace(DataProto=DataProto, **{n: getattr(controller, n) for n in controller.__all__})
    from verl import DataProto
    from verl.single_controller.base import Worker
    from verl.single_controller.base.decorator import Dispatch, register
    from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup

    return SimpleNamespace(
        DataProto=DataProto,
        Worker=Worker,
        Dispatch=Dispatch,
        register=register,
        RayClassWithInitArgs=RayClassWithInitArgs,
        RayResourcePool=RayResourcePool,
        RayWorkerGroup=RayWorkerGroup,
    )


lib = library()
LATER: dict[str, Any] = {"blocking": False, "read_only": True} if SIDE == "ours" else {}
READ: dict[str, Any] = {"read_only": True} if SIDE == "ours" else {}


def batch_of(megabytes: int) -> Any:
    """Eight float32 columns of equal size and 4,096 rows."""
    width = megabytes * MB // 8 // 4 // ROWS
    return lib.DataProto.from_dict({f"c{n}": torch.full((ROWS, width), float(n)) for n in range(8)})


class LabWorker(lib.Worker):
    """Does next to nothing, so that what is measured is the way there and back."""

    def __init__(self) -> None:
        super().__init__()

    @lib.register(dispatch_mode=lib.Dispatch.ONE_TO_ALL)
    def noop(self) -> None:
        """Nothing."""

    @lib.register(dispatch_mode=lib.Dispatch.DP_COMPUTE_PROTO, **READ)
    def echo(self, batch: Any) -> Any:
        """Reads one number and returns the batch."""
        float(batch.batch["c0"][0, 0])
        return batch

    @lib.register(dispatch_mode=lib.Dispatch.DP_COMPUTE_PROTO)
    def write(self, batch: Any) -> Any:
        """Writes into what it received and returns it."""
        batch.batch["c0"] += 1
        return batch

    @lib.register(dispatch_mode=lib.Dispatch.DP_COMPUTE_PROTO, **LATER)
    def make(self, seeds: Any, megabytes: int = 256) -> Any:
        """Rows from seeds, as generation would."""
        width = megabytes * MB // 8 // 4 // ROWS
        columns = {f"c{n}": torch.full((len(seeds), width), float(n)) for n in range(8)}
        return lib.DataProto.from_dict(columns)

    @lib.register(dispatch_mode=lib.Dispatch.DP_COMPUTE_PROTO, **LATER)
    def step(self, batch: Any) -> Any:
        """A new first column, the others handed on."""
        tensors = {key: batch.batch[key] for key in batch.batch.keys()}  # noqa: SIM118
        return lib.DataProto.from_dict({**tensors, "c0": batch.batch["c0"] + 1})

    @lib.register(dispatch_mode=lib.Dispatch.DP_COMPUTE_PROTO, **READ)
    def summary(self, batch: Any) -> Any:
        """One number per row."""
        return lib.DataProto.from_dict({"mean": batch.batch["c0"].mean(-1)})


def start(n_workers: int) -> Any:
    """A group of workers on the CPU."""
    pool = lib.RayResourcePool([n_workers], use_gpu=False, max_colocate_count=1)
    import ray

    cls = LabWorker if SIDE == "ours" else ray.remote(LabWorker)
    return lib.RayWorkerGroup(resource_pool=pool, ray_cls_with_init=lib.RayClassWithInitArgs(cls=cls))
