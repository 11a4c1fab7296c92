"""Evaluation of a policy loss: row weights, blocks of rows, and the gradient beside the value.

With one weight per row a loss is a sum over rows, so it is evaluated on blocks of rows that fit the cache,
and each block's gradient is taken at once: what is kept for backward is one tensor, not the graph. (Second
derivatives are therefore not available.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypedDict

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rl_algos.aggregation import loss_weights
from rl_algos.errors import OptionError, ShapeError
from rl_algos.groups import GroupIndex
from rl_algos.masking import as_number, select
from rl_algos.metrics import Metric, merge_metrics
from rl_algos.validation import check_mask, check_rows, check_tokens, compute_dtype

LOG_RATIO_LIMIT = 20.0
_CPU_BLOCK_ELEMENTS = 1 << 16
_DEVICE_BLOCK_ELEMENTS = 1 << 24

PolicyLossOutput = tuple[Tensor, dict[str, Metric]]


class Weighting(TypedDict, total=False):
    """How a loss is weighted: optional keywords.

    `row_weights` `[B]`: these rows of `loss_weights(mask of the global mini-batch, ...)`. Or `loss_agg_mode`
    (with `norm_constant` or `prompt_index` where the mode needs it) when the given rows are the whole
    mini-batch. One of the two is required. `rollout_is_weights` `[B, T]`: importance weights that multiply
    each token's loss. `anchor` `[B, T]`: the log-probs at which stop-gradients stand; `log_prob` itself,
    detached, by default.
    """

    row_weights: Tensor | None
    loss_agg_mode: str | None
    norm_constant: float | None
    prompt_index: GroupIndex | None
    rollout_is_weights: Tensor | None
    anchor: Tensor | None


class LossBatch(Weighting):
    """Keywords with which every policy loss is called: its tensors, floating `[B, T]`, and `Weighting`.

    `old_log_prob`: of the policy that sampled; `log_prob`: of the one that learns, where the gradient goes;
    `response_mask`: bool, int or float; what lies under it has no influence and gradient exactly 0.
    """

    old_log_prob: Tensor
    log_prob: Tensor
    advantages: Tensor
    response_mask: Tensor


@dataclass(frozen=True)
class Rows:
    """A block of rows as a loss sees it: float32 or float64, and 0 wherever the mask is not set.

    `log_prob` carries the gradient; `anchor` is where stop-gradients stand; `keep` is the mask as 0 and 1.
    All `[b, T]`; `lengths` float `[b, 1]`.
    """

    log_prob: Tensor
    anchor: Tensor
    advantages: Tensor
    mask: Tensor
    keep: Tensor
    lengths: Tensor
    extras: Mapping[str, Tensor]
    unselected_old: Tensor

    @cached_property
    def old_log_prob(self) -> Tensor:
        """Log-probs of the policy that sampled, `[b, T]`; made on demand, as some losses read none."""
        return select(self.unselected_old.to(self.keep.dtype), self.mask)

    @property
    def log_ratio(self) -> Tensor:
        """`log_prob - old_log_prob`, unclamped, `[b, T]`."""
        return self.log_prob - self.old_log_prob

    @cached_property
    def anchor_ratio(self) -> Tensor:
        """Log-ratio at the anchor, unclamped, `[b, T]`."""
        return self.anchor - self.old_log_prob

    @cached_property
    def clamped_anchor_ratio(self) -> Tensor:
        """Log-ratio at the anchor, clamped, `[b, T]`."""
        return clamp_log_ratio(self.anchor_ratio)

    def row_mean(self, x: Tensor) -> Tensor:
        """Mean over a row's selected tokens, `[b, 1]`; 0 for a row without one. `x` is 0 under the mask."""
        return x.sum(dim=1, keepdim=True) / self.lengths.clamp(min=1)

    def mean(self, x: Tensor) -> Metric:
        """Mean of `x` `[b, T]`, which is 0 under the mask, over the selected tokens."""
        return Metric.mean_of_sum(x.detach().sum(), self.lengths.sum())

    def share(self, condition: Tensor) -> Metric:
        """Share of the selected tokens for which the bool `condition` `[b, T]` holds."""
        return Metric.mean_of_sum((condition & self.mask).count_nonzero(), self.lengths.sum())

    def ratio_metrics(self, log_ratio: Tensor, used: Tensor) -> dict[str, Metric]:
        """Metrics of the log-ratios, `[b, T]`, 0 under the mask, and of what the loss uses of them.

        `ppo_kl`: mean of minus what is used (clamped, unless the loss takes no exponential);
        `ratio_clampfrac`: share of log-ratios beyond plus or minus 20.
        """
        # Both are 0 under the mask, so neither sum nor count needs it again.
        beyond, tokens = log_ratio.detach().abs() > LOG_RATIO_LIMIT, self.lengths.sum()
        return {
            "ppo_kl": Metric.mean_of_sum(-used.detach().sum(), tokens),
            "ratio_clampfrac": Metric.mean_of_sum(beyond.count_nonzero(), tokens),
        }


