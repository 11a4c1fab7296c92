"""Temperature and truncation for engines that hand us logits; the drawing is `batch.draws`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rl_rollout.batch.draws import draw_tokens
from rl_rollout.config import SamplingConfig


def truncate_logits(logits: Tensor, samplings: Sequence[SamplingConfig]) -> Tensor:
    """Logits [B, V] with -inf outside each row's top-k, then outside its top-p (nucleus, Holtzman et al.
    2020: the smallest set of tokens whose probability reaches top_p)."""
    if all(s.greedy or (s.top_p >= 1 and s.top_k <= 0) for s in samplings):
        return logits
    vocab = logits.shape[-1]
    top_k = [vocab if s.greedy or s.top_k <= 0 else min(s.top_k, vocab) for s in samplings]
    top_p = [1.0 if s.greedy else s.top_p for s in samplings]
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(vocab, device=logits.device)
    ordered = ordered.masked_fill(rank >= torch.tensor(top_k, device=logits.device)[:, None], -torch.inf)
    probs = ordered.softmax(-1)
    before = probs.cumsum(-1) - probs
    cut = (before >= torch.tensor(top_p, device=logits.device)[:, None]) & (rank > 0)
    cut &= torch.tensor(top_p, device=logits.device)[:, None] < 1  # rounding must not cut where p is 1
    return torch.empty_like(logits).scatter_(-1, order, ordered.masked_fill(cut, -torch.inf))


def sample_tokens(
    logits: Tensor, samplings: Sequence[SamplingConfig], uniforms: Tensor
) -> tuple[Tensor, Tensor]:
    """Draw one token per row by inverting the cumulative distribution.

    logits [B, V]; uniforms [B] float64 in [0, 1), one per row. Returns tokens [B] int64 and their
    log-probs [B] float32 in the space log_softmax(logits / T), renormalised over what truncation keeps.
    """
    scaled = truncate_logits(_over_temperature(logits.float(), samplings), samplings)
    if all(s.greedy for s in samplings):
        return draw_tokens(scaled, None)
    if not any(s.greedy for s in samplings):
        return draw_tokens(scaled, uniforms)
    return draw_tokens(scaled, uniforms, torch.tensor([s.greedy for s in samplings], device=logits.device))


def _over_temperature(logits: Tensor, samplings: Sequence[SamplingConfig]) -> Tensor:
    temperatures = [s.logprob_temperature for s in samplings]
    if all(t == 1.0 for t in temperatures):
        return logits
    return logits / torch.tensor(temperatures, device=logits.device)[:, None]
