"""Clip-Cov and KL-Cov: hold back the few tokens that drain entropy (https://arxiv.org/abs/2505.22617).

The tokens are chosen over the whole mini-batch, by a function of its own; the losses take the choice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Unpack

import torch
from torch import Tensor

from rl_algos.action_scan import row_blocks
from rl_algos.errors import DTypeError, OptionError
from rl_algos.masking import as_number, select
from rl_algos.ppo import bounded_loss, clip_bounds
from rl_algos.registry import register_policy_loss
from rl_algos.token_loss import LossBatch, PolicyLossOutput, Rows, TokenLoss, clamp_log_ratio, evaluate
from rl_algos.validation import check_mask, check_tokens, compute_dtype


def select_clip_cov_tokens(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    *,
    clip_ratio: float | None = 0.2,
    clip_ratio_low: float | None = None,
    clip_ratio_high: float | None = None,
    clip_cov_ratio: float = 0.0002,
    clip_cov_lb: float = 1.0,
    clip_cov_ub: float = 5.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""Choose Clip-Cov's tokens on the global mini-batch: a random few of those whose covariance is in
    bounds.

        cov_t = (A_t - mean A)(log_prob_t - mean log_prob),   lb < cov_t < ub, not clipped by PPO already

    Args:
        old_log_prob, log_prob, advantages: floating `[B, T]` of the global mini-batch.
        response_mask: `[B, T]`.
        clip_ratio, clip_ratio_low, clip_ratio_high: PPO's bounds, as in the loss.
        clip_cov_ratio: share of the selected tokens to choose, at least one token.
        clip_cov_lb, clip_cov_ub: open bounds on the covariance.
        generator: for the draw (CPU); the default one if None.

    Returns:
        bool `[B, T]`; cut it with the rows and pass it as `selected`.
    """
    low, high = clip_bounds(clip_ratio, clip_ratio_low, clip_ratio_high)
    _check_share("clip_cov_ratio", clip_cov_ratio)
    with torch.no_grad():
        mask = _checked_mask(log_prob, advantages, response_mask, old_log_prob)
        candidates = torch.zeros_like(mask)
        for part, covariance in _covariances(log_prob, advantages, mask):
            keep = mask[part]
            move = select(log_prob[part], keep) - select(old_log_prob[part], keep)
            ratio, gain = clamp_log_ratio(move).exp_(), select(advantages[part], keep)
            clipped = ((gain > 0) & (ratio > 1.0 + high)) | ((gain < 0) & (ratio < 1.0 - low))
            candidates[part] = keep & ~clipped & (covariance > clip_cov_lb) & (covariance < clip_cov_ub)
        places = candidates.flatten().nonzero()[:, 0]
        number = max(1, int(clip_cov_ratio * int(mask.count_nonzero())))
        drawn = torch.randperm(places.numel(), generator=generator)[:number].to(places.device)
        return _at(places[drawn], mask)


def select_kl_cov_tokens(
    log_prob: Tensor, advantages: Tensor, response_mask: Tensor, *, kl_cov_ratio: float = 0.0002
) -> Tensor:
    """Choose KL-Cov's tokens on the global mini-batch: the share with the largest covariance, at least one.

    Arguments and result as in `select_clip_cov_tokens`; with no token in the mask nothing is chosen.
    """
    _check_share("kl_cov_ratio", kl_cov_ratio)
    with torch.no_grad():
        mask = _checked_mask(log_prob, advantages, response_mask)
        number = max(1, int(int(mask.count_nonzero()) * kl_cov_ratio))
        values, places = [], []
        # The largest of each block, and of those the largest: nothing of the batch's size is sorted.
        for part, covariance in _covariances(log_prob, advantages, mask):
            hidden = 1.0 - as_number(mask[part], covariance.dtype)
            ranked = covariance.sub_(hidden, alpha=torch.finfo(covariance.dtype).max).flatten()
            best = ranked.topk(min(number, ranked.numel()))
            values.append(best.values)
            places.append(best.indices + part.start * mask.shape[1])
        if not mask.any():
            return torch.zeros_like(mask)
        return _at(torch.cat(places)[torch.cat(values).topk(number).indices], mask)