@dataclass(frozen=True)
class TokenLoss:
    """What a loss returns for a block: loss `[b, T]`, metrics, and the gradient `[b, T]` where it is
    known."""

    loss: Tensor
    metrics: dict[str, Metric] = field(default_factory=dict)
    gradient: Tensor | None = None


def choose(condition: Tensor, yes: float, no: float, like: Tensor) -> Tensor:
    """Return `yes` where the condition holds and `no` elsewhere (both finite), in the dtype of `like`.

    By arithmetic, which is exact here and far faster on a CPU than `where`.
    """
    holds = as_number(condition, like.dtype)
    return (holds * yes).add_(1.0 - holds, alpha=no)


def clamp_log_ratio(log_ratio: Tensor) -> Tensor:
    """Clamp to plus or minus 20, so that its exponential is finite in float32; gradient 0 beyond."""
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def evaluate(
    token_loss: Callable[[Rows], TokenLoss],
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    *,
    extras: Mapping[str, Tensor] | None = None,
    row_weights: Tensor | None = None,
    loss_agg_mode: str | None = None,
    norm_constant: float | None = None,
    prompt_index: GroupIndex | None = None,
    rollout_is_weights: Tensor | None = None,
    anchor: Tensor | None = None,
) -> PolicyLossOutput:
    """Return `sum(where(mask, token_loss, 0) * row_weights)` with its gradient in `log_prob`, and the
    metrics.

    Tensors are floating `[B, T]`; `extras` are further `[B, T]` tensors, handed to the loss by name. The loss
    is a scalar, float32 or (where an input is float64) float64.
    """
    shape = check_tokens(
        old_log_prob=old_log_prob,
        log_prob=log_prob,
        advantages=advantages,
        rollout_is_weights=rollout_is_weights,
        anchor=anchor,
    )
    mask = check_mask(response_mask, shape)
    dtype = compute_dtype(old_log_prob, log_prob, advantages)
    row_weights = _given_or_made(row_weights, loss_agg_mode, norm_constant, prompt_index, mask, dtype)
    for name, tensor in (extras or {}).items():
        if tensor.shape != shape:
            raise ShapeError(f"{name} has shape {tuple(tensor.shape)}, expected {tuple(shape)}")
    with_gradient = torch.is_grad_enabled() and log_prob.requires_grad
    inputs: dict[str, Tensor | None] = {
        "log_prob": log_prob.detach(),
        "anchor": anchor,
        "unselected_old": old_log_prob.detach(),
        "advantages": advantages.detach(),
        "rollout_is_weights": rollout_is_weights,
        **{f"extras/{name}": tensor for name, tensor in (extras or {}).items()},
    }
    blocks = _Blocks(token_loss, inputs, mask, row_weights, dtype, with_gradient)
    loss, gradient, metrics = blocks.run()
    if gradient is not None:
        loss = _attach_gradient(log_prob, loss, gradient)
    return loss, metrics


