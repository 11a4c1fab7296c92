"""Rows of a call to micro-batches, and what a model says of them back to rows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Unpack

import torch
from torch import Tensor

from rl_protocol import DataProto
from rl_workers.compute.micro_batches import plan_micro_batches
from rl_workers.compute.packing import PackedBatch, pack_rows, pad_rows, tabulate_rows
from rl_workers.config import ModelConfig
from rl_workers.engine.base import Answer, HeadOptions, TrainEngine
from rl_workers.engine.layout import Layout
from rl_workers.errors import BatchError

ROW_COLUMNS = ("input_ids", "attention_mask", "response_mask")


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


def response_mask(data: DataProto) -> Tensor:
    """The column ``[B, R]`` that says which tokens the policy chose."""
    return columns(data, ["response_mask"])["response_mask"]


def answer_rows(
    engine: TrainEngine,
    batches: Sequence[PackedBatch],
    like: Tensor,
    names: Sequence[str],
    **options: Unpack[HeadOptions],
) -> dict[str, Tensor]:
    """Evaluate micro-batches and give the first answers names: ``[B, R]`` as ``like``, float32 on the CPU.

    Positions that ``response_mask`` leaves out are 0.
    """
    out = {name: torch.zeros(like.shape, dtype=torch.float32) for name in names}

    def read(batch: PackedBatch, answer: Answer) -> None:
        for name, values in zip(names, answer[: len(names)], strict=True):
            batch.scatter(values.float().cpu(), out[name])

    engine.evaluate(batches, read, **options)
    return out


def result(tensors: Mapping[str, Tensor], **meta: Any) -> DataProto:
    """A worker's answer."""
    return DataProto.from_dict(tensors=dict(tensors), meta_info=meta)
