"""A batch to and from one TensorDict that also carries the non-tensor columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensordict import NonTensorData, NonTensorStack, TensorDict, TensorDictBase

from rl_protocol.contents import Contents
from rl_protocol.errors import ColumnConflictError
from rl_protocol.wire import object_array


def to_tensordict(contents: Contents) -> TensorDict:
    """Tensors as they are (jagged ones too), object columns as per-row stacks, `meta_info` as whole data."""
    tensors = contents.tensors
    clash = sorted({*tensors, *contents.objects} & {*contents.meta})
    if clash:
        raise ColumnConflictError(
            f"{clash} name a column and a meta_info entry; a TensorDict has one space for both."
        )
    merged = TensorDict(tensors, batch_size=[contents.rows])
    for name, column in contents.objects.items():
        merged.set(
            name, NonTensorStack(*[NonTensorData(item) for item in column]) if len(column) else _no_rows()
        )
    for name, value in contents.meta.items():
        merged.set_non_tensor(name, value)
    return merged


def _no_rows() -> NonTensorStack:
    return NonTensorStack(NonTensorData(None))[:0]


def from_tensordict(data: TensorDictBase, meta_info: Mapping[str, Any] | None = None) -> Contents:
    """The inverse of `to_tensordict`; entries of `meta_info` are added to those found in `data`."""
    tensors: dict[str, Any] = {}
    objects: dict[str, Any] = {}
    meta: dict[str, Any] = {}
    for name in data.keys():  # noqa: SIM118 - a TensorDict iterates over rows
        value = data._get_str(name, default=None)  # type: ignore[no-untyped-call]
        if isinstance(value, NonTensorStack):
            objects[name] = object_array([value[row].data for row in range(len(value))])
        elif isinstance(value, NonTensorData):
            meta[name] = value.data
        else:
            tensors[name] = value
    rows = data.batch_size[:1]
    batch = TensorDict(tensors, batch_size=rows) if tensors or not objects else None
    return Contents(batch, objects, {**meta, **(meta_info or {})})
