from __future__ import annotations

import pytest
import torch

from rl_rollout.batch.draws import draw_tokens, row_uniforms

GENERATOR = torch.Generator().manual_seed(3)
LOGITS = torch.randn(300, generator=GENERATOR) * 2  # three blocks, the last one not full


def chi_square(counts: torch.Tensor, expected: torch.Tensor) -> float:
    """The statistic over bins with at least 5 expected, in standard deviations from its mean."""
    likely = expected >= 5
    if not bool(likely.all()):
        counts = torch.cat([counts[likely], counts[~likely].sum()[None]])
        expected = torch.cat([expected[likely], expected[~likely].sum()[None]])
    freedom = len(counts) - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / (2 * freedom) ** 0.5)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_tokens_follow_the_softmax_over_seeds_and_over_positions(temperature: float) -> None:
    n = 200_000
    scaled = LOGITS / temperature
    for seeds, positions in ((torch.arange(n), torch.zeros(n).long()), (torch.tensor([7]), torch.arange(n))):
        uniforms = row_uniforms(seeds, positions)
        tokens, log_probs = draw_tokens(scaled.expand(n, -1), uniforms)
        counts = torch.bincount(tokens, minlength=len(LOGITS)).double()
        assert abs(chi_square(counts, n * scaled.double().softmax(-1))) < 4
        assert torch.allclose(log_probs, scaled.log_softmax(-1)[tokens], atol=2e-6)


def test_uniforms_are_uniform_and_neither_seeds_nor_positions_repeat_each_other() -> None:
    uniforms = row_uniforms(torch.arange(512)[:, None], torch.arange(512))
    assert len(uniforms.unique()) == 512 * 512
    assert float(uniforms.min()) >= 0
    assert float(uniforms.max()) < 1
    counts = torch.histc(uniforms.float(), 1024, 0, 1).double()
    assert abs(chi_square(counts, torch.full_like(counts, 256))) < 4
    for other in (uniforms.roll(1, 0), uniforms.roll(1, 1), uniforms.roll((1, -1), (0, 1)), uniforms.T):
        pair = torch.stack([uniforms.triu(2).flatten(), other.triu(2).flatten()])
        inside = torch.ones(512, 512).triu(2).flatten().bool()
        assert abs(float(torch.corrcoef(pair[:, inside])[0, 1])) < 0.015


def test_a_row_is_drawn_the_same_alone_and_among_others_bit_for_bit() -> None:
    logits = torch.randn(33, 49_157, generator=GENERATOR) * 3
    uniforms = row_uniforms(torch.arange(33), torch.arange(33))
    tokens, log_probs = draw_tokens(logits, uniforms)
    for row in (0, 5, 32):
        alone = draw_tokens(logits[row : row + 1], uniforms[row : row + 1])
        assert int(alone[0]) == int(tokens[row])
        assert torch.equal(alone[1], log_probs[row : row + 1])


def test_cut_tokens_are_never_drawn_and_the_rest_is_renormalised() -> None:
    kept = torch.tensor([3, 128, 299])
    logits = torch.full((1, 300), -torch.inf)
    logits[0, kept] = torch.tensor([1.0, 2.0, 3.0])
    uniforms = torch.cat([torch.linspace(0, 1, 999, dtype=torch.float64), torch.tensor([1 - 2.0**-53])])
    tokens, log_probs = draw_tokens(logits.expand(1000, -1), uniforms.clamp(max=1 - 2.0**-53))
    assert set(tokens.tolist()) == set(kept.tolist())
    assert torch.allclose(log_probs, logits.log_softmax(-1)[0, tokens], atol=1e-6)


def test_greedy_rows_take_the_most_likely_token_beside_drawn_ones() -> None:
    logits = LOGITS.expand(4, -1)
    uniforms = torch.tensor([0.1, 0.1, 0.9, 0.9], dtype=torch.float64)
    drawn, _ = draw_tokens(logits, uniforms)
    tokens, _ = draw_tokens(logits, uniforms, torch.tensor([True, False, True, False]))
    best = int(LOGITS.argmax())
    assert tokens.tolist() == [best, int(drawn[1]), best, int(drawn[3])]
    assert draw_tokens(logits, None)[0].tolist() == [best] * 4
