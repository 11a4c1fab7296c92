"""DPPO: the trust region as a divergence instead of a ratio (https://arxiv.org/abs/2602.04879)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import torch

from rl_algos.errors import OptionError
from rl_algos.ppo import clip_bounds
from rl_algos.registry import register_policy_loss
from rl_algos.token_loss import (
    PolicyLossOutput,
    Rows,
    TokenLoss,
    Weighting,
    clamp_log_ratio,
    evaluate,
)

if TYPE_CHECKING:
    from torch import Tensor

_EPSILON = 1e-8


@register_policy_loss("dppo_tv", anchored=True)
def compute_policy_loss_dppo_tv(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    *,
    clip_ratio: float | None = 0.15,
    clip_ratio_low: float | None = None,
    clip_ratio_high: float | None = None,
    clip_ratio_c: float = 20.0,
    **weighting: Unpack[Weighting],
) -> PolicyLossOutput:
    r"""Policy gradient with truncated ratio on tokens whose probability has not moved too far already.

        loss = -sg[min(r, c) keep] A log_prob
        keep: pi - pi_old <= high for A > 0,   pi - pi_old >= -low otherwise

    Bounds are on the (binary) total variation. Other arguments as for `vanilla`. Metrics: `pg_clipfrac` (not
    kept), `pg_clipfrac_lower` (kept and truncated), `ppo_kl`, `ratio_clampfrac`.
    """
    low, high = clip_bounds(clip_ratio, clip_ratio_low, clip_ratio_high)
    _check_cap(clip_ratio_c)

    def token_loss(rows: Rows) -> TokenLoss:
        moved = rows.anchor.exp() - rows.old_log_prob.exp()
        keep = torch.where(rows.advantages > 0, moved <= high, moved >= -low)
        return _kept_loss(rows, keep, clip_ratio_c)

    return evaluate(token_loss, old_log_prob, log_prob, advantages, response_mask, **weighting)


@register_policy_loss("dppo_kl", anchored=True)
def compute_policy_loss_dppo_kl(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    *,
    clip_ratio: float | None = 0.05,
    clip_ratio_low: float | None = None,
    clip_ratio_high: float | None = None,
    clip_ratio_c: float = 20.0,
    **weighting: Unpack[Weighting],
) -> PolicyLossOutput:
    r"""As `dppo_tv`, with bounds on the binary KL of the sampled token against all others.

    kl = q log(q / p) + (1 - q) log((1 - q) / (1 - p)),   q = pi_old, p = pi
    keep: kl <= high or p <= q for A > 0,   kl <= low or p >= q otherwise
    """
    low, high = clip_bounds(clip_ratio, clip_ratio_low, clip_ratio_high)
    _check_cap(clip_ratio_c)

    def token_loss(rows: Rows) -> TokenLoss:
        old, new = rows.old_log_prob, rows.anchor
        old_rest, new_rest = -torch.expm1(old), -torch.expm1(new)
        kl = old.exp() * (old - new) + old_rest * torch.log((old_rest + _EPSILON) / (new_rest + _EPSILON))
        keep = torch.where(rows.advantages > 0, (kl <= high) | (new <= old), (kl <= low) | (new >= old))
        return _kept_loss(rows, keep, clip_ratio_c)

    return evaluate(token_loss, old_log_prob, log_prob, advantages, response_mask, **weighting)


def _kept_loss(rows: Rows, keep: Tensor, cap: float) -> TokenLoss:
    log_ratio = rows.anchor - rows.old_log_prob
    ratio = clamp_log_ratio(log_ratio).exp()
    slope = -rows.advantages * ratio.clamp(max=cap) * keep
    metrics = rows.ratio_metrics(log_ratio)
    metrics["pg_clipfrac"] = rows.share(~keep)
    metrics["pg_clipfrac_lower"] = rows.share(keep & (ratio > cap))
    return TokenLoss(slope * rows.log_prob.detach(), metrics, slope)


def _check_cap(cap: float) -> None:
    if not cap > 0:
        raise OptionError(f"clip_ratio_c is {cap}, expected a positive number")
