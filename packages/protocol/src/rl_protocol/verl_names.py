"""The functions of verl's `protocol` module, over this package. Nothing here imports it: users of verl do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from rl_protocol.combine import union_columns
from rl_protocol.data_proto import DataProto
from rl_protocol.item import DataProtoItem

Serialized = tuple[str, tuple[int, ...], Any]


class DataProtoConfig:
    """verl's switch for padding. It may be set; every call here takes any number of rows without it."""

    auto_padding = False


def union_tensor_dict(tensor_dict1: TensorDict, tensor_dict2: TensorDict) -> TensorDict:
    """`tensor_dict1` with the columns of both, in place; what both hold must be equal by value.

    Raises:
        ColumnConflictError: it is not; nothing was changed.
    """
    merged = union_columns("tensor", dict(tensor_dict1.items()), dict(tensor_dict2.items()))
    tensor_dict1.update(merged)
    return tensor_dict1


def union_numpy_dict(
    tensor_dict1: dict[str, np.ndarray[Any, Any]], tensor_dict2: Mapping[str, np.ndarray[Any, Any]]
) -> dict[str, np.ndarray[Any, Any]]:
    """The same for dicts of arrays."""
    tensor_dict1.update(union_columns("object", tensor_dict1, tensor_dict2))
    return tensor_dict1


def fold_batch_dim(data: DataProto, new_batch_size: int) -> DataProto:
    """`DataProto.fold_batch_dim`."""
    return data.fold_batch_dim(new_batch_size)


def unfold_batch_dim(data: DataProto, batch_dims: int = 2) -> DataProto:
    """`DataProto.unfold_batch_dim`."""
    return data.unfold_batch_dim(batch_dims)


def collate_fn(x: Sequence[DataProtoItem]) -> DataProto:
    """Rows, as indexing by an int gives them, as one batch; `meta_info` is that of the first."""
    tensors = [item.batch for item in x if item.batch is not None]
    names = list(x[0].non_tensor_batch) if x else []
    batch: Any = torch.stack(tensors) if tensors else None  # type: ignore[arg-type]
    return DataProto(
        batch,
        {name: [item.non_tensor_batch[name] for item in x] for name in names},
        x[0].meta_info if x else {},
    )


def serialize_single_tensor(obj: torch.Tensor) -> Serialized:
    """A dense tensor as dtype name, shape and bytes."""
    flat: Any = obj.detach().cpu().contiguous().flatten().view(torch.uint8)
    return str(obj.dtype).removeprefix("torch."), tuple(obj.shape), flat.numpy().data


def deserialize_single_tensor(arr: Serialized) -> torch.Tensor:
    """The inverse; the tensor has its own memory."""
    dtype, shape, data = arr
    tensor = torch.empty(shape, dtype=getattr(torch, dtype))
    tensor.reshape(-1).view(torch.uint8).copy_(torch.from_numpy(np.array(data, np.uint8)))
    return tensor


def serialize_tensordict(batch: TensorDict) -> tuple[tuple[int, ...], str | None, dict[str, Any]]:
    """Batch size, device and, by name, a serialized tensor, or layout and parts if nested."""
    columns: dict[str, Any] = dict(batch.items())
    items = {
        name: (str(column.layout).removeprefix("torch."), list(map(serialize_single_tensor, column.unbind())))
        if column.is_nested
        else serialize_single_tensor(column)
        for name, column in columns.items()
    }
    return tuple(batch.batch_size), None if batch.device is None else str(batch.device), items


def deserialize_tensordict(arr: tuple[tuple[int, ...], str | None, dict[str, Any]]) -> TensorDict:
    """The inverse of `serialize_tensordict`."""
    batch_size, device, items = arr
    columns = {
        name: deserialize_single_tensor(value)
        if len(value) == 3
        else torch.nested.as_nested_tensor(
            list(map(deserialize_single_tensor, value[1])), layout=getattr(torch, value[0])
        )
        for name, value in items.items()
    }
    return TensorDict(columns, batch_size=batch_size, device=device)


def all_gather_data_proto(data: DataProto, process_group: Any) -> None:
    """Every rank's rows in `data`, in rank order, in place, by `torch.distributed`."""
    import torch.distributed as dist

    parts: list[Any] = [None] * dist.get_world_size(process_group)
    dist.all_gather_object(parts, data, group=process_group)
    device = None if data.batch is None else data.batch.device
    whole = DataProto.concat(parts)
    gathered = whole if device is None else whole.to(device)
    data.batch, data.non_tensor_batch, data.meta_info = (
        gathered.batch,
        gathered.non_tensor_batch,
        gathered.meta_info,
    )
