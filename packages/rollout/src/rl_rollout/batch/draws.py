"""Sampling many rows at once: one random number per token, from nothing but the row's seed and the position.

The engines share it: a generator per row would be a Python loop over rows, and noise for every token of the
vocabulary costs more than the products of a small model's layer.
"""

from __future__ import annotations

import torch
from torch import Tensor

_BLOCK = 128  # tokens whose weights are summed before any is looked at


def row_uniforms(seeds: Tensor, positions: Tensor) -> Tensor:
    """Float64 in [0, 1), 53 random bits each, a function of `seeds` and `positions` (int64, broadcastable).

    SplitMix64 (Steele, Lea and Flood 2014), the seed mixed before the position is added, so that
    neighbouring seeds don't share shifted sequences. In int64, whose products wrap as unsigned ones do.
    """
    state = _mix(seeds + _GOLDEN)
    return _shift(_mix(state + (positions + 1) * _GOLDEN), 11).double() * 2.0**-53


def draw_tokens(
    logits: Tensor, uniforms: Tensor | None, greedy: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """One token per row of logits [B, V] float32, -inf where a token is cut off, by inverting the cumulative
    distribution at `uniforms` [B] float64 in [0, 1).

    `greedy` [B] bool marks rows that take the most likely token; without `uniforms` all do. Returns tokens
    [B] int64 and their log-probs [B] float32, those of `log_softmax(logits)`. A row's answer depends on that
    row alone. One pass of `exp` over the vocabulary: the cumulative sum is taken over blocks, then inside the
    one block that holds the answer.
    """
    peak = logits.amax(-1, keepdim=True)
    weights = _weights(logits, peak)
    blocks = weights.view(len(logits), -1, _BLOCK)
    sums = blocks.sum(-1, dtype=torch.float32).double().cumsum(-1)
    tokens = None if uniforms is None else _invert(blocks, sums, uniforms.to(logits.device))
    if tokens is None:
        tokens = logits.argmax(-1)
    elif greedy is not None and bool(greedy.any()):
        tokens = torch.where(greedy, logits.argmax(-1), tokens)
    chosen = logits.gather(-1, tokens[:, None]) - peak
    return tokens, (chosen.double() - sums[:, -1:].log()).float()[:, 0]


def _weights(logits: Tensor, peak: Tensor) -> Tensor:
    """`exp(logits - peak)` [B, V], with zeros up to a whole number of blocks."""
    rows, vocab = logits.shape
    width = -(-vocab // _BLOCK) * _BLOCK
    weights = logits.new_empty(rows, width)
    weights[:, vocab:] = 0
    inside = weights[:, :vocab]
    torch.sub(logits, peak, out=inside)
    inside.exp_()
    return weights


def _invert(blocks: Tensor, sums: Tensor, uniforms: Tensor) -> Tensor:
    """The token [B] whose part of the cumulative weights holds `uniforms`; `sums` [B, N] float64 of blocks
    [B, N, 128] runs up. Never one without weight: the first whose cumulative sum *exceeds* a number below
    the total has some."""
    target = _below(uniforms[:, None] * sums[:, -1:], sums[:, -1:])
    block = torch.searchsorted(sums, target, right=True)
    end = sums.gather(-1, block)
    start = torch.where(block > 0, sums.gather(-1, (block - 1).clamp_min(0)), 0.0)
    row = torch.arange(len(blocks), device=blocks.device)
    inner = blocks[row, block[:, 0]].double().cumsum(-1)
    share = (target - start) / (end - start)  # the block's sum was rounded otherwise than this one's
    place = torch.searchsorted(inner, _below(share * inner[:, -1:], inner[:, -1:]), right=True)
    return (block * _BLOCK + place)[:, 0]


def _below(value: Tensor, limit: Tensor) -> Tensor:
    return torch.minimum(value, torch.nextafter(limit, torch.zeros_like(limit)))


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_FIRST, _SECOND = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)


def _mix(state: Tensor) -> Tensor:
    """The finaliser of SplitMix64."""
    state = (state ^ _shift(state, 30)) * _FIRST
    state = (state ^ _shift(state, 27)) * _SECOND
    return state ^ _shift(state, 31)


def _shift(state: Tensor, bits: int) -> Tensor:
    """Shift right as an unsigned number: int64's own copies the sign."""
    return (state >> bits) & ((1 << (64 - bits)) - 1)
