"""A batch on disk: `data.safetensors` for tensors and numeric arrays, `batch.json` for everything else.

The format has a version `major.minor`. A reader accepts any minor of its major and ignores fields it does
not know, so older and newer minors read each other's files. Nothing is ever unpickled.
"""

from __future__ import annotations

import base64
import glob
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from tensordict import TensorDict, TensorDictBase

from rl_protocol.contents import Contents
from rl_protocol.errors import FormatError
from rl_protocol.rows import jagged_from_parts, jagged_parts
from rl_protocol.wire import object_array

T = TypeVar("T")
FORMAT_VERSION = "1.0"
_TAG = "$rl"
_MOST_ROWS = 1 << 31  # of a batch whose file holds no column that could prove them
_MOST_BYTES = 1 << 30  # of a column of fixed-width strings, whose width is only a claim


class _Writer:
    """Turns values into JSON and gathers the tensors that go beside it."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}

    def keep(self, tensor: torch.Tensor) -> str:
        name = f"t{len(self.tensors)}"
        # a copy: the file format forbids two names for one storage
        self.tensors[name] = tensor.detach().cpu().contiguous().clone()
        return name

    def tensor(self, where: str, tensor: torch.Tensor) -> dict[str, Any]:
        if tensor.is_nested:
            values, lengths = jagged_parts(tensor)
            return {_TAG: "jagged", "values": self.keep(values), "lengths": self.keep(lengths)}
        if tensor.layout != torch.strided or tensor.is_complex():
            raise FormatError(
                f"{where}: a {tensor.layout} tensor of {tensor.dtype} cannot be saved: make it dense, real."
            )
        return {_TAG: "tensor", "data": self.keep(tensor)}

    def column(self, where: str, column: Any) -> dict[str, Any]:
        if isinstance(column, TensorDictBase):
            columns = {k: self.column(f"{where}.{k}", v) for k, v in column.items()}
            return {_TAG: "columns", "shape": list(column.batch_size), "columns": columns}
        return self.tensor(where, column)

    def array(self, where: str, array: np.ndarray[Any, Any]) -> dict[str, Any]:
        if array.dtype == object or array.dtype.kind in "US":
            flat = array.ravel().tolist()  # numpy strings become Python's
            items = [self.value(f"{where}[{i}]", item) for i, item in enumerate(flat)]
            return {_TAG: "objects", "shape": list(array.shape), "dtype": array.dtype.str, "items": items}
        try:
            return {_TAG: "array", "data": self.keep(torch.from_numpy(np.array(array)))}
        except TypeError as error:
            raise FormatError(
                f"{where}: an array of dtype {array.dtype} cannot be saved; convert it."
            ) from error

    def value(self, where: str, value: Any) -> Any:
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if np.isfinite(value) else {_TAG: "float", "text": repr(value)}
        if isinstance(value, torch.Tensor):
            return self.tensor(where, value)
        if isinstance(value, np.ndarray):
            return self.array(where, value)
        if isinstance(value, np.str_ | np.bytes_):
            return self.value(where, value.item())
        if isinstance(value, np.generic) and value.dtype.kind in "biuf":
            return {_TAG: "scalar", "data": self.keep(torch.from_numpy(np.array(value)))}
        if type(value) is bytes:
            return {_TAG: "bytes", "base64": base64.b64encode(value).decode("ascii")}
        if type(value) is list:
            return [self.value(f"{where}[{i}]", item) for i, item in enumerate(value)]
        if type(value) is tuple:
            return {
                _TAG: "tuple",
                "items": [self.value(f"{where}[{i}]", item) for i, item in enumerate(value)],
            }
        if type(value) is dict:
            return self._dict(where, value)
        raise FormatError(
            f"{where} is a {type(value).__name__}, which a file cannot hold. Files hold None, bool, int, "
            f"float, str, bytes, list, tuple, dict, numpy and torch values; convert it or drop the key."
        )

    def _dict(self, where: str, value: dict[Any, Any]) -> Any:
        if all(type(key) is str for key in value) and _TAG not in value:
            return {key: self.value(f"{where}[{key!r}]", item) for key, item in value.items()}
        pairs = [[self.value(where, k), self.value(f"{where}[{k!r}]", v)] for k, v in value.items()]
        return {_TAG: "dict", "pairs": pairs}


class _Reader:
    """The inverse of `_Writer`."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self.tensors = tensors

    def value(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.value(item) for item in value]
        if not isinstance(value, dict):
            return value
        if _TAG not in value:
            return {key: self.value(item) for key, item in value.items()}
        kind = value[_TAG]
        if kind in ("tensor", "jagged", "array", "scalar"):
            return self._numbers(kind, value)
        if kind == "columns":
            columns = {k: self.value(v) for k, v in value["columns"].items()}
            return _columns(columns, value["shape"])
        if kind == "objects":
            array = object_array([self.value(item) for item in value["items"]], tuple(value["shape"]))
            return array if value["dtype"] == "|O" else array.astype(_text(value["dtype"], array.size))
        if kind == "float":
            return float(value["text"])
        if kind == "bytes":
            return base64.b64decode(value["base64"])
        if kind == "tuple":
            return tuple(self.value(item) for item in value["items"])
        if kind == "dict":
            return {self.value(k): self.value(v) for k, v in value["pairs"]}
        raise FormatError(
            f"the batch file holds a value of unknown kind {kind!r}; read it with a newer version."
        )

    def _numbers(self, kind: str, value: dict[str, Any]) -> Any:
        if kind == "jagged":
            values, lengths = self.tensors[value["values"]], self.tensors[value["lengths"]]
            if lengths.ndim != 1 or (lengths < 0).any() or int(lengths.sum()) != len(values):
                raise FormatError(f"the rows' lengths do not add up to the {len(values)} values.")
            return jagged_from_parts(values, lengths)
        tensor = self.tensors[value["data"]]
        if kind == "tensor":
            return tensor
        return tensor.numpy() if kind == "array" else tensor.numpy()[()]


