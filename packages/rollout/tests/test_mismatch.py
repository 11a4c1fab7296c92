from __future__ import annotations

import math

import pytest
import torch

from rl_rollout import LogProbSpaceError, RolloutDataError, check_logprob_space, mismatch_metrics


def test_equal_log_probs_have_no_mismatch() -> None:
    log_probs = torch.tensor([[-1.0, -2.0, -0.5]])
    metrics = mismatch_metrics(log_probs, log_probs, torch.ones(1, 3))
    assert metrics["mismatch/logprob_diff/mean"] == metrics["mismatch/logprob_diff/max"] == 0
    assert metrics["mismatch/k3_kl"] == 0
    assert metrics["mismatch/prob_correlation"] == pytest.approx(1)


def test_values_by_hand_and_masked_tokens_do_not_count() -> None:
    engine = torch.tensor([[-1.0, -2.0, torch.nan], [-3.0, 1e30, -1.0]])
    trainer = torch.tensor([[-1.5, -2.0, 0.0], [-2.0, 0.0, torch.inf]])
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    metrics = mismatch_metrics(engine, trainer, mask)
    assert metrics["mismatch/logprob_diff/mean"] == pytest.approx(0.5)
    assert metrics["mismatch/logprob_diff/max"] == 1.0
    k3 = [math.exp(-0.5) - 1 + 0.5, 0.0, math.e - 2]
    assert metrics["mismatch/k3_kl"] == pytest.approx(sum(k3) / 3)
    assert metrics["mismatch/clamped_share"] == 0


def test_the_share_that_was_clamped_is_reported() -> None:
    metrics = mismatch_metrics(torch.tensor([[-50.0, -1.0]]), torch.tensor([[-1.0, -1.0]]), torch.ones(1, 2))
    assert metrics["mismatch/clamped_share"] == 0.5
    assert math.isfinite(metrics["mismatch/k3_kl"])


def test_nothing_to_compare_and_wrong_shapes() -> None:
    zeros = torch.zeros(2, 3)
    assert mismatch_metrics(zeros, zeros, zeros) == {}
    with pytest.raises(RolloutDataError, match=r"\(2, 3\)"):
        mismatch_metrics(zeros, zeros[:1], zeros)


def test_log_probs_of_another_space_are_not_compared() -> None:
    space = {"temperature": 0.7, "top_p": 1.0, "top_k": -1, "dtype": "bfloat16"}
    check_logprob_space(space, 0.7)
    with pytest.raises(LogProbSpaceError, match=r"temperature 0\.7.*1\.0"):
        check_logprob_space(space, 1.0)
    with pytest.raises(LogProbSpaceError, match=r"top_p=0\.9"):
        check_logprob_space(space | {"top_p": 0.9}, 0.7)
