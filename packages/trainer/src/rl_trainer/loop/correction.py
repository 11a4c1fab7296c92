"""Importance weights and rejections between the engine's policy and the trainer's."""

from __future__ import annotations

from typing import Literal, cast

from rl_algos import ImportanceSampling, Rejection, compute_rollout_correction

from ..config.tree import RolloutCorrectionConfig
from .metrics import Metrics
from .step_batch import StepBatch


def importance_of(config: RolloutCorrectionConfig) -> ImportanceSampling | None:
    """The importance weights that the configuration asks for."""
    if config.rollout_is == "none":
        return None
    return ImportanceSampling(
        cast(Literal["token", "sequence"], config.rollout_is),
        config.rollout_is_upper,
        config.rollout_is_lower or None,
        config.rollout_is_batch_normalize,
    )


def rejections_of(config: RolloutCorrectionConfig) -> list[Rejection]:
    """The rejections that the configuration asks for."""
    if config.rollout_rs == "none":
        return []
    return [
        Rejection(
            cast(Literal["ratio", "k2", "k3"], config.rollout_rs),
            cast(Literal["token", "sum", "mean", "max"], config.rollout_rs_level),
            config.rollout_rs_upper,
            config.rollout_rs_lower or None,
        )
    ]


def correct(batch: StepBatch, config: RolloutCorrectionConfig) -> Metrics:
    """Put `rollout_is_weights` and the mask after rejection on the batch; gives the metrics.

    Reads `old_log_probs`, `rollout_log_probs` and `response_mask`, all `[B, R]`.
    """
    batch.fetch("old_log_probs", "rollout_log_probs", "response_mask")
    rejections = rejections_of(config)
    weights, mask, metrics = compute_rollout_correction(
        batch["old_log_probs"],
        batch["rollout_log_probs"],
        batch["response_mask"],
        importance_of(config),
        rejections,
    )
    if rejections:
        batch.put(response_mask=mask.to(batch["response_mask"].dtype))
    if weights is not None:
        batch.put(rollout_is_weights=weights)
    return {f"rollout_corr/{name}": metric.value().item() for name, metric in metrics.items()}