def _columns(columns: dict[str, Any], shape: list[int]) -> TensorDict:
    if not all(type(size) is int and 0 <= size <= _MOST_ROWS for size in shape):
        raise FormatError(f"{shape} is not the shape of a batch.")
    return TensorDict(columns, batch_size=shape)


def _text(dtype: str, items: int) -> np.dtype[Any]:
    found = np.dtype(dtype)
    if found.kind not in "US" or found.itemsize * items > _MOST_BYTES:
        raise FormatError(f"{dtype!r} is not the type of a column of strings.")
    return found


def save(contents: Contents, path: str | os.PathLike[str]) -> None:
    """Write a batch to the folder `path`, replacing one that is there.

    Raises:
        FormatError: a value is of a type that a batch file cannot hold; the message names where it is.
    """
    writer = _Writer()
    batch = contents.batch
    document = {
        "format": "rl-protocol batch",
        "version": FORMAT_VERSION,
        "rows": contents.rows,
        "batch_size": None if batch is None else list(batch.batch_size),
        "tensors": {k: writer.column(k, v) for k, v in contents.tensors.items()},
        "objects": {k: writer.array(k, v) for k, v in contents.objects.items()},
        "meta_info": writer.value("meta_info", contents.meta),
    }
    target = Path(path)
    if target.exists() and not (target / "batch.json").is_file():
        raise FormatError(f"{target} exists and is not a saved batch: it will not be replaced.")
    aside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    save_file(writer.tensors, aside / "data.safetensors")
    (aside / "batch.json").write_text(json.dumps(document, allow_nan=False), encoding="utf-8")
    _replace(aside, target)


def _synced(folder: Path) -> Iterator[Path]:
    yield from folder.iterdir()
    yield folder


def _replace(aside: Path, target: Path) -> None:
    """Move the finished folder into place once its bytes are on the disk."""
    for path in _synced(aside):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    old = target.with_name(f".{target.name}.{os.getpid()}.old")
    if target.exists():
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
    try:
        aside.rename(target)
    except OSError:
        if old.exists():
            old.rename(target)
        raise
    for left in (old, *_set_aside(target)):
        shutil.rmtree(left, ignore_errors=True)


def _set_aside(target: Path) -> list[Path]:
    """What had the name when a process died before the new folder got it."""
    return sorted(target.parent.glob(f".{glob.escape(target.name)}.*.old"))


def _document(folder: Path) -> dict[str, Any]:
    try:
        document = json.loads((folder / "batch.json").read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise FormatError(f"{folder} is not a saved batch: it has no batch.json.") from error
    except ValueError as error:
        raise FormatError(f"{folder}/batch.json is not valid JSON: {error}") from error
    if not isinstance(document, dict) or document.get("format") != "rl-protocol batch":
        raise FormatError(f"{folder}/batch.json is not a batch file of this package.")
    major = str(document.get("version", "")).partition(".")[0]
    if major != FORMAT_VERSION.partition(".")[0]:
        raise FormatError(
            f"{folder} has format version {document.get('version')}; this reader knows {FORMAT_VERSION}."
        )
    return document


def load(path: str | os.PathLike[str], make: Callable[[Contents], T]) -> T:
    """Read a batch from the folder `path`; `make` raises where its columns don't agree.

    Raises:
        FormatError: the folder is not a saved batch, is damaged, or is of another major version.
    """
    folder = Path(path)
    if not folder.exists() and _set_aside(folder):
        folder = _set_aside(folder)[-1]
    try:
        return make(_read(folder))
    except (FormatError, PermissionError):
        raise
    except Exception as error:  # what damaged bytes raise is anything
        kind = type(error).__name__
        raise FormatError(f"{folder} is damaged, or not a batch of this package: {kind}: {error}") from error


def _read(folder: Path) -> Contents:
    document = _document(folder)
    with safe_open(folder / "data.safetensors", framework="pt") as file:
        reader = _Reader({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    batch_size = document["batch_size"]
    tensors = {k: reader.value(v) for k, v in document["tensors"].items()}
    objects = {k: reader.value(v) for k, v in document["objects"].items()}
    batch = None if batch_size is None else _columns(tensors, batch_size)
    return Contents(batch, objects, reader.value(document["meta_info"]))
