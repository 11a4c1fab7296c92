"""The tokens that clip_cov and kl_cov single out in a global mini-batch."""

from __future__ import annotations

import torch

from rl_algos import select_clip_cov_tokens, select_kl_cov_tokens
from rl_controller import WorkerGroup

from ..config.inputs import read_by_loss
from ..config.tree import PPOConfig
from .step_batch import LOG_PROB_COLUMNS, StepBatch


def put_chosen_tokens(config: PPOConfig, policy: WorkerGroup, step: int, batch: StepBatch) -> None:
    """Put the column `selected` on a global mini-batch, by the policy as it is now, if the loss reads it."""
    if "selected" not in read_by_loss(config):
        return
    data = batch.to_workers(LOG_PROB_COLUMNS, {"temperature": config.actor_rollout_ref.rollout.temperature})
    now = policy.submit("compute_log_prob", data).select(["old_log_probs"])
    batch.remote = batch.remote.union(now.rename("old_log_probs", "log_probs"))
    batch.put(selected=choose_tokens(config, batch, step))


def choose_tokens(config: PPOConfig, batch: StepBatch, step: int) -> torch.Tensor:
    """Bool `[B, R]`, from `old_log_probs log_probs advantages response_mask`.

    Clip-Cov draws among its candidates; the draw derives from the run's seed and the step.
    """
    actor, ratio = config.actor_rollout_ref.actor, config.algorithm.clip_cov_ratio
    old, now, mask = (batch[name] for name in ("old_log_probs", "log_probs", "response_mask"))
    advantages = batch["advantages"]
    if advantages.dim() == 1:
        advantages = advantages[:, None].expand(mask.shape)
    if actor.policy_loss.loss_mode == "kl_cov":
        return select_kl_cov_tokens(now, advantages, mask, kl_cov_ratio=ratio)
    return select_clip_cov_tokens(
        old,
        now,
        advantages,
        mask,
        clip_ratio=actor.clip_ratio,
        clip_ratio_low=actor.clip_ratio_low if actor.clip_ratio_low >= 0 else None,
        clip_ratio_high=actor.clip_ratio_high if actor.clip_ratio_high >= 0 else None,
        clip_cov_ratio=ratio,
        generator=torch.Generator().manual_seed(config.trainer.seed * 1_000_003 + step),
    )
