"""How far the trainer's log-probs are from those of the engine that sampled the tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_algos.masking import select
from rl_algos.metrics import Metric
from rl_algos.token_loss import LOG_RATIO_LIMIT, clamp_log_ratio
from rl_algos.validation import check_mask, check_tokens, compute_dtype


def rollout_mismatch_metrics(
    old_log_prob: Tensor, rollout_log_prob: Tensor, response_mask: Tensor
) -> dict[str, Metric]:
    r"""Metrics of the mismatch, with d = old_log_prob - rollout_log_prob (trainer minus engine):

    - `kl`: mean of -d, the engine's KL to the trainer by k1; `k3_kl`: mean of exp(d) - 1 - d
    - `training_log_ppl`, `rollout_log_ppl`, `training_ppl`, `rollout_ppl`: mean over rows of the row's
      mean negative log-prob, and of its exponential
    - `log_ppl_diff` (engine's log-prob minus trainer's), `log_ppl_abs_diff`, `log_ppl_diff_max`,
      `log_ppl_diff_min`, `ppl_ratio`
    - `chi2_token`: mean of exp(d)^2 - 1; `chi2_seq`: the same of each row's product of ratios
    - `probs_diff_max`, `probs_diff_mean`: absolute difference of the probabilities
    - `log_prob_diff_mean`, `log_prob_diff_max`: of |d|; `ratio_clampfrac`: share of |d| beyond 20

    Tokens under the mask and rows without a token count nowhere. Exponents are clamped to plus or minus 20.

    Args:
        old_log_prob, rollout_log_prob: floating `[B, T]` in one space (temperature, truncation).
        response_mask: `[B, T]`.
    """
    shape = check_tokens(old_log_prob=old_log_prob, rollout_log_prob=rollout_log_prob)
    mask = check_mask(response_mask, shape)
    dtype = compute_dtype(old_log_prob, rollout_log_prob)
    with torch.no_grad():
        trainer = select(old_log_prob.to(dtype), mask)
        engine = select(rollout_log_prob.to(dtype), mask)
        return {**_token_metrics(trainer, engine, mask), **_row_metrics(trainer, engine, mask)}


def _token_metrics(trainer: Tensor, engine: Tensor, mask: Tensor) -> dict[str, Metric]:
    difference = trainer - engine
    bounded = clamp_log_ratio(difference)
    distance = difference.abs()
    probability = (trainer.exp() - engine.exp()).abs()
    return {
        "kl": Metric.mean(-difference, mask),
        "k3_kl": Metric.mean(torch.expm1(bounded) - difference, mask),
        "chi2_token": Metric.mean(torch.expm1(2.0 * bounded), mask),
        "probs_diff_max": Metric.max(probability, mask),
        "probs_diff_mean": Metric.mean(probability, mask),
        "log_prob_diff_mean": Metric.mean(distance, mask),
        "log_prob_diff_max": Metric.max(distance, mask),
        "ratio_clampfrac": Metric.mean((distance > LOG_RATIO_LIMIT).float(), mask),
    }


def _row_metrics(trainer: Tensor, engine: Tensor, mask: Tensor) -> dict[str, Metric]:
    lengths = mask.sum(dim=1)
    present = lengths > 0
    trainer_log_ppl = -trainer.sum(dim=1) / lengths.clamp(min=1)
    engine_log_ppl = -engine.sum(dim=1) / lengths.clamp(min=1)
    difference = trainer_log_ppl - engine_log_ppl
    log_product = (trainer - engine).sum(dim=1).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return {
        "training_log_ppl": Metric.mean(trainer_log_ppl, present),
        "rollout_log_ppl": Metric.mean(engine_log_ppl, present),
        "training_ppl": Metric.mean(trainer_log_ppl.exp(), present),
        "rollout_ppl": Metric.mean(engine_log_ppl.exp(), present),
        "log_ppl_diff": Metric.mean(difference, present),
        "log_ppl_abs_diff": Metric.mean(difference.abs(), present),
        "log_ppl_diff_max": Metric.max(difference, present),
        "log_ppl_diff_min": Metric.min(difference, present),
        "ppl_ratio": Metric.mean(difference.exp(), present),
        "chi2_seq": Metric.mean(torch.expm1(2.0 * log_product), present),
    }
