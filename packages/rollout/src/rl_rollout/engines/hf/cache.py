"""Keys and values of rows that grow together, in memory that is taken once.

transformers' own cache copies everything it holds for each new token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer


class GrowingLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """One layer's keys and values [B, H, S, D]: `filled` of them so far, in memory for all that will come."""

    def __init__(self, keys: Tensor, values: Tensor, filled: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._all_keys, self._all_values, self._filled = keys, values, filled
        self.dtype, self.device, self.is_initialized = keys.dtype, keys.device, True
        self._show()

    def _show(self) -> tuple[Tensor, Tensor]:
        self.keys = keys = self._all_keys[:, :, : self._filled]
        self.values = values = self._all_values[:, :, : self._filled]
        return keys, values

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write new positions behind the others; all there are so far."""
        start, self._filled = self._filled, self._filled + key_states.shape[-2]
        self._all_keys[:, :, start : self._filled] = key_states
        self._all_values[:, :, start : self._filled] = value_states
        return self._show()


def spread_prompts(
    prompts: Sequence[DynamicCache], owners: Sequence[int], rows: int, width: int, room: int
) -> Cache:
    """A cache of `rows` rows in which row i ends at `width` with the positions of `prompts[owners[i]]`, with
    `room` more to come. What stands before them, and rows without a prompt, are zeros, which a mask hides.
    """
    layers: list[Any] = []
    for parts in zip(*(prompt.layers for prompt in prompts), strict=True):
        known = [(cast(Tensor, part.keys), cast(Tensor, part.values)) for part in parts]
        keys, values = (
            tensor.new_zeros(rows, tensor.shape[1], width + room, tensor.shape[3]) for tensor in known[0]
        )
        for row, owner in enumerate(owners):
            for target, tensor in zip((keys, values), known[owner], strict=True):
                target[row, :, width - tensor.shape[2] : width] = tensor[0]
        layers.append(GrowingLayer(keys, values, width))
    return Cache(layers=layers)
