"""The safetensors files of a model's folder, read by the model's own names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from safetensors import safe_open
from torch import Tensor
from transformers import PreTrainedModel

from rl_workers.errors import CheckpointError
from rl_workers.model.lora import base_name


class WeightSource:
    """Tensors of a model's folder by the model's names, read slice by slice."""

    def __init__(self, path: str, lm: PreTrainedModel) -> None:
        self._path = Path(path)
        self._files = self._index()
        self._handles: dict[str, Any] = {}
        self.prefix = f"{lm.base_model_prefix}." if lm.base_model_prefix else ""

    def _index(self) -> dict[str, str]:
        index = self._path / "model.safetensors.index.json"
        if index.is_file():
            return cast(dict[str, str], json.loads(index.read_text())["weight_map"])
        single = self._path / "model.safetensors"
        if not single.is_file():
            raise CheckpointError(
                f"{self._path} has neither model.safetensors nor its index: convert the model first"
            )
        with safe_open(single, framework="pt") as handle:
            return dict.fromkeys(handle.keys(), single.name)

    def find(self, name: str) -> str | None:
        """The file's name of a tensor: as it is, or with or without the body's prefix."""
        plain = base_name(name)
        for candidate in (plain, self.prefix + plain, plain.removeprefix(self.prefix)):
            if candidate in self._files:
                return candidate
        return None

    def read(self, key: str, rows: slice | None = None) -> Tensor:
        """A tensor, or some of its rows; only those bytes are read."""
        name = self._files[key]
        if name not in self._handles:
            self._handles[name] = safe_open(self._path / name, framework="pt")
        handle = self._handles[name]
        if rows is None:
            return cast(Tensor, handle.get_tensor(key))
        return cast(Tensor, handle.get_slice(key)[rows])
