"""From per-token rewards to one score per row, and back from one advantage per row to tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rl_algos.masking import moments
from rl_algos.validation import check_mask, check_tokens, compute_dtype

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Outcome:
    """Checked inputs of an outcome estimator.

    `scores` float64 `[B]`: the sum of the rewards on the row's selected tokens; `counted` bool `[B]`: the row
    has one; `mask` bool `[B, T]`; `dtype`: of the result.
    """

    scores: Tensor
    counted: Tensor
    mask: Tensor
    dtype: torch.dtype

    def to_tokens(self, advantages: Tensor) -> Tensor:
        """Spread one finite value per row `[B]` over its selected tokens; 0 elsewhere."""
        return self.mask.to(self.dtype).mul_(advantages.to(self.dtype)[:, None])


def outcome(token_level_rewards: Tensor, response_mask: Tensor) -> Outcome:
    """Check `[B, T]` rewards and mask and reduce them to one score per row."""
    shape = check_tokens(token_level_rewards=token_level_rewards)
    mask = check_mask(response_mask, shape)
    scores = selected_row_sums(token_level_rewards, mask)
    return Outcome(scores, mask.any(dim=1), mask, compute_dtype(token_level_rewards))


def selected_row_sums(x: Tensor, mask: Tensor) -> Tensor:
    """Sum of `x` `[B, T]` over each row's selected entries, float64 `[B]`."""
    return torch.where(mask, x, 0).sum(dim=1, dtype=torch.float64)


def whiten_rows(values: Tensor, mask: Tensor) -> Tensor:
    """Whiten one value per row `[B]` as if it stood on each of the row's selected tokens."""
    lengths = mask.sum(dim=1).double()
    present = values[lengths > 0]
    if present.numel() == 0 or bool(present.max() == present.min()):
        return torch.zeros_like(values)
    mean, variance = moments(values, lengths)
    return torch.where(lengths > 0, (values - mean) * torch.rsqrt(variance + 1e-8), 0)
