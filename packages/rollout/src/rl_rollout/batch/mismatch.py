"""How far the engine's log-probs are from the trainer's: the health of the on-policy assumption."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rl_rollout.errors import LogProbSpaceError, RolloutDataError

_CLAMP = 20.0


def mismatch_metrics(engine: Tensor, trainer: Tensor, mask: Tensor) -> dict[str, float]:
    """Compare log-probs [B, R] of the same tokens where `mask` [B, R] is set.

    `mismatch/logprob_diff/mean` and `/max` of the absolute difference; `mismatch/k3_kl`, the k3 estimate
    of KL(engine || trainer) on tokens the engine drew (Schulman 2020), log-ratios clamped to +-20 with
    `mismatch/clamped_share` saying how many were; `mismatch/prob_correlation`, Pearson's r of the
    probabilities (nan where it is undefined). Empty where no token is set.
    """
    if engine.shape != trainer.shape or engine.shape != mask.shape:
        raise RolloutDataError(
            f"engine {tuple(engine.shape)}, trainer {tuple(trainer.shape)} and mask {tuple(mask.shape)}: "
            "all three must be [B, R]"
        )
    keep = mask.bool()
    ours, theirs = engine[keep].double(), trainer[keep].double()
    if ours.numel() == 0:
        return {}
    difference = (theirs - ours).abs()
    log_ratio = (theirs - ours).clamp(-_CLAMP, _CLAMP)
    pair = torch.stack([ours.exp(), theirs.exp()])
    correlation = torch.corrcoef(pair)[0, 1] if ours.numel() > 1 else torch.tensor(torch.nan)
    return {
        "mismatch/logprob_diff/mean": difference.mean().item(),
        "mismatch/logprob_diff/max": difference.max().item(),
        "mismatch/k3_kl": (log_ratio.exp() - 1 - log_ratio).mean().item(),
        "mismatch/clamped_share": (difference > _CLAMP).double().mean().item(),
        "mismatch/prob_correlation": correlation.item(),
    }


def check_logprob_space(declared: Mapping[str, Any], temperature: float) -> None:
    """Raise LogProbSpaceError unless log-probs declared by a rollout compare with a trainer's that divides
    its logits by `temperature` and truncates nothing."""
    if declared["temperature"] != temperature:
        raise LogProbSpaceError(
            f"the rollout's log-probs are at temperature {declared['temperature']}, the trainer's at "
            f"{temperature}: give both the same (-1 means that rows differ)"
        )
    if declared["top_p"] != 1.0 or declared["top_k"] > 0:
        raise LogProbSpaceError(
            f"the rollout's log-probs are renormalised under top_p={declared['top_p']}, "
            f"top_k={declared['top_k']}: a trainer that truncates nothing has others; train without them"
        )
