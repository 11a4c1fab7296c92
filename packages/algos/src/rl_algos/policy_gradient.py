"""Policy gradients with a stopped weight, `-sg[w] A log_prob`: what differs is the weight.

REINFORCE: Williams 1992. GPG: Chu et al. 2025, https://arxiv.org/abs/2504.02546. CISPO: MiniMax 2025,
https://arxiv.org/abs/2506.13585. DPPO: https://arxiv.org/abs/2602.04879. TOPR: Le Roux et al. 2025,
https://arxiv.org/abs/2503.14286. VESPO: https://arxiv.org/abs/2602.10693. DRO, which adds a penalty to it:
https://arxiv.org/abs/2405.19107.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from rl_algos.errors import OptionError
from rl_algos.masking import as_number
from rl_algos.metrics import Metric
from rl_algos.ppo import clip_bounds
from rl_algos.registry import register_policy_loss
from rl_algos.token_loss import (
    LossBatch,
    PolicyLossOutput,
    Rows,
    TokenLoss,
    choose,
    clamp_log_ratio,
    evaluate,
)

_EPSILON = 1e-8


def weighted(rows: Rows, weight: Tensor, **metrics: Metric) -> TokenLoss:
    """Per-token `-sg[w] A log_prob` with its gradient `-w A` and the metrics of the ratio at the anchor.

    `weight` `[b, T]` or `[b, 1]` is finite wherever inputs are.
    """
    slope = (weight * rows.advantages).neg_()
    ratio_metrics = rows.ratio_metrics(rows.anchor_ratio, rows.clamped_anchor_ratio)
    return TokenLoss(slope * rows.log_prob.detach(), {**ratio_metrics, **metrics}, slope)


@register_policy_loss("reinforce")
def compute_policy_loss_reinforce(**batch: Unpack[LossBatch]) -> PolicyLossOutput:
    """`-A log_prob`, the plain policy gradient; pass `rollout_is_weights` for samples of another policy.

    Arguments as for `vanilla`; `old_log_prob` serves the metrics `ppo_kl` and `ratio_clampfrac` only.
    """

    def token_loss(rows: Rows) -> TokenLoss:
        slope = -rows.advantages
        metrics = rows.ratio_metrics(rows.log_ratio, rows.log_ratio)
        return TokenLoss(slope * rows.log_prob.detach(), metrics, slope)

    return evaluate(token_loss, **batch)


@register_policy_loss("gpg")
def compute_policy_loss_gpg(**batch: Unpack[LossBatch]) -> PolicyLossOutput:
    """GPG's loss, `-A log_prob`: the policy gradient without ratio or clip. Arguments as for `vanilla`.

    `old_log_prob` is not read, and there are no metrics: `reinforce` is the same loss with them.
    """

    def token_loss(rows: Rows) -> TokenLoss:
        slope = -rows.advantages
        return TokenLoss(slope * rows.log_prob.detach(), gradient=slope)

    return evaluate(token_loss, **batch)


@register_policy_loss("cispo", anchored=True)
def compute_policy_loss_cispo(
    *,
    clip_ratio: float | None = None,
    clip_ratio_low: float | None = None,
    clip_ratio_high: float | None = None,
    **batch: Unpack[LossBatch],
) -> PolicyLossOutput:
    r"""CISPO: policy gradient weighted by the clipped ratio; no token's gradient is dropped.

        loss = -sg[clip(r, 1 - low, 1 + high)] A log_prob

    Bounds are distances from 1 (an absolute cap c is `clip_ratio_high=c - 1`), 1 and 4 if none is given.
    Other arguments as for `vanilla`. Metrics: `pg_clipfrac`, `ppo_kl`, `ratio_clampfrac`.
    """
    low, high = clip_bounds(clip_ratio, clip_ratio_low, clip_ratio_high, (1.0, 4.0))

    def token_loss(rows: Rows) -> TokenLoss:
        ratio = rows.clamped_anchor_ratio.exp()
        weight = ratio.clamp(1.0 - low, 1.0 + high)
        return weighted(rows, weight, pg_clipfrac=rows.share(weight != ratio))

    return evaluate(token_loss, **batch)


@register_policy_loss("dppo_tv", anchored=True)
def compute_policy_loss_dppo_tv(
    *,
    clip_ratio: float | None = 0.15,
    clip_ratio_low: float | None = None,
    clip_ratio_high: float | None = None,
    clip_ratio_c: float = 20.0,
    **batch: Unpack[LossBatch],
) -> PolicyLossOutput:
    r"""DPPO, the trust region as a divergence: no gradient for tokens whose probability has moved too far.

        loss = -sg[min(r, c) keep] A log_prob
        keep: pi - pi_old <= high for A > 0,   pi - pi_old >= -low otherwise

    Bounds are on the (binary) total variation. Other arguments as for `vanilla`. Metrics: `pg_clipfrac` (not
    kept), `pg_clipfrac_lower` (kept and truncated), `ppo_kl`, `ratio_clampfrac`.
    """
    low, high = clip_bounds(clip_ratio, clip_ratio_low, clip_ratio_high)
    _check_cap(clip_ratio_c)

    def token_loss(rows: Rows) -> TokenLoss:
        moved = rows.anchor.exp() - rows.old_log_prob.exp()
        return _kept(rows, _by_sign(rows.advantages, moved <= high, moved >= -low), clip_ratio_c)

    return evaluate(token_loss, **batch)


@register_policy_loss("dppo_kl", anchored=True)
def compute_policy_loss_dppo_kl(
    *,
    clip_ratio: float | None = 0.05,
    clip_ratio_low: float | None = None,
    clip_ratio_high: float | None = None,
    clip_ratio_c: float = 20.0,
    **batch: Unpack[LossBatch],
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
        keep = _by_sign(rows.advantages, (kl <= high) | (new <= old), (kl <= low) | (new >= old))
        return _kept(rows, keep, clip_ratio_c)

    return evaluate(token_loss, **batch)


@register_policy_loss("topr", anchored=True, sequence_level=True)
def compute_policy_loss_topr(
    *,
    positive_low: float = 1.0,
    positive_high: float = 1.0,
    negative_low: float = 0.0,
    negative_high: float = 1.0,
    **batch: Unpack[LossBatch],
) -> PolicyLossOutput:
    r"""Tapered off-policy REINFORCE: full weight for good samples, tapered for bad ones.

        loss = -sg[clip(R, low, high)] A log_prob,   R = exp(sum over the row of log_prob - old_log_prob)

    with one pair of bounds for A >= 0 and one for A < 0. The defaults are the paper's: good samples are
    imitated with weight 1, bad ones pushed away with at most their importance weight. Other arguments as for
    `vanilla`. Metrics: `pg_clipfrac` (tokens whose weight was clipped), `ppo_kl`, `ratio_clampfrac`.
    """
    if not (0 <= positive_low <= positive_high and 0 <= negative_low <= negative_high):
        raise OptionError("TOPR's bounds must satisfy 0 <= low <= high, for both signs")

    def token_loss(rows: Rows) -> TokenLoss:
        ratio = _log_product(rows).exp()
        good, bad = ratio.clamp(positive_low, positive_high), ratio.clamp(negative_low, negative_high)
        weight = torch.where(rows.advantages >= 0, good, bad)
        return weighted(rows, weight, pg_clipfrac=rows.share(weight != ratio))

    return evaluate(token_loss, **batch)


@register_policy_loss("vespo", anchored=True, sequence_level=True)
def compute_policy_loss_vespo(
    *,
    k_pos: float = 2.0,
    lambda_pos: float = 3.0,
    k_neg: float = 3.0,
    lambda_neg: float = 2.0,
    **batch: Unpack[LossBatch],
) -> PolicyLossOutput:
    r"""VESPO: a gamma-shaped function of the sequence's ratio as weight, 1 at ratio 1.

        loss = -sg[phi(W)] A log_prob,   phi(W) = W^k exp(lambda (1 - W)),   W = product of the row's ratios

    with (k, lambda) by the sign of A. Log-ratios are clamped to plus or minus 20, per token and in sum. Other
    arguments as for `vanilla`. Metrics: `weight_mean`, `ppo_kl`, `ratio_clampfrac`.
    """
    if min(k_pos, k_neg, lambda_pos, lambda_neg) < 0:
        raise OptionError("VESPO's k and lambda must not be negative")

    def token_loss(rows: Rows) -> TokenLoss:
        log_w, positive = _log_product(rows), rows.advantages >= 0
        k = choose(positive, k_pos, k_neg, log_w)
        rate = choose(positive, lambda_pos, lambda_neg, log_w)
        weight = (k * log_w + rate * (1.0 - log_w.exp())).exp()
        return weighted(rows, weight, weight_mean=rows.mean(weight * rows.keep))

    return evaluate(token_loss, **batch)


@register_policy_loss("dro")
def compute_policy_loss_dro(
    *,
    dro_beta: float = 0.5,
    **batch: Unpack[LossBatch],
) -> PolicyLossOutput:
    r"""DRO: policy gradient with a quadratic penalty on the log-ratio; needs no on-policy samples.

        loss = -A log_prob + beta / 2 (log_prob - old_log_prob)^2

    `dro_beta` positive. Other arguments as for `vanilla`. Metrics: `ppo_kl`, `ratio_clampfrac`.
    """
    if not dro_beta > 0:
        raise OptionError(f"dro_beta is {dro_beta}, expected a positive number")

    def token_loss(rows: Rows) -> TokenLoss:
        log_prob = rows.log_prob.detach()
        log_ratio = log_prob - rows.old_log_prob
        slope = (dro_beta * log_ratio).sub_(rows.advantages)
        loss = 0.5 * dro_beta * log_ratio.square() - rows.advantages * log_prob
        return TokenLoss(loss, rows.ratio_metrics(log_ratio, log_ratio), slope)

    return evaluate(token_loss, **batch)


def _by_sign(advantages: Tensor, positive: Tensor, other: Tensor) -> Tensor:
    """Choose between two bool tensors by the sign (as `where`, which is far slower on a CPU)."""
    above = advantages > 0
    return (above & positive) | (other & ~above)


def _kept(rows: Rows, keep: Tensor, cap: float) -> TokenLoss:
    ratio = rows.clamped_anchor_ratio.exp()
    return weighted(
        rows,
        ratio.clamp(max=cap).mul_(as_number(keep, ratio.dtype)),
        pg_clipfrac=rows.share(~keep),
        pg_clipfrac_lower=rows.share(keep & (ratio > cap)),
    )


def _check_cap(cap: float) -> None:
    if not cap > 0:
        raise OptionError(f"clip_ratio_c is {cap}, expected a positive number")


def _log_product(rows: Rows) -> Tensor:
    """Sum over the row of the log-ratio at the anchor, `[b, 1]`; clamped per token and in sum."""
    return clamp_log_ratio(rows.clamped_anchor_ratio.sum(dim=1, keepdim=True))
