"""From per-token rewards to one score per row, and back from one advantage per row to tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rl_algos.action_scan import row_blocks
from rl_algos.masking import moments, select
from rl_algos.validation import check_finite_rows, check_mask, check_tokens, compute_dtype

_ELEMENTS = 1 << 18


@dataclass(frozen=True)
class Outcome:
    """Checked inputs of an outcome estimator.

    `scores` float64 `[B]`: the sum of the rewards on the row's selected tokens; `lengths` float64 `[B]`:
    their number. `mask` bool `[B, T]`; `dtype` that of the result.
    """

    scores: Tensor
    lengths: Tensor
    mask: Tensor
    dtype: torch.dtype

    @property
    def counted(self) -> Tensor:
        """Bool `[B]`: rows with at least one selected token."""
        return self.lengths > 0

    def to_tokens(self, advantages: Tensor) -> Tensor:
        """Spread one value per row `[B]` over its selected tokens, 0 elsewhere."""
        column = advantages.to(self.dtype)[:, None]
        check_finite_rows("the advantage", column, self.counted)
        out = torch.empty(self.mask.shape, dtype=self.dtype, device=self.mask.device)
        for part in row_blocks(self.mask, _ELEMENTS):
            out[part].copy_(self.mask[part].view(torch.uint8)).mul_(column[part])
        return out


def outcome(token_level_rewards: Tensor, response_mask: Tensor) -> Outcome:
    """Check `[B, T]` rewards and mask and reduce them to one score per row."""
    mask = check_mask(response_mask, check_tokens(token_level_rewards=token_level_rewards))
    dtype = compute_dtype(token_level_rewards)
    scores, lengths = torch.empty((2, mask.shape[0]), dtype=dtype, device=mask.device)
    scratch: Tensor | None = None
    for part in row_blocks(mask, _ELEMENTS):
        # One scratch block, reused while it lies in the cache: the rewards are read once, nothing is kept.
        selected = mask[part].view(torch.uint8)
        scratch = selected.to(dtype) if scratch is None else scratch[: len(selected)].copy_(selected)
        torch.sum(scratch, dim=1, out=lengths[part])
        torch.sum(scratch.mul_(token_level_rewards[part]), dim=1, out=scores[part])
    # A product lets NaN and infinity through from under the mask; rows that show it are summed by selection.
    tainted = ~scores.isfinite()
    if bool(tainted.any()):
        scores[tainted] = select(token_level_rewards[tainted].to(dtype), mask[tainted]).sum(dim=1)
    return Outcome(scores.double(), lengths.double(), mask, dtype)


def whiten_rows(values: Tensor, lengths: Tensor) -> Tensor:
    """Whiten one value per row, float64 `[B]`, as if it stood on each of the row's `lengths` `[B]` tokens."""
    present = values[lengths > 0]
    if present.numel() == 0 or bool(present.max() == present.min()):
        return torch.zeros_like(values)
    mean, variance = moments(values, lengths)
    return torch.where(lengths > 0, (values - mean) * torch.rsqrt(variance + 1e-8), 0)
