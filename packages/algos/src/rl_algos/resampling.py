"""PF-PPO: replay of samples by their reward (Shen et al. 2024, https://arxiv.org/abs/2409.06957)."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_algos.errors import ShapeError
from rl_algos.validation import check_floating, unknown_name

_METHODS = ("pow", "max_min", "max_random")


def pf_ppo_indices(
    scores: Tensor,
    reweight_method: str = "pow",
    weight_pow: float = 2.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw B rows out of B with replacement, by weights of their scores; return their indices, int64 `[B]`.

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
