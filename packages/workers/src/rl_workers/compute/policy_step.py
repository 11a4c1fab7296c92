"""The actor's loss on one micro-batch."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from rl_algos import (
    Metric,
    get_policy_loss_spec,
    kl_loss,
    kl_penalty,
    rollout_mismatch_metrics,
    weighted_sum,
)
from rl_algos.registry import PolicyLossSpec
from rl_workers.compute.packing import PackedBatch
from rl_workers.config import ActorConfig
from rl_workers.errors import BatchError, WorkerConfigError

REQUIRED = ("input_ids", "attention_mask", "response_mask", "advantages", "row_weights")
OPTIONAL = ("old_log_probs", "ref_log_prob", "rollout_is_weights", "rollout_log_probs")


class PolicyStep:
    """What turns a micro-batch's log-probabilities into its part of the global loss.

    Args:
        config: loss, clip ranges, entropy and KL terms.
        batch: the rank's whole mini-batch, tensors ``[B, ...]`` on the model's device.

    Raises:
        BatchError: a column that the configured loss needs is missing.
        WorkerConfigError: an option that the loss does not have.
    """

    def __init__(self, config: ActorConfig, batch: Mapping[str, Tensor]) -> None:
        self.config = config
        self.batch = batch
        self.spec = get_policy_loss_spec(config.policy_loss.loss_mode)
        self.options = loss_options(config, self.spec)
        self.metrics: list[dict[str, Metric]] = []
        needed = [*REQUIRED, *self.spec.inputs, *(["ref_log_prob"] if config.use_kl_loss else [])]
        missing = [name for name in needed if name not in batch]
        if missing:
            raise BatchError(
                f"update_actor with loss {self.spec.name!r} needs the columns {', '.join(missing)}"
            )

    def loss(self, micro: PackedBatch, log_probs: Tensor, entropies: Tensor) -> Tensor:
        """The micro-batch's summand of the global loss; notes its metrics on the way."""
        if micro.is_dummy:
            return (log_probs.sum() + entropies.sum()) * 0.0
        rows, slots = torch.unique(micro.rows, return_inverse=True)
        rows, slots, columns = (x.to(log_probs.device) for x in (rows, slots, micro.columns))
        width = self.batch["response_mask"].shape[1]
        empty = log_probs.new_zeros(rows.numel(), width)
        log_prob = empty.index_put((slots, columns), log_probs)
        entropy = empty.index_put((slots, columns), entropies)
        return self._terms({name: x[rows] for name, x in self.batch.items()}, log_prob, entropy)

    def _terms(self, part: Mapping[str, Tensor], log_prob: Tensor, entropy: Tensor) -> Tensor:
        mask, weights, advantages = part["response_mask"], part["row_weights"], part["advantages"]
        if advantages.dim() == 1:
            advantages = advantages[:, None].expand(mask.shape)
        old = part["old_log_probs"] if "old_log_probs" in part else log_prob.detach()
        loss, metrics = self.spec.fn(
            old_log_prob=old,
            log_prob=log_prob,
            advantages=advantages,
            response_mask=mask,
            row_weights=weights,
            rollout_is_weights=part.get("rollout_is_weights"),
            **{name: part[name] for name in self.spec.inputs},
            **self.options,
        )
        found = {f"actor/{name}": metric for name, metric in metrics.items()}
        found["actor/pg_loss"] = Metric.sum(loss)
        found["actor/entropy"] = Metric.mean(entropy, mask)
        if self.config.entropy_coeff:
            loss = loss - self.config.entropy_coeff * weighted_sum(entropy, mask, weights)
        if self.config.use_kl_loss:
            distance = self._kl(log_prob, part["ref_log_prob"], old)
            loss = loss + self.config.kl_loss_coef * weighted_sum(distance, mask, weights)
            found["actor/kl_loss"] = Metric.mean(distance, mask)
        if "rollout_log_probs" in part:
            mismatch = rollout_mismatch_metrics(old, part["rollout_log_probs"], mask)
            found |= {f"rollout_corr/{name}": metric for name, metric in mismatch.items()}
        self.metrics.append(found)
        return loss

    def _kl(self, log_prob: Tensor, reference: Tensor, old: Tensor) -> Tensor:
        kind = self.config.kl_loss_type
        if kind.endswith("+"):
            return kl_penalty(log_prob, reference, kind)
        return kl_loss(log_prob, reference, old, kind)


def loss_inputs(config: ActorConfig) -> tuple[str, ...]:
    """Columns that the configured loss needs beside those that every loss has."""
    return get_policy_loss_spec(config.policy_loss.loss_mode).inputs


def loss_options(config: ActorConfig, spec: PolicyLossSpec) -> dict[str, float]:
    """The keywords that a loss takes, from the configuration.

    A clip range that is not set is left to the loss, which takes ``clip_ratio`` for it.
    """
    clips = {
        "clip_ratio": config.clip_ratio,
        "clip_ratio_low": config.clip_ratio_low,
        "clip_ratio_high": config.clip_ratio_high,
        "clip_ratio_c": config.clip_ratio_c,
    }
    chosen = {name: value for name, value in clips.items() if name in spec.options and value >= 0}
    extra = config.policy_loss.options
    unknown = sorted(set(extra) - set(spec.options))
    if unknown:
        raise WorkerConfigError(
            f"actor.policy_loss.options: loss {spec.name!r} has no {', '.join(unknown)}; "
            f"it has {', '.join(sorted(spec.options)) or 'no options'}"
        )
    return {**chosen, **extra}
