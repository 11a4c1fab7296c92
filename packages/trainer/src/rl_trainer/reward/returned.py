"""What a reward function of whole batches may return."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from tensordict import TensorDict

from rl_protocol import DataProto

from ..errors import RewardError
from .manager import RewardResult

Returned = RewardResult | torch.Tensor | Mapping[str, Any]


def as_result(value: Returned, data: DataProto) -> RewardResult:
    """A batch's scores in the one form that the trainer reads.

    Args:
        value: a `RewardResult`; a tensor of scores, `[B]`, or `[B, R]` with each row's score on its last
            token; or a dict with that tensor as `reward_tensor` and perhaps `reward_extra_info`, further
            numbers by name, a list of B each.
        data: the batch that was scored.

    Raises:
        RewardError: it is something else, or a tensor rewards other tokens than the last.
    """
    if isinstance(value, RewardResult):
        return value
    extras: Mapping[str, Sequence[Any]] = {}
    if isinstance(value, Mapping):
        extras, value = value.get("reward_extra_info", {}), value.get("reward_tensor", value)
    if not isinstance(value, torch.Tensor) or value.shape[:1] != (len(data),) or value.dim() > 2:
        shown = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
        raise RewardError(
            f"a reward function of batches returned {shown} for {len(data)} rows: return a tensor [B] or "
            "[B, R], a dict with reward_tensor, or a RewardResult"
        )
    scores = value.detach().float().cpu()
    if scores.dim() == 2:
        scores = _at_the_end(scores, data)
    scores = scores.masked_fill(~scores.isfinite(), math.nan)
    kept = {name: column for name, column in extras.items() if _numeric(column)}
    numbers = {name: np.asarray(column, dtype=np.float64) for name, column in kept.items()}
    return RewardResult(scores, numbers, {"no_value": int(scores.isnan().sum())})


def _at_the_end(rewards: torch.Tensor, data: DataProto) -> torch.Tensor:
    """The rewards `[B, R]` of rows' last tokens, `[B]`; there may be no others."""
    ends = cast(TensorDict, data.batch)["response_lengths"].clamp_min(1)[:, None] - 1
    scores = rewards.gather(1, ends)[:, 0]
    if bool((rewards.scatter(1, ends, 0.0) != 0).any()):
        raise RewardError(
            "a reward function returned rewards on other tokens than the last: override "
            "RayPPOTrainer.compute_rewards and put token_level_rewards"
        )
    return scores


def _numeric(column: Sequence[Any]) -> bool:
    return all(isinstance(number, (int, float, np.number)) for number in column)
