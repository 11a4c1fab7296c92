"""Reward shaping: KL in the reward, overlong penalty, a row's reward on its last token, replay by reward."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_algos.errors import OptionError, ShapeError
from rl_algos.kl import kl_penalty as estimate_kl
from rl_algos.masking import select
from rl_algos.metrics import Metric
from rl_algos.validation import (
    check_floating,
    check_mask,
    check_rows,
    check_tokens,
    compute_dtype,
    unknown_name,
)

_METHODS = ("pow", "max_min", "max_random")


def overlong_penalty(
    response_lengths: Tensor, max_response_length: int, overlong_buffer: int, penalty_factor: float = 1.0
) -> Tensor:
    r"""DAPO's soft penalty for long responses (https://arxiv.org/abs/2503.14476, equation 13).

        0 up to L - b,   -f (length - (L - b)) / b after it,   at most -f from L on

    Args:
        response_lengths: `[B]` tokens.
        max_response_length: L.
        overlong_buffer: b, from 1 to L.
        penalty_factor: f.

    Returns:
        float32 `[B]`, to be added to the rewards.
    """
    if not 1 <= overlong_buffer <= max_response_length:
        raise OptionError(
            f"overlong_buffer is {overlong_buffer}, expected a value from 1 to max_response_length "
            f"({max_response_length})"
        )
    excess = response_lengths.float() - (max_response_length - overlong_buffer)
    return -penalty_factor * (excess / overlong_buffer).clamp(0.0, 1.0)


def apply_kl_penalty(
    token_level_scores: Tensor,
    old_log_probs: Tensor,
    ref_log_prob: Tensor,
    response_mask: Tensor,
    kl_coef: float,
    kl_penalty: str = "k1",
) -> tuple[Tensor, dict[str, Metric]]:
    r"""Subtract the KL from the reward: `r_t = score_t - kl_coef * kl_t` on selected tokens, 0 elsewhere.

    Args:
        token_level_scores, old_log_probs, ref_log_prob: floating `[B, T]`.
        response_mask: `[B, T]`.
        kl_coef: coefficient.
        kl_penalty: estimator by token; see `rl_algos.kl_penalty`.

    Returns:
        `(token_level_rewards, metrics)`; `reward_kl_penalty` is the mean over rows of the row's mean KL.
    """
    shape = check_tokens(
        token_level_scores=token_level_scores, old_log_probs=old_log_probs, ref_log_prob=ref_log_prob
    )
    mask = check_mask(response_mask, shape)
    with torch.no_grad():
        kl = estimate_kl(select(old_log_probs, mask), select(ref_log_prob, mask), kl_penalty)
        kl = select(kl, mask)
        scores = select(token_level_scores.to(compute_dtype(token_level_scores)), mask)
        lengths = mask.sum(dim=1)
        row_kl = kl.sum(dim=1) / lengths.clamp(min=1)
        return scores - kl_coef * kl, {"reward_kl_penalty": Metric.mean(row_kl, lengths > 0)}


def place_on_last_token(rewards: Tensor, response_mask: Tensor) -> Tensor:
    """Put one reward per row `[B]` on its last selected token: `[B, T]`, 0 elsewhere and for rows without
    one."""
    if response_mask.dim() != 2:
        raise ShapeError(f"response_mask has shape {tuple(response_mask.shape)}, expected [batch, tokens]")
    mask = check_mask(response_mask, response_mask.shape)
    check_rows("rewards", rewards, mask.shape[0])
    after = mask.flip(1).cumsum(dim=1).flip(1)
    return torch.where(mask & (after == 1), rewards[:, None], 0)


def pf_ppo_indices(
    scores: Tensor,
    reweight_method: str = "pow",
    weight_pow: float = 2.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """PF-PPO (Shen et al. 2024, https://arxiv.org/abs/2409.06957): draw B rows out of B with replacement, by
    weights of their scores; return their indices, int64 `[B]`.

    - `pow`: |score| to the power `weight_pow`
    - `max_min`: the rows with the highest and the lowest score only
    - `max_random`: weight .4 for the highest score, .1 for every other

    1e-8 is added to each weight, so that all-zero scores are drawn evenly. The generator lives on the scores'
    device; None is the default one.
    """
    check_floating("scores", scores)
    if scores.dim() != 1:
        raise ShapeError(f"scores has shape {tuple(scores.shape)}, expected one score per row")
    if reweight_method not in _METHODS:
        raise unknown_name("method of PF-PPO", reweight_method, _METHODS)
    if scores.numel() == 0:
        return torch.zeros(0, dtype=torch.int64, device=scores.device)
    exact = scores.double()
    if reweight_method == "pow":
        weights = exact.abs() ** weight_pow
    elif reweight_method == "max_min":
        weights = ((exact == exact.max()) | (exact == exact.min())).double()
    else:
        weights = torch.where(exact == exact.max(), 0.4, 0.1).double()
    return torch.multinomial(weights + 1e-8, scores.numel(), replacement=True, generator=generator)
