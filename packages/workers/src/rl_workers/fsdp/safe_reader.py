"""Reading a sharded checkpoint without running what a stranger put into it.

The index that `torch.distributed.checkpoint` writes is a pickle. It is read here by an unpickler that knows
the few classes such an index is made of and calls nothing else; entries that would be unpickled later, and
paths out of the checkpoint's folder, are refused.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata

from rl_workers.errors import CheckpointError

INDEX = ".metadata"
_CLASSES = {
    "torch.distributed.checkpoint.metadata": {
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorStorageMetadata",
        "ChunkStorageMetadata",
        "TensorProperties",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo", "_StoragePrefix"},
    "torch": {"Size"},
    "torch.serialization": {"_get_layout"},
    "pathlib": {"PosixPath", "WindowsPath", "PurePosixPath"},
    "collections": {"OrderedDict"},
}


class _IndexUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if dtype or name in _CLASSES.get(module, ()):
            return super().find_class(module, name)
        raise CheckpointError(f"it names {module}.{name}, which belongs to no checkpoint's index")


class SafeReader(FileSystemReader):
    """A checkpoint's folder, for `torch.distributed.checkpoint.load`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._index = folder / INDEX

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The index.

        Raises:
            CheckpointError: it is damaged, or holds what an index of tensors does not.
        """
        try:
            with self._index.open("rb") as file:
                index = _IndexUnpickler(file).load()
            _check(index)
        except Exception as error:  # what damaged bytes raise is anything
            raise CheckpointError(f"{self._index} is no index of a checkpoint: {error}") from error
        index.storage_meta = index.storage_meta or StorageMeta()
        index.storage_meta.load_id = self.load_id
        checked: Metadata = index
        return checked


def _check(index: Any) -> None:
    if not isinstance(index, Metadata):
        raise CheckpointError(f"it holds a {type(index).__name__}")
    for name, entry in index.state_dict_metadata.items():
        if not isinstance(entry, TensorStorageMetadata):
            raise CheckpointError(f"{name} is not a tensor")
    for place in index.storage_data.values():
        if Path(place.relative_path).name != place.relative_path:
            raise CheckpointError(f"{place.relative_path!r} is not a file of its folder")
