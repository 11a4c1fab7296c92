"""DRO: direct reward optimisation by a quadratic penalty (https://arxiv.org/abs/2405.19107)."""

from __future__ import annotations

from typing import Unpack

from rl_algos.errors import OptionError
from rl_algos.registry import register_policy_loss
from rl_algos.token_loss import LossBatch, PolicyLossOutput, Rows, TokenLoss, evaluate


@register_policy_loss("dro")
def compute_policy_loss_dro(
    *,
    dro_beta: float = 0.5,
    **batch: Unpack[LossBatch],
) -> PolicyLossOutput:
    r"""Policy gradient with a quadratic penalty on the log-ratio; needs no on-policy samples.

        loss = -A log_prob + beta / 2 (log_prob - old_log_prob)^2

    `dro_beta` positive. Other arguments as for `vanilla`. Metrics: `ppo_kl`, `ratio_clampfrac`.
    """
    if not dro_beta > 0:
        raise OptionError(f"dro_beta is {dro_beta}, expected a positive number")

    def token_loss(rows: Rows) -> TokenLoss:
        log_prob = rows.log_prob.detach()
        log_ratio = log_prob - rows.old_log_prob
        slope = (dro_beta * log_ratio).sub_(rows.advantages)
        loss = 0.5 * dro_beta * log_ratio.square() - rows.advantages * log_prob
        return TokenLoss(loss, rows.ratio_metrics(log_ratio, clamped=False), slope)

    return evaluate(token_loss, **batch)
