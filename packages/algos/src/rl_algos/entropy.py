"""Entropy of the policy from its logits."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_algos.aggregation import agg_loss
from rl_algos.validation import check_floating, check_mask, compute_dtype


def entropy_from_logits(logits: Tensor) -> Tensor:
    """Return the entropy `[...]`, in nats, of `softmax(logits)`, `logits` floating `[..., V]`.

    A logit of minus infinity is probability 0 and adds 0, with gradient 0. float32, or float64 for float64
    logits. Temperature is the caller's: divide the logits first.
    """
    check_floating("logits", logits)
    log_p = torch.log_softmax(logits.to(compute_dtype(logits)), dim=-1)
    finite = torch.where(log_p > float("-inf"), log_p, 0)
    return -(log_p.exp() * finite).sum(dim=-1)


def compute_entropy_loss(
    logits: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    *,
    norm_constant: float | None = None,
) -> Tensor:
    """Aggregate the entropy of `logits` `[B, T, V]` of one whole mini-batch; see `agg_loss`.

    Masked positions have no influence and gradient 0, whatever their logits.
    """
    mask = check_mask(response_mask, logits.shape[:-1])
    safe = torch.where(mask[..., None], logits, 0)
    return agg_loss(entropy_from_logits(safe), mask, loss_agg_mode, norm_constant=norm_constant)
