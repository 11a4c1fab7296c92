"""Recurrences over a row's actions: tokens under the mask are passed over, not decayed over.

What is wanted is `X_k = u_k + d X_{k+1}`, k counting the row's actions. Two ways to it:

- By products (CPU): with n_t the number of actions up to t, `X_t = d^-n_t sum over s >= t of d^n_s u_s`.
  Counts and sums are products of spans of columns with a triangular matrix, in the layout the data has; a
  scan over the spans carries the sums across. Every sum is over later terms only, so nothing cancels.
- By steps (devices, and where the powers of d leave the range): columns are cut into blocks, the blocks are
  scanned side by side, and a scan over the blocks' ends carries the sums across.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rl_algos.masking import as_number, select
from rl_algos.validation import check_finite_rows

_BLOCK = 64
# A product costs 2 flops per element and column of the span, the scan over spans goes with its inverse: 32.
_SPAN = 32
# Spans lose no accuracy while d^32 > 1e-6; the scan over spans is float64, which holds exp of -600.
_SMALLEST_DECAY = 0.65
_LARGEST_EXPONENT = 600.0
# 512 KB in float32: what one operation leaves for the next stays in a core's share of the second- and
# third-level cache, and calling some fifty operations a block costs little beside their work.
_CPU_ELEMENTS = 1 << 17
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
class Scan:
    """The recurrence `X_k = u_k + decay X_{k+1}` over the actions of a batch.

    `count`, `behind` `[32, 32]`: what a span of columns is multiplied with, to count its actions up to each
    column (in units of log decay), and to sum what stands behind each; None where the scan goes by steps.
    """

    decay: float
    count: Tensor | None
    behind: Tensor | None

    @classmethod
    def of(cls, decay: float, dtype: torch.dtype, device: torch.device) -> Scan:
        """Choose the way."""
        if device.type != "cpu" or decay < _SMALLEST_DECAY or not _exact_products(dtype):
            return cls(decay, None, None)
        ones = torch.ones(_SPAN, _SPAN, dtype=dtype)
        return cls(decay, ones.triu() * math.log(decay), ones.tril(-1))

    def add_next(self, x: Tensor, u: Tensor, keep: Tensor, factor: float, out: Tensor) -> Tensor:
        """Write `x_k + factor X_{k+1}` to `out` and return it; all `[b, T]`.

        `keep` is the mask as 0 and 1. `out` is 0 outside of it; a row of `x` or `u` that is not finite makes
        the row of `out` not finite.
        """
        if self.count is None or self.behind is None:
            c = torch.add(torch.ones((), dtype=keep.dtype, device=keep.device), keep, alpha=self.decay - 1.0)
            following = torch.nn.functional.pad(reverse_scan(u * keep, c)[:, 1:], (0, 1))
            return torch.add(x, following, alpha=factor, out=out).mul_(keep)
        rows, width = keep.shape
        if width % _SPAN:
            padding = (0, _SPAN - width % _SPAN)
            u, actions = torch.nn.functional.pad(u, padding), torch.nn.functional.pad(keep, padding)
        else:
            actions = keep
        exponents = actions.view(-1, _SPAN) @ self.count
        ends = exponents[:, -1].double().view(rows, -1)
        weights = exponents.exp_()
        terms = (weights * actions.view(-1, _SPAN)).mul_(u.reshape(-1, _SPAN))
        sums = terms @ self.behind
        totals = (sums[:, 0] + terms[:, 0]).view(rows, -1)
        carried = _carried(totals.double(), ends, steepest=-_SPAN * math.log(self.decay))
        sums.add_(carried.to(sums.dtype).view(-1, 1))
        shape = (rows, actions.shape[1])
        sums, weights = sums.view(shape)[:, :width], weights.view(shape)[:, :width]
        # The weight of the next action has one decay more than its place behind this one asks for.
        return torch.addcdiv(x, sums, weights, value=factor / self.decay, out=out).mul_(keep)


def _exact_products(dtype: torch.dtype) -> bool:
    """Whether products run in the full precision of `dtype`: `torch.set_float32_matmul_precision` and its
    kin allow less, by hardware, so that one is tried out."""
    x = torch.full((2 * _SPAN, _SPAN), 1.0 + 2.0**-20, dtype=dtype)
    return torch.equal(x @ torch.eye(_SPAN, dtype=dtype), x)


def _carried(totals: Tensor, exponents: Tensor, steepest: float) -> Tensor:
    """Return what all later spans add to each span's sums, in the units of its weights.

    `totals` `[b, n]`: each span's sum of weighted terms; `exponents` `[b, n]`: log of its last weight, from 0
    down to minus `steepest`. Both float64.
    """
    carried = torch.zeros_like(totals)
    spans = totals.shape[1]
    size = min(max(int(_LARGEST_EXPONENT / max(steepest, 1e-30)), 1), max(spans, 1))
    incoming: Tensor | None = None
    for start in range((spans - 1) // size * size, -1, -size):
        stop = min(start + size, spans)
        ends = exponents[:, start:stop].cumsum(dim=1)
        # Weights of the spans relative to the first.
        weights = (ends - exponents[:, start:stop]).exp_()
        tails = (totals[:, start:stop] * weights).flip(1).cumsum(dim=1).flip(1)
        if incoming is not None:
            beyond = incoming.mul_(ends[:, -1:].exp())
            torch.div(beyond, weights[:, -1:], out=carried[:, stop - 1 : stop])
            tails.add_(beyond)
        torch.div(tails[:, 1:], weights[:, :-1], out=carried[:, start : stop - 1])
        incoming = tails[:, :1]
    return carried


@dataclass(frozen=True)
class Block:
    """A block of rows: bool `mask` and the same as 0 and 1, `keep`, `[b, T]`.

    `careful`: values that are not finite were met, so that inputs have to be selected before they count.
    """

    part: slice
    mask: Tensor
    keep: Tensor
    careful: bool

    def take(self, x: Tensor) -> Tensor:
        """The block of `x` `[B, T]` in the dtype of the result; 0 outside the mask if `careful`."""
        cut = x[self.part].to(self.keep.dtype)
        return select(cut, self.mask) if self.careful else cut


def discounted_returns(scan: Scan, rewards: Tensor, block: Block, out: Tensor) -> Tensor:
    """Write the discounted sums of the rewards over a block's actions to `out` `[b, T]` and return it."""
    reward = block.take(rewards)
    return scan.add_next(reward, reward, block.keep, scan.decay, out)


