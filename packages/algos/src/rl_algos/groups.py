"""Statistics per group (prompt) by scatter over integer codes; float64, any row order, any group sizes."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rl_algos.errors import DTypeError, ShapeError
from rl_algos.validation import check_finite_rows

GroupIndex = Tensor | Sequence[Hashable] | Any
"""One id per row: a tensor `[B]`, a list, or a numpy array (also of objects). Equal ids make a group."""


def group_codes(index: GroupIndex, rows: int) -> tuple[Tensor, int]:
    """Return int64 codes `[B]` in 0 ... G - 1 and the number of groups G; ids are compared exactly.

    "1" and "01" are two groups, as are 0.1 and 0.2. NaN is no id. The codes' order means nothing.
    """
    if isinstance(index, Tensor):
        return _tensor_codes(index, rows)
    ids = index.tolist() if hasattr(index, "tolist") else list(index)
    if len(ids) != rows:
        raise ShapeError(f"index has {len(ids)} ids, expected {rows}: one per row")
    table: dict[Hashable, int] = {}
    try:
        codes = [table.setdefault(key, len(table)) for key in ids]
    except TypeError as error:
        raise DTypeError(
            "index holds an id that cannot be hashed: use strings, integers or tuples"
        ) from error
    if any(key != key for key in table):
        raise DTypeError("index holds NaN, which is equal to nothing and so names no group")
    return torch.tensor(codes, dtype=torch.int64), len(table)


def pair_codes(first: Tensor, second: Tensor) -> tuple[Tensor, int]:
    """Return codes of the pairs of two codings `[B]` of non-negative integers, and the number of pairs."""
    width = int(second.max()) + 1 if second.numel() else 1
    unique, codes = torch.unique(first * width + second, return_inverse=True)
    return codes, unique.numel()


def _tensor_codes(index: Tensor, rows: int) -> tuple[Tensor, int]:
    if index.shape != (rows,):
        raise ShapeError(f"index has shape {tuple(index.shape)}, expected ({rows},): one id per row")
    if index.is_floating_point() and bool(torch.isnan(index).any()):
        raise DTypeError("index holds NaN, which is equal to nothing and so names no group")
    unique, codes = torch.unique(index, return_inverse=True)
    return codes, unique.numel()


@dataclass(frozen=True)
class GroupStats:
    """Per-group statistics of one score per row; rows with `counted` False are in none of them.

    `codes` int64 `[B]`; `counted` bool `[B]`; `count, total, low, high` float64 `[G]`.
    """

    codes: Tensor
    counted: Tensor
    scores: Tensor
    count: Tensor
    total: Tensor
    low: Tensor
    high: Tensor

    @property
    def informative(self) -> Tensor:
        """Bool `[B]`: the row counts and its group holds two different scores."""
        return self.counted & (self.high > self.low)[self.codes]

    @property
    def mean(self) -> Tensor:
        """Mean per group, `[G]`."""
        return self.total / self.count.clamp(min=1)

    @property
    def std(self) -> Tensor:
        """Unbiased (n - 1) standard deviation per group, `[G]`; 0 for groups of one or none."""
        deviation = torch.where(self.counted, self.scores - self.mean[self.codes], 0)
        squares = torch.zeros_like(self.total).index_add_(0, self.codes, deviation * deviation)
        return (squares / (self.count - 1).clamp(min=1)).sqrt()

    def relative(self, epsilon: float | None = None) -> Tensor:
        """Score minus its group's mean, `[B]`, divided by the standard deviation plus `epsilon` if given."""
        centred = self.scores - self.mean[self.codes]
        return centred if epsilon is None else centred / (self.std[self.codes] + epsilon)

    def sum_of(self, values: Tensor) -> Tensor:
        """Sum `[G]` of `values` `[B]` over the counted rows."""
        return torch.zeros_like(self.total).index_add_(
            0, self.codes, torch.where(self.counted, values.double(), 0)
        )


def informative_groups(outcomes: Tensor, index: GroupIndex, counted: Tensor | None = None) -> Tensor:
    """Bool `[B]`: rows of groups that hold two different raw outcomes (DAPO's dynamic sampling keeps these).

    `outcomes` `[B]` are the raw scores, before any shaping: a penalty would make every group look
    informative. `counted` bool `[B]` leaves rows out of the decision, and out of the result.
    """
    if counted is None:
        counted = torch.ones_like(outcomes, dtype=torch.bool)
    return group_stats(outcomes, index, counted).informative


def group_stats(scores: Tensor, index: GroupIndex, counted: Tensor) -> GroupStats:
    """Statistics of `scores` `[B]` per group of `index`, over the rows where `counted` (bool `[B]`) is set.

    Raises:
        NonFiniteError: a score that counts is NaN or infinite.
    """
    codes, groups = group_codes(index, scores.shape[0])
    codes = codes.to(scores.device)
    check_finite_rows("the score", scores, counted)
    scores = torch.where(counted, scores.double(), 0)
    total = scores.new_zeros(groups).index_add_(0, codes, scores)
    count = scores.new_zeros(groups).index_add_(0, codes, counted.double())
    low = scores.new_full((groups,), float("inf"))
    high = scores.new_full((groups,), float("-inf"))
    low = low.scatter_reduce_(0, codes, torch.where(counted, scores, float("inf")), "amin")
    high = high.scatter_reduce_(0, codes, torch.where(counted, scores, float("-inf")), "amax")
    return GroupStats(codes, counted, scores, count, total, low, high)
