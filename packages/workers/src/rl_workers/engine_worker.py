"""What workers around an FSDP engine share: device, rows to micro-batches, results in input order."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from rl_controller import Dispatch, Worker, register
from rl_protocol import DataProto
from rl_workers.config import ModelConfig
from rl_workers.engine import FSDPEngine
from rl_workers.errors import BatchError, WorkerStateError
from rl_workers.host_memory import keep_freed_memory
from rl_workers.layout import Layout, backend_for, build_layout, resolve_device
from rl_workers.micro_batches import plan_micro_batches
from rl_workers.packing import PackedBatch, pack_rows, pad_rows, tabulate_rows
from rl_workers.profiler import DistProfiler, ProfilerConfig

ROW_COLUMNS = ("input_ids", "attention_mask", "response_mask")


class EngineWorker(Worker):
    """A worker whose process holds one or more FSDP engines."""

    def setup_device(self, device: str, mesh_name: str, fsdp_size: int = -1, sp_size: int = 1) -> Layout:
        """Join the process group and tell the controller where this rank stands on the mesh ``mesh_name``."""
        found = resolve_device(device, self.local_rank)
        if found.type == "cuda":
            torch.cuda.set_device(found)
        else:
            keep_freed_memory()
        self.init_process_group(backend_for(found))
        layout = build_layout(found, fsdp_size, sp_size)
        self._register_dispatch_collect_info(mesh_name, layout.dp_rank, layout.is_collect)
        return layout

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def start_profile(self, config: ProfilerConfig, step: int) -> bool:
        """Profile this process until :meth:`stop_profile`, if ``config`` chooses the step and this rank."""
        return DistProfiler.start(config, self.rank, step)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def stop_profile(self) -> str:
        """Write the trace; its path, or "" where nothing was profiled."""
        return DistProfiler.stop()

    def need(self, engine: FSDPEngine | None, what: str) -> FSDPEngine:
        """The engine, or an error that says what is missing."""
        if engine is None:
            raise WorkerStateError(
                f"{type(self).__name__} has no {what}: call init_model, in a role that has one"
            )
        return engine


def columns(data: DataProto, names: Iterable[str]) -> dict[str, Tensor]:
    """The named tensors of a batch.

    Raises:
        BatchError: one is missing.
    """
    held = {} if data.batch is None else data.batch
    missing = [name for name in names if name not in held]
    if missing:
        raise BatchError(
            f"the batch lacks {', '.join(missing)}; it has {', '.join(map(str, held)) or 'no tensors'}"
        )
    return {name: held[name] for name in names}


def present(data: DataProto, names: Iterable[str]) -> dict[str, Tensor]:
    """Those of the named tensors that a batch has."""
    held = {} if data.batch is None else data.batch
    return {name: held[name] for name in names if name in held}


def cut_micro_batches(
    data: DataProto, model: ModelConfig, budget: int, key: str, layout: Layout
) -> list[PackedBatch]:
    """This rank's rows as micro-batches on its device, equal in number on every rank."""
    tensors = columns(data, ROW_COLUMNS)
    table = tabulate_rows(*(tensors[name] for name in ROW_COLUMNS), **present(data, ["position_ids"]))
    packed = model.use_remove_padding
    plan = plan_micro_batches(
        table,
        budget * layout.sp_size,
        key=key,
        share_prompts=model.share_prompts,
        padded=not packed,
        agree=layout.max_over_ranks,
    )
    pack: Callable[..., PackedBatch] = (
        functools.partial(pack_rows, share_prompts=model.share_prompts) if packed else pad_rows
    )
    return [pack(table, rows).to(layout.device) for rows in plan]


def evaluate_rows(
    engine: FSDPEngine,
    batches: Iterable[PackedBatch],
    like: Tensor,
    run: Callable[[PackedBatch], tuple[Tensor, ...]],
    names: tuple[str, ...],
) -> dict[str, Tensor]:
    """Run micro-batches without gradients and scatter what ``run`` returns to ``[B, R]`` float32 on the CPU.

    Positions that ``response_mask`` leaves out are 0.
    """
    out = {name: torch.zeros(like.shape, dtype=torch.float32) for name in names}
    with engine.evaluation():
        for batch in batches:
            for name, values in zip(names, run(batch), strict=True):
                batch.scatter(values.float().cpu(), out[name])
    return out


def result(tensors: Mapping[str, Tensor], **meta: Any) -> DataProto:
    """A worker's answer."""
    return DataProto.from_dict(tensors=dict(tensors), meta_info=meta)