def by_blocks(
    mask: Tensor, compute: Callable[[Block, Tensor, Tensor], Tensor], dtype: torch.dtype, whiten: bool
) -> tuple[Tensor, Tensor]:
    """Run `compute` on blocks of rows; return advantages and returns `[B, T]`.

    `compute(block, advantages, returns)` writes the block's returns to `returns` `[b, T]` and returns its
    advantages, which it may write to `advantages`; what is not finite under the mask must show there.
    Advantages are whitened over all selected tokens, or left as they are. Equal ones whiten to exactly 0:
    what is kept until the statistics are known is the difference from one of them.

    Raises:
        NonFiniteError: a row's value inside the mask is not finite, or a sum of them too large for its dtype.
    """
    advantages, returns = (torch.empty(mask.shape, dtype=dtype, device=mask.device) for _ in range(2))
    moments = _Moments(mask)
    for part in row_blocks(mask):
        chosen, ours = mask[part], advantages[part]
        keep = as_number(chosen, dtype)
        # Products select as long as everything is finite, and cost half of what a selection does.
        found = compute(Block(part, chosen, keep, careful=False), ours, returns[part])
        if not math.isfinite(found.sum()):
            found = compute(Block(part, chosen, keep, careful=True), ours, returns[part])
            check_finite_rows("an advantage", found, chosen.any(dim=1), part.start)
        if whiten:
            moments.add(found, keep, ours)
        elif found is not ours:
            ours.copy_(found)
    if whiten:
        moments.whiten(advantages)
    return advantages, returns


class _Moments:
    """Count, sum and sum of squares, of any finite size, of the differences from the first advantage."""

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask
        self.origin: float | None = None
        self.total = self.squares = 0.0

    def add(self, advantages: Tensor, keep: Tensor, out: Tensor) -> None:
        """Take a block in, 0 outside the mask; write its differences, also 0 there, to `out`."""
        if self.origin is None and keep.any():
            self.origin = float(advantages.flatten()[keep.flatten().argmax()])
        torch.sub(advantages, keep, alpha=self.origin or 0.0, out=out)
        total, squares = float(out.sum()), float(out.square().sum())
        if not math.isfinite(total + squares):
            total, squares = float(out.double().sum()), float(out.double().square().sum())
        self.total += total
        self.squares += squares

    def whiten(self, differences: Tensor) -> None:
        """Turn all differences `[B, T]` into whitened advantages, in place."""
        if self.squares == 0:
            differences.zero_()
            return
        count = int(self.mask.count_nonzero())
        mean = self.total / count
        # One token and no spread end above.
        variance = max(self.squares - self.total * mean, 0.0) / max(count - 1, 1)
        scale = 1.0 / math.sqrt(variance + 1e-8)
        for part in row_blocks(self.mask):
            keep = as_number(self.mask[part], differences.dtype)
            differences[part].mul_(scale).sub_(keep, alpha=mean * scale)
