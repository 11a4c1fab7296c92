from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_rollout import SamplingConfig
from rl_rollout.engines.hf.sampling import sample_tokens, truncate_logits

LOGITS = torch.tensor([0.5, 0.25, 0.15, 0.1]).log()


def kept(sampling: SamplingConfig) -> list[int]:
    return truncate_logits(LOGITS[None], [sampling])[0].isfinite().nonzero()[:, 0].tolist()


def test_top_k_and_top_p_keep_the_right_tokens() -> None:
    assert kept(SamplingConfig(top_k=2)) == [0, 1]
    assert kept(SamplingConfig(top_p=0.5)) == [0]
    assert kept(SamplingConfig(top_p=0.51)) == [0, 1]
    assert kept(SamplingConfig(top_p=1.0, top_k=99)) == [0, 1, 2, 3]
    assert kept(SamplingConfig(top_k=3, top_p=0.8)) == [0, 1]  # top-p over what top-k kept: .56, .28, .17


def test_rows_are_truncated_by_their_own_options() -> None:
    options = [SamplingConfig(top_k=1), SamplingConfig(), SamplingConfig(do_sample=False, top_k=1)]
    finite = truncate_logits(LOGITS.expand(3, 4), options).isfinite().sum(-1)
    assert finite.tolist() == [1, 4, 4]


def test_tokens_are_drawn_in_proportion_to_their_probability() -> None:
    n = 20_000
    uniforms = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    tokens, log_probs = sample_tokens(LOGITS.expand(n, 4), [SamplingConfig()] * n, uniforms)
    shares = torch.bincount(tokens, minlength=4) / n
    assert torch.allclose(shares, LOGITS.exp(), atol=1e-3)
    assert torch.allclose(log_probs, LOGITS[tokens], atol=1e-6)


def test_log_probs_are_at_the_temperature_and_renormalised() -> None:
    _, log_probs = sample_tokens(LOGITS[None], [SamplingConfig(temperature=0.5)], torch.zeros(1).double())
    assert torch.allclose(log_probs, (LOGITS / 0.5).log_softmax(-1)[:1], atol=1e-6)
    _, log_probs = sample_tokens(LOGITS[None], [SamplingConfig(top_k=2)], torch.zeros(1).double())
    assert torch.allclose(log_probs.exp(), torch.tensor([2 / 3]), atol=1e-6)


@settings(max_examples=50, deadline=None)
@given(st.floats(0, 1, exclude_max=True), st.integers(1, 4), st.floats(0.01, 1.0))
def test_a_drawn_token_always_has_probability(u: float, top_k: int, top_p: float) -> None:
    sampling = SamplingConfig(top_k=top_k, top_p=top_p)
    token, log_prob = sample_tokens(LOGITS[None], [sampling], torch.tensor([u], dtype=torch.float64))
    assert int(token) in kept(sampling)
    assert torch.isfinite(log_prob).all()
