"""SAPO: a soft gate in place of the clip (https://arxiv.org/abs/2511.20347)."""

from __future__ import annotations

from typing import Unpack

import torch

from rl_algos.errors import OptionError
from rl_algos.masking import as_number
from rl_algos.registry import register_policy_loss
from rl_algos.token_loss import (
    LossBatch,
    PolicyLossOutput,
    Rows,
    TokenLoss,
    choose,
    clamp_log_ratio,
    evaluate,
)


@register_policy_loss("sapo")
def compute_policy_loss_sapo(
    *,
    tau_pos: float = 1.0,
    tau_neg: float = 1.05,
    **batch: Unpack[LossBatch],
) -> PolicyLossOutput:
    r"""Surrogate through a sigmoid gate, whose slope is 1 at ratio 1 and fades on both sides.

        loss = -A (4 / tau) sigmoid(tau (r - 1)),   tau = tau_pos for A > 0, else tau_neg

    The paper aggregates by `seq-mean-token-mean`; the loss follows whatever weights it is given. `tau_pos`,
    `tau_neg` positive; a larger one fades faster. Other arguments as for `vanilla`. Metrics: `ppo_kl`,
    `ratio_clampfrac`.
    """
    if not (tau_pos > 0 and tau_neg > 0):
        raise OptionError(f"tau_pos={tau_pos} and tau_neg={tau_neg} must be positive")

    def token_loss(rows: Rows) -> TokenLoss:
        raw = rows.log_ratio.detach()
        log_ratio = clamp_log_ratio(raw)
        ratio = log_ratio.exp()
        tau = choose(rows.advantages > 0, tau_pos, tau_neg, ratio)
        gate = torch.sigmoid(tau * (ratio - 1.0))
        slope = (
            -4.0 * rows.advantages * ratio * gate * (1.0 - gate) * as_number(log_ratio == raw, ratio.dtype)
        )
        return TokenLoss(-4.0 * rows.advantages * gate / tau, rows.ratio_metrics(raw), slope)

    return evaluate(token_loss, **batch)
