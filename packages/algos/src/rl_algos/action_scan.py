"""Recurrences over a row's actions: tokens under the mask are passed over, not decayed over.

`y_t = u_t + c_t y_{t+1}` with c = discount on an action and c = 1, u = 0 elsewhere. Columns are cut into
blocks, the blocks are scanned side by side, and a scan over the blocks' ends carries the sums across: some
hundred steps on long vectors instead of one step per column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rl_algos.masking import as_number, select
from rl_algos.validation import compute_dtype

_BLOCK = 64
_CPU_ELEMENTS = 1 << 18
_DEVICE_ELEMENTS = 1 << 25


def row_blocks(mask: Tensor, cpu_elements: int = _CPU_ELEMENTS) -> Iterator[slice]:
    """Cut the rows of `[B, T]` into blocks that fit a CPU's cache (or are large, on a device)."""
    elements = cpu_elements if mask.device.type == "cpu" else _DEVICE_ELEMENTS
    step = max(1, elements // max(1, mask.shape[1]))
    return (slice(start, start + step) for start in range(0, mask.shape[0], step))


def reverse_scan(u: Tensor, c: Tensor) -> Tensor:
    """Return y with `y[:, t] = u[:, t] + c[:, t] y[:, t + 1]` and y = 0 behind the end, all `[b, n]`."""
    rows, width = u.shape
    if width <= _BLOCK:
        steps, factors = u.t().contiguous(), c.t().contiguous().unbind(0)
        _scan_steps(steps.unbind(0), factors, products=False)
        return steps.t()
    blocks = -(-width // _BLOCK)
    if blocks * _BLOCK > width:
        u = torch.nn.functional.pad(u, (0, blocks * _BLOCK - width))
        c = torch.nn.functional.pad(c, (0, blocks * _BLOCK - width), value=1.0)
    local = u.reshape(rows * blocks, _BLOCK).t().contiguous()
    product = c.reshape(rows * blocks, _BLOCK).t().contiguous()
    _scan_steps(local.unbind(0), product.unbind(0), products=True)
    # A block's first entry is its sum; what comes in from behind it follows the same recurrence over blocks.
    starts = reverse_scan(local[0].view(rows, blocks), product[0].view(rows, blocks))
    following = torch.nn.functional.pad(starts[:, 1:], (0, 1)).reshape(-1)
    return local.addcmul_(product, following).t().reshape(rows, -1)[:, :width]


def _scan_steps(sums: Sequence[Tensor], factors: Sequence[Tensor], products: bool) -> None:
    for k in range(len(sums) - 2, -1, -1):
        sums[k].addcmul_(factors[k], sums[k + 1])
        if products:
            factors[k].mul_(factors[k + 1])


@dataclass(frozen=True)
class Returns:
    """What is computed for a block of rows, `[b, T]` and 0 outside the mask; `keep` is the mask as 0 and
    1."""

    advantages: Tensor
    returns: Tensor
    keep: Tensor


def discounted_returns(rewards: Tensor, mask: Tensor, gamma: float) -> Returns:
    """Discounted sums of the rewards over a block's actions; advantages are the returns themselves."""
    dtype = compute_dtype(rewards)
    keep = as_number(mask, dtype)
    returns = reverse_scan(select(rewards.to(dtype), mask), step_factors(keep, gamma)).mul_(keep)
    return Returns(returns, returns, keep)


def step_factors(keep: Tensor, discount: float) -> Tensor:
    """Return `discount` on actions and 1 on what is passed over."""
    return torch.add(torch.ones((), dtype=keep.dtype, device=keep.device), keep, alpha=discount - 1.0)


def by_blocks(
    mask: Tensor, compute: Callable[[slice], Returns], dtype: torch.dtype, whiten: bool
) -> tuple[Tensor, Tensor]:
    """Run `compute` on blocks of rows; return advantages and returns `[B, T]`.

    Advantages are whitened over all selected tokens, or left as they are. Equal ones whiten to exactly 0:
    what is kept until the statistics are known is the difference from one of them.
    """
    advantages, returns = (torch.empty(mask.shape, dtype=dtype, device=mask.device) for _ in range(2))
    moments = _Moments(mask)
    for part in row_blocks(mask):
        block = compute(part)
        returns[part] = block.returns
        advantages[part] = moments.add(block) if whiten else block.advantages
    if whiten:
        moments.whiten(advantages)
    return advantages, returns


class _Moments:
    """Count, sum and sum of squares, float64, of the differences from the first advantage."""

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask
        self.origin: Tensor | None = None
        self.count, self.total, self.squares = torch.zeros(3, dtype=torch.float64, device=mask.device)

    def add(self, block: Returns) -> Tensor:
        """Take a block in; return its differences, 0 outside the mask."""
        count = block.keep.sum()
        if self.origin is None and count > 0:
            self.origin = block.advantages.flatten()[block.keep.flatten().argmax()]
        if self.origin is None:
            return block.advantages
        difference = (block.advantages - self.origin).mul_(block.keep)
        self.count += count
        self.total += difference.sum()
        self.squares += difference.square().sum()
        return difference

    def whiten(self, differences: Tensor) -> None:
        """Turn all differences `[B, T]` into whitened advantages, in place."""
        if self.squares == 0:
            differences.zero_()
            return
        mean = self.total / self.count
        variance = (self.squares - self.total * mean).clamp(min=0) / (self.count - 1)
        scale = torch.rsqrt(variance + 1e-8)
        for part in row_blocks(self.mask):
            keep = as_number(self.mask[part], differences.dtype)
            differences[part].sub_(mean.to(keep)).mul_(scale.to(keep)).mul_(keep)
