"""The pickled form of a batch: tensors and numeric arrays travel out of band.

With pickle protocol 5 and a buffer callback (Ray's object store, for one) no element is copied into the
pickle stream, and a reader maps the memory. Such a reader's tensors are views of shared memory that torch
lets you write: call `DataProto.clone()` before in-place work.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from rl_protocol.contents import Contents
from rl_protocol.errors import ColumnTypeError
from rl_protocol.rows import jagged_from_parts, jagged_parts

# dtypes that numpy does not know travel as integers of the same width
_CARRIER = {
    torch.bfloat16: torch.int16,
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e5m2: torch.uint8,
    torch.float8_e4m3fnuz: torch.uint8,
    torch.float8_e5m2fnuz: torch.uint8,
}


class Encoder:
    """Turns columns into picklable values and sums up their bytes."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._boxed: dict[int, Any] = {}

    def tensor(self, tensor: torch.Tensor) -> tuple[Any, ...]:
        """A tensor as `(array, dtype name or None)`, or as `("jagged", values, lengths)`."""
        if tensor.is_nested:
            if tensor.layout != torch.jagged:
                raise ColumnTypeError(
                    "nested tensors must have the jagged layout: nested_tensor(..., layout=torch.jagged)."
                )
            values, lengths = jagged_parts(tensor)
            return ("jagged", self.tensor(values), self.tensor(lengths))
        if tensor.layout != torch.strided:
            raise ColumnTypeError(f"a tensor of layout {tensor.layout} cannot be sent: make it dense first.")
        dense = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
        self.nbytes += dense.nbytes
        carrier = _CARRIER.get(dense.dtype)
        if carrier is None:
            return (dense.numpy(), None)
        return (dense.view(carrier).numpy(), str(dense.dtype).removeprefix("torch."))

    def column(self, column: Any) -> Any:
        """A tensor column, nested TensorDicts included."""
        if isinstance(column, TensorDictBase):
            return {
                "rows": tuple(column.batch_size),
                "columns": {k: self.column(v) for k, v in column.items()},
            }
        return self.tensor(column)

    def value(self, value: Any) -> Any:
        """A value of `meta_info` or of an object column: tensors inside it are boxed, the rest is kept."""
        if isinstance(value, str | bytes):
            self.nbytes += len(value)
            return value
        if value is None or isinstance(value, bool | int | float):
            self.nbytes += 8
            return value
        if id(value) not in self._boxed:  # one object in many rows travels once, and stays one object
            self._boxed[id(value)] = self._box(value)
        return self._boxed[id(value)]

    def _box(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return _TensorBox(self.tensor(value))
        if isinstance(value, np.ndarray):
            if value.dtype == object:
                return self.array(value)
            self.nbytes += value.nbytes
            return value
        if type(value) is dict:
            boxed = {key: self.value(item) for key, item in value.items()}
            return boxed if any(boxed[key] is not value[key] for key in boxed) else value
        if type(value) in (list, tuple):
            items = [self.value(item) for item in value]
            if all(new is old for new, old in zip(items, value, strict=True)):
                return value
            return type(value)(items)
        self.nbytes += 8
        return value

    def array(self, array: np.ndarray[Any, Any]) -> Any:
        """A non-tensor column. Numeric arrays are kept; object arrays become a boxed list of their items."""
        if array.dtype != object:
            self.nbytes += array.nbytes
            return array
        return _ObjectBox(array.shape, [self.value(item) for item in array.flat])


class _TensorBox:
    """Pickles as a call that yields the tensor itself."""

    def __init__(self, encoded: tuple[Any, ...]) -> None:
        self.encoded = encoded

    def __reduce__(self) -> Any:
        return (decode_tensor, self.encoded)


class _ObjectBox:
    """Pickles as a call that yields the object array itself."""

    def __init__(self, shape: tuple[int, ...], items: list[Any]) -> None:
        self.shape, self.items = shape, items

    def __reduce__(self) -> Any:
        return (object_array, (self.items, self.shape))


def object_array(items: list[Any], shape: tuple[int, ...] | None = None) -> np.ndarray[Any, Any]:
    """Items as an object array of the given shape (default: 1-D), without numpy guessing at nested lists."""
    array = np.empty(len(items), dtype=object)
    for position, item in enumerate(items):
        array[position] = item
    return array if shape is None else array.reshape(shape)


class _Writable:
    """Read-only memory that numpy takes for writable: the reader promised not to write, or clones.

    torch warns of such memory, and silencing a warning (a state of the whole process) is not thread-safe.
    """

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array  # keeps the memory
        described = array.__array_interface__
        self.__array_interface__ = {**described, "data": (described["data"][0], False)}


def decode_tensor(data: Any, second: Any, lengths: Any = None) -> torch.Tensor:
    """The inverse of `Encoder.tensor`: of `(array, dtype name or None)`, or of `("jagged", values, lengths)`
    where both are such a pair again."""
    if lengths is not None:
        return jagged_from_parts(decode_tensor(*second), decode_tensor(*lengths))
    tensor = torch.from_numpy(data if data.flags.writeable else np.asarray(_Writable(data)))
    return tensor if second is None else tensor.view(getattr(torch, second))


def decode_column(encoded: Any) -> Any:
    """The inverse of `Encoder.column`."""
    if isinstance(encoded, dict):
        return TensorDict(
            {k: decode_column(v) for k, v in encoded["columns"].items()}, batch_size=list(encoded["rows"])
        )
    return decode_tensor(*encoded)


def encode(contents: Contents, encoder: Encoder) -> tuple[Any, ...]:
    """A batch as `(tensors or None, batch size, objects, meta)`, what `decode` takes."""
    batch = contents.batch
    tensors = None if batch is None else {name: encoder.column(column) for name, column in batch.items()}
    objects = {name: encoder.array(column) for name, column in contents.objects.items()}
    return tensors, () if batch is None else tuple(batch.batch_size), objects, encoder.value(contents.meta)


def decode(
    tensors: dict[str, Any] | None, shape: tuple[int, ...], objects: dict[str, Any], meta: dict[str, Any]
) -> Contents:
    """The inverse of `encode`; arrays and boxed tensors were restored by the unpickling itself."""
    if tensors is None:
        return Contents(None, objects, dict(meta))
    columns = {name: decode_column(column) for name, column in tensors.items()}
    return Contents(TensorDict(columns, batch_size=list(shape)), objects, dict(meta))