def _given_or_made(
    row_weights: Tensor | None,
    mode: str | None,
    norm_constant: float | None,
    prompt_index: GroupIndex | None,
    mask: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """The caller's row weights, checked, or those of an aggregation over the given rows."""
    if row_weights is None and mode is not None:
        row_weights = loss_weights(
            mask, mode, norm_constant=norm_constant, prompt_index=prompt_index, dtype=dtype
        )
    elif row_weights is None or any(x is not None for x in (mode, norm_constant, prompt_index)):
        raise OptionError(
            "give either row_weights (a micro-batch's rows of loss_weights(global mask, mode)) or "
            "loss_agg_mode with what the mode needs (the given rows are the whole mini-batch), not both"
        )
    check_rows("row_weights", row_weights, mask.shape[0])
    return row_weights


@dataclass(frozen=True)
class _Blocks:
    token_loss: Callable[[Rows], TokenLoss]
    inputs: dict[str, Tensor | None]
    mask: Tensor
    weights: Tensor
    dtype: torch.dtype
    with_gradient: bool

    def run(self) -> tuple[Tensor, Tensor | None, dict[str, Metric]]:
        rows, width = self.mask.shape
        device = self.mask.device
        elements = _CPU_BLOCK_ELEMENTS if device.type == "cpu" else _DEVICE_BLOCK_ELEMENTS
        step = max(1, elements // max(1, width))
        gradient = torch.empty((rows, width), dtype=self.dtype, device=device) if self.with_gradient else None
        total = torch.zeros((), dtype=torch.float64, device=device)
        merged: dict[str, Metric] = {}
        # An empty batch is one empty block, so that its metrics are there.
        for start in range(0, max(rows, 1), step):
            part = slice(start, start + step)
            value, metrics = self._block(part, None if gradient is None else gradient[part])
            total += value
            # At once: many small tensors that live on would pin the blocks' freed memory between them.
            merged = merge_metrics((merged, metrics))
        return total.to(self.dtype), gradient, merged

    def _block(self, part: slice, gradient: Tensor | None) -> tuple[Tensor, dict[str, Metric]]:
        with torch.enable_grad() if self.with_gradient else torch.no_grad():
            rows, token_weights = self._rows(part)
            result = self.token_loss(rows)
            # Inputs are 0 under the mask, so the loss is finite there: a product selects.
            scale = rows.keep * self.weights[part].to(self.dtype)[:, None]
            scale = scale if token_weights is None else scale.mul_(token_weights)
            value = (result.loss * scale).sum()
            if gradient is not None and result.gradient is not None:
                torch.mul(result.gradient, scale, out=gradient)
            elif gradient is not None:
                (slope,) = torch.autograd.grad(value, rows.log_prob, allow_unused=True)
                gradient.copy_(torch.zeros_like(gradient) if slope is None else slope)
        return value.detach().double(), result.metrics

    def _rows(self, part: slice) -> tuple[Rows, Tensor | None]:
        mask = self.mask[part]
        cut: dict[str, Tensor] = {}
        extras: dict[str, Tensor] = {}
        for name, tensor in self.inputs.items():
            if tensor is None:
                continue
            piece = tensor[part]
            if piece.is_floating_point() and name != "unselected_old":
                piece = select(piece.detach().to(self.dtype), mask)
            if name.startswith("extras/"):
                extras[name.removeprefix("extras/")] = piece
            else:
                cut[name] = piece
        token_weights = cut.pop("rollout_is_weights", None)
        cut.setdefault("anchor", cut["log_prob"])
        if self.with_gradient:
            cut["log_prob"] = cut["log_prob"].detach().requires_grad_()
        keep = as_number(mask, self.dtype)
        lengths = keep.sum(dim=1, keepdim=True)
        return Rows(mask=mask, keep=keep, lengths=lengths, extras=extras, **cut), token_weights


def _attach_gradient(log_prob: Tensor, loss: Tensor, gradient: Tensor) -> Tensor:
    attached: Tensor = _KnownGradient.apply(log_prob, loss, gradient)  # type: ignore[no-untyped-call]
    return attached


class _KnownGradient(torch.autograd.Function):
    """A scalar whose gradient in its first input was computed along with it."""

    @staticmethod
    def forward(ctx: Any, log_prob: Tensor, loss: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        ctx.dtype = log_prob.dtype
        return loss.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        if grad_output.device.type == "cpu" and grad_output == 1:
            return gradient.to(ctx.dtype), None, None
        # Scaled before it is narrowed, so that a loss scale reaches half precision in time.
        return (gradient * grad_output).to(ctx.dtype), None, None
