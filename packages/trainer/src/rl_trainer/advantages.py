"""From rewards to advantages, on the driver: the configured estimator gets what it names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from rl_algos import get_adv_estimator_spec

from .config import AlgorithmConfig
from .errors import ConfigError

MADE = frozenset({"index", "values", "old_log_probs"})


def needs_values(estimator: str) -> bool:
    """Whether an estimator reads a critic's values."""
    return "values" in get_adv_estimator_spec(estimator).inputs


def needs_old_log_probs(estimator: str) -> bool:
    """Whether an estimator reads the log-probs of the policy that sampled."""
    return "old_log_probs" in get_adv_estimator_spec(estimator).inputs


def check_estimator(config: AlgorithmConfig) -> None:
    """Raise a `ConfigError` where the estimator reads something that this trainer does not make."""
    missing = set(get_adv_estimator_spec(config.adv_estimator).inputs) - MADE
    if missing:
        raise ConfigError(
            f"algorithm.adv_estimator={config.adv_estimator} reads {', '.join(sorted(missing))}, which "
            "the trainer does not make: override RayPPOTrainer.compute_advantages to provide it"
        )


def compute_advantages(
    config: AlgorithmConfig, tensors: Mapping[str, Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Call the configured estimator.

    Args:
        config: which estimator, and its options.
        tensors: `token_level_rewards response_mask` `[B, R]`, `index` (prompt of each row) and whatever else
            estimators may name (`values`, `old_log_probs`, ...).

    Returns:
        Advantages and returns, `[B, R]`.
    """
    spec = get_adv_estimator_spec(config.adv_estimator)
    offered = {
        "gamma": config.gamma,
        "lam": config.lam,
        "norm_adv_by_std_in_grpo": config.norm_adv_by_std_in_grpo,
    }
    options = {name: value for name, value in offered.items() if name in spec.options}
    inputs = {name: tensors[name] for name in ("token_level_rewards", "response_mask", *spec.inputs)}
    return spec.fn(**inputs, **options)
