"""Clipped value loss of PPO (Schulman et al. 2017, https://arxiv.org/abs/1707.06347)."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from rl_algos.errors import OptionError
from rl_algos.token_loss import PolicyLossOutput, Rows, TokenLoss, Weighting, evaluate


def value_loss(
    vpreds: Tensor,
    returns: Tensor,
    values: Tensor,
    response_mask: Tensor,
    cliprange_value: float | None = 0.5,
    **weighting: Unpack[Weighting],
) -> PolicyLossOutput:
    r"""Squared error of the value, clipped around the old value.

        loss = 1/2 max((v - R)^2, (clip(v, v_old - c, v_old + c) - R)^2)

    Args:
        vpreds: new values `[B, T]`; the gradient goes here.
        returns, values: targets R and old values `[B, T]`.
        response_mask: `[B, T]`; what lies under it has no influence and gradient exactly 0.
        cliprange_value: c; None leaves out the clip.
        weighting: `row_weights` or `loss_agg_mode`, as for a policy loss.

    Returns:
        `(loss, metrics)` with `vf_clipfrac`: the share of tokens where the clipped error is the larger.
    """
    if cliprange_value is not None and cliprange_value < 0:
        raise OptionError(f"cliprange_value is {cliprange_value}, expected a value >= 0 or None")

    def token_loss(rows: Rows) -> TokenLoss:
        new, target, old = rows.log_prob, rows.advantages, rows.old_log_prob
        error = (new - target).square()
        if cliprange_value is None:
            return TokenLoss(0.5 * error, {"vf_clipfrac": rows.mean(torch.zeros_like(error))})
        near = torch.minimum(torch.maximum(new, old - cliprange_value), old + cliprange_value)
        clipped = (near - target).square()
        fraction = rows.share(clipped > error)
        return TokenLoss(0.5 * torch.maximum(error, clipped), {"vf_clipfrac": fraction})

    # The same machinery as a policy loss: the new values stand where its log-probs do.
    return evaluate(token_loss, values, vpreds, returns, response_mask, **weighting)


def compute_value_loss(
    vpreds: Tensor,
    returns: Tensor,
    values: Tensor,
    response_mask: Tensor,
    cliprange_value: float | None,
    loss_agg_mode: str | None = None,
    *,
    row_weights: Tensor | None = None,
    norm_constant: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Value loss under its classic name; see `value_loss`.

    `row_weights` for a micro-batch, or `loss_agg_mode` (default "token-mean") for a whole mini-batch.

    Returns:
        `(vf_loss, vf_clipfrac)`, scalars.
    """
    if row_weights is None and loss_agg_mode is None:
        loss_agg_mode = "token-mean"
    loss, metrics = value_loss(
        vpreds,
        returns,
        values,
        response_mask,
        cliprange_value,
        row_weights=row_weights,
        loss_agg_mode=loss_agg_mode,
        norm_constant=norm_constant,
    )
    return loss, metrics["vf_clipfrac"].value().to(loss.dtype)
