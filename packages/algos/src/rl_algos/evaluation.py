"""Evaluation over n samples per prompt: unbiased pass@k, best@k, worst@k, and maj@k.

pass@k: Chen et al. 2021, https://arxiv.org/abs/2107.03374. All are closed forms: no sampling.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rl_algos.errors import OptionError, ShapeError
from rl_algos.groups import GroupIndex, group_codes, pair_codes


def compute_pass_at_k(num_samples: Tensor, num_correct: Tensor, k: int) -> Tensor:
    r"""Probability that at least one of k samples drawn without replacement is correct.

        1 - C(n - c, k) / C(n, k)

    Args:
        num_samples: n, integer or float tensor of any shape.
        num_correct: c, the same shape, 0 <= c <= n.
        k: at least 1. Where n < k the estimate does not exist: NaN.

    Returns:
        float64, the inputs' shape.
    """
    _check_k(k)
    if num_samples.shape != num_correct.shape:
        raise ShapeError(
            f"num_samples {tuple(num_samples.shape)} and num_correct {tuple(num_correct.shape)} differ"
        )
    n, c = num_samples.double(), num_correct.double()
    if bool(((c < 0) | (c > n)).any()):
        raise OptionError("num_correct must lie between 0 and num_samples")
    # prod over i < k of (n - c - i) / (n - i); a factor <= 0 means that k draws cannot all be wrong.
    miss = torch.ones_like(n)
    for i in range(k):
        miss = miss * ((n - c - i).clamp(min=0) / (n - i).clamp(min=1))
    return torch.where(n < k, float("nan"), 1.0 - miss)


def best_at_k(scores: Tensor, k: int) -> Tensor:
    r"""Expected maximum of k scores drawn without replacement from each row's n, float64 `[G]`.

        sum over i of s_(i) C(i - 1, k - 1) / C(n, k),   s_(1) <= ... <= s_(n)

    Args:
        scores: floating `[G, n]`, n samples for each of G prompts.
        k: from 1 to n; k = n is the plain maximum, k = 1 the mean.
    """
    return _expected_order_statistic(scores, k, largest=True)


def worst_at_k(scores: Tensor, k: int) -> Tensor:
    """Expected minimum of k scores drawn without replacement from each row's n, float64 `[G]`."""
    return _expected_order_statistic(scores, k, largest=False)


def compute_maj_at_k(answers: GroupIndex, correct: Tensor, index: GroupIndex) -> Tensor:
    """Majority vote over each prompt's samples: score of the most frequent answer, float64 `[G]`.

    Ties: every answer with the highest count is equally likely to be the vote, so the result is the mean of
    their scores; an answer's score is the mean of `correct` over the samples that gave it.

    Args:
        answers: `[N]` ids of the extracted answers (any hashable; a sample without an answer votes for the id
            it is given, for example None).
        correct: `[N]`, bool or number: the sample's score.
        index: `[N]` prompt ids.

    Returns:
        One value per prompt, in the order of the prompts' first rows (for tensor ids: of ascending ids).
    """
    rows = correct.shape[0]
    prompts, n_prompts = group_codes(index, rows)
    votes, _ = group_codes(answers, rows)
    prompts, votes = prompts.cpu(), votes.cpu()
    pair_of_row, n_pairs = pair_codes(prompts, votes)
    count = torch.zeros(n_pairs, dtype=torch.float64).index_add_(0, pair_of_row, torch.ones(rows).double())
    score = torch.zeros_like(count).index_add_(0, pair_of_row, correct.double().cpu()) / count
    prompt_of_pair = torch.zeros(n_pairs, dtype=torch.int64).index_copy_(0, pair_of_row, prompts)
    most = torch.zeros(n_prompts, dtype=torch.float64).scatter_reduce_(0, prompt_of_pair, count, "amax")
    winner = (count == most[prompt_of_pair]).double()
    total = torch.zeros_like(most).index_add_(0, prompt_of_pair, winner * score)
    return total / torch.zeros_like(most).index_add_(0, prompt_of_pair, winner)


def _expected_order_statistic(scores: Tensor, k: int, largest: bool) -> Tensor:
    _check_k(k)
    if scores.dim() != 2 or scores.shape[1] < k:
        raise ShapeError(f"scores has shape {tuple(scores.shape)}, expected [prompts, n] with n >= k = {k}")
    ordered = scores.double().sort(dim=1, descending=not largest).values
    return ordered @ _order_weights(scores.shape[1], k).to(ordered.device)


def _order_weights(n: int, k: int) -> Tensor:
    """C(i - 1, k - 1) / C(n, k) for i = 1 ... n, by logarithms of gamma functions."""
    i = torch.arange(1, n + 1, dtype=torch.float64)
    top = torch.tensor(float(n), dtype=torch.float64)
    size = torch.tensor(float(k), dtype=torch.float64)
    log_weight = _log_choose(i - 1, size - 1) - _log_choose(top, size)
    return torch.where(i >= k, log_weight.exp(), 0.0)


def _log_choose(n: Tensor, k: Tensor) -> Tensor:
    return torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma((n - k + 1).clamp(min=1))


def _check_k(k: int) -> None:
    if k < 1:
        raise OptionError(f"k is {k}, expected at least 1")