@register_policy_loss("clip_cov")
def compute_policy_loss_clip_cov(
    *,
    selected: Tensor,
    clip_ratio: float | None = 0.2,
    clip_ratio_low: float | None = None,
    clip_ratio_high: float | None = None,
    **batch: Unpack[LossBatch],
) -> PolicyLossOutput:
    r"""PPO's clipped surrogate (without dual clip) with the chosen tokens taken out of it.

        loss = max(-A r, -A clip(r, 1 - low, 1 + high)),   0 for chosen tokens

    Args:
        selected: bool `[B, T]`: these rows of `select_clip_cov_tokens(global mini-batch)`.

    Other arguments as for `vanilla`. Metrics: `cov_clipfrac` (chosen tokens), `pg_clipfrac`, `ppo_kl`,
    `ratio_clampfrac`.
    """
    low, high = clip_bounds(clip_ratio, clip_ratio_low, clip_ratio_high)
    _check_selected(selected)

    def token_loss(rows: Rows) -> TokenLoss:
        selected = rows.extras["selected"]
        result = bounded_loss(rows, rows.log_ratio.detach(), low, high)
        assert result.gradient is not None
        metrics = {**result.metrics, "cov_clipfrac": rows.share(selected)}
        free = as_number(~selected, result.loss.dtype)
        return TokenLoss(result.loss * free, metrics, result.gradient * free)

    return evaluate(token_loss, extras={"selected": selected}, **batch)


@register_policy_loss("kl_cov")
def compute_policy_loss_kl_cov(
    *,
    selected: Tensor,
    ppo_kl_coef: float = 1.0,
    **batch: Unpack[LossBatch],
) -> PolicyLossOutput:
    r"""Unclipped surrogate with a penalty on the chosen tokens.

        loss = -A r,   plus ppo_kl_coef |log_prob - old_log_prob| for chosen tokens

    Args:
        selected: bool `[B, T]`: these rows of `select_kl_cov_tokens(global mini-batch)`.

    Other arguments as for `vanilla`. Metrics: `cov_klfrac` (chosen tokens), `ppo_kl`, `ppo_kl_abs`,
    `ratio_clampfrac`.
    """
    _check_selected(selected)

    def token_loss(rows: Rows) -> TokenLoss:
        raw = rows.log_ratio.detach()
        log_ratio = clamp_log_ratio(raw)
        chosen = rows.extras["selected"]
        penalty = as_number(chosen, raw.dtype).mul_(ppo_kl_coef)
        surrogate = rows.advantages * log_ratio.exp()
        loss = penalty * log_ratio.abs() - surrogate
        slope = (penalty * raw.sign()).sub_(surrogate).mul_(as_number(log_ratio == raw, raw.dtype))
        metrics = rows.ratio_metrics(raw, log_ratio)
        metrics["ppo_kl_abs"] = rows.mean(raw.abs())
        metrics["cov_klfrac"] = rows.share(chosen)
        return TokenLoss(loss, metrics, slope)

    return evaluate(token_loss, extras={"selected": selected}, **batch)


def _checked_mask(
    log_prob: Tensor, advantages: Tensor, response_mask: Tensor, old_log_prob: Tensor | None = None
) -> Tensor:
    shape = check_tokens(log_prob=log_prob, advantages=advantages, old_log_prob=old_log_prob)
    return check_mask(response_mask, shape)


def _covariances(log_prob: Tensor, advantages: Tensor, mask: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield blocks of rows with their tokens' covariance; meaningless under the mask."""
    dtype = compute_dtype(log_prob, advantages)
    tokens = mask.count_nonzero().clamp(min=1)

    def mean(x: Tensor) -> Tensor:
        parts = [select(x[part].to(dtype), mask[part]).sum() for part in row_blocks(mask)]
        return torch.stack(parts).sum() / tokens if parts else tokens.to(dtype)

    mean_gain, mean_log_p = mean(advantages), mean(log_prob)
    for part in row_blocks(mask):
        gain, log_p = (select(x[part].to(dtype), mask[part]) for x in (advantages, log_prob))
        yield part, gain.sub_(mean_gain).mul_(log_p.sub_(mean_log_p))


def _at(places: Tensor, mask: Tensor) -> Tensor:
    chosen = torch.zeros(mask.numel(), dtype=torch.bool, device=mask.device)
    chosen[places] = True
    return chosen.view(mask.shape)


def _check_share(name: str, share: float) -> None:
    if not 0 < share <= 1:
        raise OptionError(f"{name} is {share}, expected a share above 0 and at most 1")


def _check_selected(selected: Tensor) -> None:
    if selected.dtype != torch.bool:
        raise DTypeError(f"selected has dtype {selected.dtype}, expected bool")
