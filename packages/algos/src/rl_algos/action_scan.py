"""Discounted sums over a row's actions: tokens under the mask are skipped, not decayed over.

A row's selected tokens are moved to its left. The recurrence's coefficient is then constant, so that a block
of it is one product with a small triangular matrix, and blocks are chained by one more such product.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

_BLOCK = 32
_ROWS_ELEMENTS = 1 << 17


def scan_actions(
    mask: Tensor, tensors: tuple[Tensor, ...], step: Callable[[tuple[Tensor, ...], Tensor], Tensor]
) -> Tensor:
    """Apply `step` to the left-compacted tensors, block of rows by block of rows.

    `mask` bool `[B, T]`; `tensors` `[B, T]`. `step(compacted, lengths)` gets float64 `[b, n]` tensors, 0
    beyond each row's length, and returns `[b, n]`. The result is float64, 1-D: the selected entries in
    row-major order.
    """
    rows = (
        max(1, _ROWS_ELEMENTS // max(1, mask.shape[1]))
        if mask.device.type == "cpu"
        else max(1, mask.shape[0])
    )
    parts = [
        _scan_rows(mask[start : start + rows], tuple(t[start : start + rows] for t in tensors), step)
        for start in range(0, mask.shape[0], rows)
    ]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64, device=mask.device)


def _scan_rows(
    mask: Tensor, tensors: tuple[Tensor, ...], step: Callable[[tuple[Tensor, ...], Tensor], Tensor]
) -> Tensor:
    lengths = mask.sum(dim=1)
    width = int(lengths.max()) if lengths.numel() else 0
    if width == 0:
        return torch.zeros(0, dtype=torch.float64, device=mask.device)
    left = torch.arange(width, device=mask.device) < lengths[:, None]
    compacted = tuple(
        torch.zeros(left.shape, dtype=torch.float64, device=mask.device).masked_scatter_(
            left, tensor.masked_select(mask).double()
        )
        for tensor in tensors
    )
    return step(compacted, lengths).masked_select(left)


def discounted_suffix_sums(x: Tensor, discount: float) -> Tensor:
    """Return `y[:, t] = sum over k >= t of discount^(k - t) x[:, k]` for float64 `x` `[b, n]`."""
    rows, width = x.shape
    if width <= _BLOCK:
        return x @ _decay(width, discount, x)
    blocks = -(-width // _BLOCK)
    padded = torch.nn.functional.pad(x, (0, blocks * _BLOCK - width)).view(rows, blocks, _BLOCK)
    local = padded @ _decay(_BLOCK, discount, x)
    # Each block's first entry is the sum over the block; what follows it is the same recurrence over blocks.
    following = discounted_suffix_sums(local[:, :, 0], discount**_BLOCK)[:, 1:]
    carry = torch.nn.functional.pad(following, (0, 1))
    powers = discount ** torch.arange(_BLOCK, 0, -1, dtype=x.dtype, device=x.device)
    return local.addcmul_(carry[:, :, None], powers).view(rows, -1)[:, :width]


def _decay(size: int, discount: float, like: Tensor) -> Tensor:
    steps = torch.arange(size, dtype=like.dtype, device=like.device)
    distance = steps[:, None] - steps[None, :]
    # 0 ** 0 is 1: a discount of 0 keeps each entry alone.
    return torch.where(distance >= 0, torch.pow(float(discount), distance.clamp(min=0)), 0)
