"""From scores to advantages, on the driver."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from rl_algos import get_adv_estimator_fn, kl_penalty

from .config import AlgorithmConfig
from .errors import ConfigError
from .metrics import Metrics

VALUE_ESTIMATORS = frozenset({"gae"})


def needs_values(estimator: str) -> bool:
    """Whether an estimator reads a critic's values."""
    return estimator in VALUE_ESTIMATORS


def place_scores(scores: torch.Tensor, response_mask: torch.Tensor) -> torch.Tensor:
    """Put each row's score on its last trainable token.

    Args:
        scores: `[B]` float; a row without a trainable token has nowhere to put it.
        response_mask: `[B, R]`.

    Returns:
        `[B, R]` float32, zero elsewhere.
    """
    mask = response_mask.bool()
    last = mask & (mask.flip(1).long().cumsum(1).flip(1) == 1)
    return torch.where(last, scores.float()[:, None], 0.0)


def apply_kl_penalty(
    token_level_scores: torch.Tensor,
    old_log_probs: torch.Tensor,
    ref_log_prob: torch.Tensor,
    response_mask: torch.Tensor,
    kl_coef: float,
    estimator: str,
) -> tuple[torch.Tensor, Metrics]:
    """Rewards = scores - kl_coef * KL(policy || reference), per token `[B, R]` (Ziegler et al. 2019)."""
    mask = response_mask.bool()
    kl = kl_penalty(old_log_probs, ref_log_prob, estimator)
    rewards = torch.where(mask, token_level_scores - kl_coef * kl, 0.0)
    mean = kl[mask].double().mean().item() if mask.any() else 0.0
    return rewards, {"actor/reward_kl_penalty": mean, "actor/reward_kl_penalty_coeff": kl_coef}


def compute_advantages(config: AlgorithmConfig, tensors: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Call the configured estimator with what it names.

    Args:
        config: which estimator, and its options.
        tensors: `token_level_rewards response_mask` `[B, R]`, `index` (prompt of each row), and whatever
            else estimators may name (`values`, `old_log_probs`, ...).

    Returns:
        Advantages and returns, `[B, R]` float32.

    Raises:
        ConfigError: the estimator needs something that this configuration does not make.
    """
    estimator = get_adv_estimator_fn(config.adv_estimator)
    offered = {
        **tensors,
        "gamma": config.gamma,
        "lam": config.lam,
        "norm_adv_by_std_in_grpo": config.norm_adv_by_std_in_grpo,
    }
    parameters = inspect.signature(estimator).parameters.values()
    missing = [p.name for p in parameters if p.default is p.empty and p.name not in offered]
    if missing:
        raise ConfigError(
            f"algorithm.adv_estimator={config.adv_estimator} needs {', '.join(missing)}, which this "
            "configuration does not make"
        )
    return estimator(**{p.name: offered[p.name] for p in parameters if p.name in offered})
