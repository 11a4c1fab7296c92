"""GMPO: the geometric mean of clipped token ratios (https://arxiv.org/abs/2507.20673)."""

from __future__ import annotations

from typing import Unpack

import torch

from rl_algos.masking import as_number
from rl_algos.ppo import clip_bounds
from rl_algos.registry import register_policy_loss
from rl_algos.token_loss import (
    LossBatch,
    PolicyLossOutput,
    Rows,
    TokenLoss,
    clamp_log_ratio,
    evaluate,
)


@register_policy_loss("geo_mean", sequence_level=True)
def compute_policy_loss_geo_mean(
    *,
    clip_ratio: float | None = None,
    clip_ratio_low: float | None = None,
    clip_ratio_high: float | None = None,
    **batch: Unpack[LossBatch],
) -> PolicyLossOutput:
    r"""Row loss on the geometric mean of the row's ratios, each clipped in log space against its advantage.

        l_t = log-ratio, kept on the pessimistic side of [-low, high]
        loss_t = -mean(A over the row) exp(mean over the row of l)

    Every token of a row carries the row's loss, so the paper's objective is `seq-mean-token-mean`; the loss
    follows whatever weights it is given. Bounds are on the log-ratio, 0.4 if
    none is given. Sequence weights from the rollout
    correction are given as equal `rollout_is_weights` on the row's tokens. Other arguments as for `vanilla`.
    Metrics: `pg_clipfrac` (A > 0), `pg_clipfrac_lower` (A < 0), `ppo_kl`, `ratio_clampfrac`.
    """
    low, high = clip_bounds(clip_ratio, clip_ratio_low, clip_ratio_high, (0.4, 0.4))

    def token_loss(rows: Rows) -> TokenLoss:
        raw = rows.log_ratio
        log_ratio = clamp_log_ratio(raw.detach())
        clipped = log_ratio.clamp(-low, high)
        sign = rows.advantages.sign()
        kept = sign * torch.minimum(sign * log_ratio, sign * clipped)
        # The gradient passes where the clip kept the log-ratio as it is.
        free = as_number((kept == raw.detach()) & (sign != 0), kept.dtype)
        kept = kept + free * (raw - raw.detach())
        loss = -rows.row_mean(rows.advantages) * rows.row_mean(kept).exp()
        metrics = rows.ratio_metrics(raw)
        outside = log_ratio != clipped
        metrics["pg_clipfrac"] = rows.share(outside & (sign > 0))
        metrics["pg_clipfrac_lower"] = rows.share(outside & (sign < 0))
        return TokenLoss(loss.expand_as(log_ratio), metrics)

    return evaluate(token_loss, **batch)
