"""Metrics with a declared reduction, so that micro-batches and ranks reduce to what the whole batch would
give."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rl_algos.errors import OptionError
from rl_algos.masking import select
from rl_algos.validation import check_mask

Reduction = Literal["mean", "sum", "max", "min"]


@dataclass(frozen=True)
class Metric:
    """A value on its way to being reduced.

    `total` (scalar float64) is the sum for "mean" and "sum", the extreme for "max" and "min" (minus or plus
    infinity where nothing was counted); `count` (scalar float64) is how many entries it covers. Across ranks:
    add `total` and `count`; for "max" and "min" take the extreme of `total` and add `count`.
    """

    reduction: Reduction
    total: Tensor
    count: Tensor

    @classmethod
    def mean(cls, values: Tensor, mask: Tensor | None = None) -> Metric:
        """Mean of `values` (any shape) over the selected entries."""
        chosen = _chosen(values, mask)
        return cls("mean", chosen.sum().double(), _count(values, mask))

    @classmethod
    def sum(cls, values: Tensor, mask: Tensor | None = None) -> Metric:
        """Sum of `values` over the selected entries."""
        chosen = _chosen(values, mask)
        return cls("sum", chosen.sum().double(), _count(values, mask))

    @classmethod
    def max(cls, values: Tensor, mask: Tensor | None = None) -> Metric:
        """Maximum of `values` over the selected entries."""
        return cls("max", _extreme(values, mask, largest=True), _count(values, mask))

    @classmethod
    def min(cls, values: Tensor, mask: Tensor | None = None) -> Metric:
        """Minimum of `values` over the selected entries."""
        return cls("min", _extreme(values, mask, largest=False), _count(values, mask))

    @classmethod
    def mean_of_sum(cls, total: Tensor, count: Tensor) -> Metric:
        """Mean whose sum and count (scalars) are known already."""
        return cls("mean", total.detach().double(), count.detach().double())

    def merge(self, other: Metric) -> Metric:
        """Metric of both parts together."""
        if self.reduction != other.reduction:
            raise OptionError(
                f"cannot merge a metric reduced by {self.reduction} with one by {other.reduction}"
            )
        if self.reduction == "max":
            total = torch.maximum(self.total, other.total)
        elif self.reduction == "min":
            total = torch.minimum(self.total, other.total)
        else:
            total = self.total + other.total
        return Metric(self.reduction, total, self.count + other.count)

    def value(self) -> Tensor:
        """Return the reduced value, a scalar float64; NaN for a mean, maximum or minimum of nothing."""
        if self.reduction == "sum":
            return self.total
        nothing = self.count == 0
        reduced = self.total / self.count if self.reduction == "mean" else self.total
        return torch.where(nothing, torch.full_like(reduced, float("nan")), reduced)


def merge_metrics(parts: Iterable[Mapping[str, Metric]]) -> dict[str, Metric]:
    """Merge the metrics of micro-batches or ranks by name; a name may be missing in some parts."""
    merged: dict[str, Metric] = {}
    for part in parts:
        for name, metric in part.items():
            merged[name] = merged[name].merge(metric) if name in merged else metric
    return merged


def _chosen(values: Tensor, mask: Tensor | None) -> Tensor:
    values = values.detach()
    values = values if values.dtype == torch.float64 else values.float()
    return values if mask is None else select(values, check_mask(mask, values.shape, "mask"))


def _count(values: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return torch.tensor(float(values.numel()), dtype=torch.float64, device=values.device)
    return check_mask(mask, values.shape, "mask").count_nonzero().double()


def _extreme(values: Tensor, mask: Tensor | None, largest: bool) -> Tensor:
    nothing = float("-inf") if largest else float("inf")
    values = values.detach().double()
    if mask is not None:
        values = torch.where(check_mask(mask, values.shape, "mask"), values, nothing)
    if values.numel() == 0:
        return values.new_tensor(nothing)
    return values.max() if largest else values.min()
