"""Small inputs with the right value, worked out by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import rl_algos as ra

NAN = float("nan")


def close(got: Tensor, expected: list[object] | float, tolerance: float = 1e-5) -> None:
    wanted = torch.as_tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(got.detach().double(), wanted, rtol=0, atol=tolerance)


@pytest.mark.parametrize("parts", [1, 2])
def test_token_mean_in_every_split(parts: int) -> None:
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    loss = torch.tensor([[1.0, 2, 3], [10, NAN, NAN]], requires_grad=True)
    weights = ra.loss_weights(mask, "token-mean")
    chunks = zip(loss.chunk(parts), mask.chunk(parts), weights.chunk(parts), strict=True)
    total = sum(ra.weighted_sum(*chunk) for chunk in chunks)
    assert isinstance(total, Tensor)
    total.backward()
    close(total, 4.0)
    close(loss.grad, [[0.25, 0.25, 0.25], [0.25, 0, 0]])


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", 10 / 4),
        ("token-sum", 10.0),
        ("seq-mean-token-sum", (6 + 4) / 2),
        ("seq-mean-token-mean", (2 + 4) / 2),
        ("seq-mean-token-sum-norm", (6 + 4) / 2 / 8),
        ("prompt-mean", 10 / 4),
    ],
)
def test_a_masked_row_is_no_sequence(mode: str, expected: float) -> None:
    loss = torch.tensor([[1.0, 2, 3], [4, NAN, NAN], [NAN, NAN, NAN]], requires_grad=True)
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [0, 0, 0]])
    options = {
        "norm_constant": 8.0 if mode.endswith("norm") else None,
        "prompt_index": [7, 7, 7] if mode == "prompt-mean" else None,
    }
    close(ra.agg_loss(loss, mask, mode, **options), expected)
    nothing = ra.agg_loss(loss, torch.zeros_like(mask), mode, **options)
    nothing.backward()
    assert nothing == 0 and not loss.grad.any()


def test_prompt_mean_counts_every_prompt_once() -> None:
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0], [0, 0, 0]])
    weights = ra.loss_weights(mask, "prompt-mean", prompt_index=["a", "a", "b", "c"])
    close(weights, [1 / 8, 1 / 8, 1 / 4, 0])


def test_gae_skips_observations() -> None:
    mask, rewards = torch.tensor([[1, 0, 0, 1]]), torch.tensor([[0.0, 0, 0, 1]])
    for hole in (9.0, NAN):
        values = torch.tensor([[0.5, hole, hole, 0.25]])
        advantages, _ = ra.compute_gae_advantage_return(rewards, values, mask, 1.0, 0.95, whiten=False)
        close(advantages, [[0.4625, 0, 0, 0.75]])


def test_gae_does_not_bootstrap_from_padding() -> None:
    rewards, values = torch.tensor([[0.0, 1, 0]]), torch.tensor([[0.0, 0, 100]])
    advantages, _ = ra.compute_gae_advantage_return(
        rewards, values, torch.tensor([[1, 1, 0]]), 1.0, 0.95, whiten=False
    )
    close(advantages, [[0.95, 1, 0]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [1, 3, 6, 7, 8, 11])
@pytest.mark.parametrize("reward", [0.1, 0.3, 0.7, 100.1])
def test_constant_groups_are_exactly_zero(size: int, reward: float, dtype: torch.dtype) -> None:
    rewards = torch.full((size, 1), reward, dtype=dtype)
    for name in ("grpo", "dr_grpo", "rloo", "opo", "gpg", "grpo_passk", "maxrl", "gdpo"):
        advantages, _ = ra.get_adv_estimator_fn(name)(
            token_level_rewards=rewards, response_mask=torch.ones(size, 1), index=["p"] * size
        )
        assert not advantages.any(), name


def test_groups_follow_their_ids_in_any_order() -> None:
    rewards = torch.tensor([[2.0], [3.0], [1.0]])
    advantages, _ = ra.compute_grpo_outcome_advantage(
        rewards, torch.ones(3, 1), ["a", "b", "a"], norm_adv_by_std_in_grpo=False
    )
    close(advantages[:, 0], [0.5, 0, -0.5])


def test_ids_that_look_alike_are_different() -> None:
    rewards = torch.tensor([[0.0], [1.0], [0.0], [1.0]])
    for ids in (["1", "01", "1", "01"], torch.tensor([0.1, 0.2, 0.1, 0.2]), [2**70, 2**70 + 1] * 2):
        advantages, _ = ra.compute_grpo_outcome_advantage(rewards, torch.ones(4, 1), ids)
        assert not advantages.any()


def test_standard_deviation_is_unbiased() -> None:
    rewards = torch.tensor([[1.0], [0.0], [0.0], [0.0]])
    advantages, _ = ra.compute_grpo_outcome_advantage(rewards, torch.ones(4, 1), [0] * 4)
    close(advantages[:, 0], [1.5, -0.5, -0.5, -0.5])


def test_a_rejected_row_counts_in_no_statistic() -> None:
    rewards, mask = torch.tensor([[100.0], [1.0], [3.0]]), torch.tensor([[0], [1], [1]])
    for name in ("dr_grpo", "opo"):
        advantages, _ = ra.get_adv_estimator_fn(name)(
            token_level_rewards=rewards, response_mask=mask, index=[5, 5, 5]
        )
        close(advantages[:, 0], [0, -1, 1])
    alone, _ = ra.compute_grpo_outcome_advantage(rewards[:2], mask[:2], [5, 5])
    assert not alone.any()


def test_reinforce_plus_plus_passes_rewards_over_observations() -> None:
    rewards, mask = torch.tensor([[0.0, 0, 1]]), torch.tensor([[1, 0, 1]])
    _, returns = ra.compute_reinforce_plus_plus_outcome_advantage(rewards, mask, 0.5)
    close(returns, [[0.5, 0, 1]])


def test_gpg_scales_by_informative_rows() -> None:
    rewards = torch.tensor([[1.0], [0.0], [2.0], [2.0]])
    advantages, _ = ra.compute_gpg_outcome_advantage(rewards, torch.ones(4, 1), ["a", "a", "b", "b"])
    close(advantages[:, 0], [1.0, -1.0, 0, 0])


def test_maxrl_divides_by_the_mean() -> None:
    rewards = torch.tensor([[1.0], [0.0], [0.0], [0.0]])
    advantages, _ = ra.compute_maxrl_outcome_advantage(rewards, torch.ones(4, 1), [0] * 4)
    close(advantages[:, 0], [3, -1, -1, -1], 1e-4)
    with pytest.raises(ra.OptionError, match="negative"):
        ra.compute_maxrl_outcome_advantage(-rewards, torch.ones(4, 1), [0] * 4)


def test_gigpo_adds_episode_and_step_advantages() -> None:
    # Two trajectories of prompt p: scores 1 (two steps) and 0 (one step); the first steps share a state.
    rewards = torch.tensor([[1.0], [1.0], [0.0]])
    advantages, _ = ra.compute_gigpo_outcome_advantage(
        rewards,
        torch.ones(3, 1),
        index=["p"] * 3,
        trajectory_index=[1, 1, 2],
        anchor_state=["s", "t", "s"],
        step_returns=torch.tensor([0.9, 1.0, 0.1]),
        step_advantage_w=0.5,
        norm_adv_by_std_in_grpo=False,
    )
    close(advantages[:, 0], [0.5 + 0.5 * 0.4, 0.5, -0.5 - 0.5 * 0.4])


def test_sequence_ratio_does_not_depend_on_length() -> None:
    for length in (1, 100):
        shape = (1, length)
        loss, _ = ra.compute_policy_loss_gspo(
            old_log_prob=torch.zeros(shape),
            log_prob=torch.full(shape, 0.012),
            advantages=torch.ones(shape),
            response_mask=torch.ones(shape),
            clip_ratio=0.5,
            loss_agg_mode="seq-mean-token-mean",
        )
        close(loss, -1.01207)


RATIOS = torch.tensor([[1.1, 1.5, 0.5, 1.5, 0.5, 5.0]], dtype=torch.float64)
GAINS = torch.tensor([[1.0, 1, 1, -1, -1, -1]], dtype=torch.float64)


def test_ppo_table() -> None:
    for column, (value, slope) in enumerate(
        [(-1.1, -1.1), (-1.28, 0), (-0.5, -0.5), (1.5, 1.5), (0.8, 0), (3.0, 0)]
    ):
        log_prob = RATIOS.log()[:, column : column + 1].requires_grad_()
        loss, _ = ra.compute_policy_loss_vanilla(
            old_log_prob=torch.zeros(1, 1).double(),
            log_prob=log_prob,
            advantages=GAINS[:, column : column + 1],
            response_mask=torch.ones(1, 1),
            clip_ratio_low=0.2,
            clip_ratio_high=0.28,
            clip_ratio_c=3.0,
            loss_agg_mode="token-mean",
        )
        loss.backward()
        close(loss, value, 1e-12)
        close(log_prob.grad[0, 0], slope, 1e-12)


def test_ppo_metrics() -> None:
    _, clipfrac, kl, lower = ra.compute_policy_loss(
        torch.zeros(1, 6), RATIOS.log().float(), GAINS.float(), torch.ones(1, 6), 0.2, None, 0.28
    )
    close(clipfrac, 2 / 6)
    close(lower, 1 / 6)
    close(kl, float(-RATIOS.log().mean()))


@pytest.mark.parametrize(
    ("name", "gap", "value", "slope"),
    [
        ("k1", 0.5, 0.5, 1.0),
        ("k2", 0.5, 0.125, 0.5),
        ("k3", 0.5, 0.10653, 0.39347),
        ("k3", -3.0, 16.0855, -19.0855),
        ("abs", -3.0, 3.0, -1.0),
    ],
)
def test_kl_estimators(name: str, gap: float, value: float, slope: float) -> None:
    logprob = torch.tensor([gap - 1.0], requires_grad=True)
    kl = ra.kl_penalty(logprob, torch.tensor([-1.0]), name)
    kl.sum().backward()
    close(kl, [value], 1e-4)
    close(logprob.grad, [slope], 1e-4)


def test_k3_pushes_the_right_way_however_far_apart() -> None:
    logprob = torch.tensor([-60.0, -1.0], requires_grad=True)
    kl = ra.kl_penalty(logprob, torch.tensor([-1.0, -60.0]), "k3")
    kl.sum().backward()
    assert bool(kl.isfinite().all()) and logprob.grad[0] < -1e8
    close(kl[1], 58.0)
    close(logprob.grad[1], 1.0)


@pytest.mark.parametrize(("name", "values"), [("k3+", [0.106531, 0.718282]), ("k1+", [0.5, -1.0])])
def test_straight_through_kl(name: str, values: list[float]) -> None:
    logprob = torch.tensor([-1.0, -2.0], requires_grad=True)
    kl = ra.kl_penalty(logprob, torch.tensor([-1.5, -1.0]), name)
    kl.sum().backward()
    close(kl, values)
    close(logprob.grad, [0.5, -1.0])


def test_kl_loss_has_the_gradient_of_the_kl_in_expectation() -> None:
    torch.manual_seed(0)
    logits, reference = torch.randn(6).double().requires_grad_(), torch.randn(6).double().log_softmax(0)
    log_p = logits.log_softmax(0)
    exact = torch.autograd.grad(ra.full_kl(log_p, reference), logits, retain_graph=True)[0]
    for name in ("k1", "k2", "k3"):
        per_token = ra.kl_loss(log_p, reference, kl_penalty=name)
        expectation = (log_p.exp().detach() * per_token).sum()
        got = torch.autograd.grad(expectation, logits, retain_graph=True)[0]
        torch.testing.assert_close(got, exact)


def test_full_kl_takes_zero_probabilities() -> None:
    log_p = torch.tensor([[0.5, 0.5, 0.0]]).log()
    close(ra.kl_penalty(log_p, torch.tensor([[0.25, 0.5, 0.25]]).log(), "full"), [0.5 * 0.693147])


def test_cliprange_holds_for_both_sides() -> None:
    loss, *_ = ra.compute_policy_loss(
        torch.zeros(1, 1), torch.tensor([[1.15]]).log(), torch.ones(1, 1), torch.ones(1, 1), cliprange=0.1
    )
    close(loss, -1.10)


def correction(ratios: list[float], **options: object) -> tuple[Tensor | None, Tensor]:
    weights, mask, _ = ra.compute_rollout_correction(
        torch.tensor([ratios]).log(), torch.zeros(1, 3), torch.ones(1, 3), **options
    )
    return weights, mask


def test_truncated_and_masked_importance_sampling() -> None:
    truncated, _ = correction([3, 0.5, 1], importance=ra.ImportanceSampling(upper=2.0))
    close(truncated, [[2, 0.5, 1]])
    masked, _ = correction([3, 0.4, 1], importance=ra.ImportanceSampling(upper=2.0, lower=0.5))
    close(masked, [[0, 0, 1]])
    nothing, _ = correction(
        [3, 0.4, 4], importance=ra.ImportanceSampling(upper=2.0, lower=0.5, batch_normalize=True)
    )
    close(nothing, [[0, 0, 0]])


def test_rejection_bounds_act_on_the_ratio() -> None:
    _, mask = correction([0.4, 1.1, 1.5], rejections=[ra.Rejection(lower=0.5, upper=1.2)])
    assert mask.tolist() == [[False, True, False]]
    _, mask = correction([0.4, 1.1, 1.5], rejections=[ra.Rejection(level="mean", lower=0.5, upper=1.2)])
    assert mask.all()


def test_mismatch_metrics_ignore_masked_rows() -> None:
    trainer, engine = torch.tensor([[-1.0, -2.0], [NAN, NAN]]), torch.tensor([[-1.5, -2.0], [NAN, 0.0]])
    metrics = ra.rollout_mismatch_metrics(trainer, engine, torch.tensor([[1, 1], [0, 0]]))
    close(metrics["kl"].value(), -0.25)
    close(metrics["log_ppl_diff"].value(), -0.25)
    close(metrics["log_prob_diff_max"].value(), 0.5)


def test_pass_at_k() -> None:
    close(ra.compute_pass_at_k(torch.tensor([8]), torch.tensor([2]), 4), [1 - 15 / 70])
    got = ra.compute_pass_at_k(torch.tensor([8, 3]), torch.tensor([0, 1]), 4)
    assert got[0] == 0 and got[1].isnan()
    assert ra.compute_pass_at_k(torch.tensor([2000]), torch.tensor([1999]), 2)[0] == 1


def test_best_and_worst_of_k() -> None:
    scores = torch.tensor([[3.0, 1.0, 2.0]])
    close(ra.best_at_k(scores, 2), [8 / 3])
    close(ra.worst_at_k(scores, 2), [4 / 3])
    close(ra.best_at_k(scores, 1), [2.0])
    binary = torch.tensor([[1.0, 1, 0, 0, 0, 0, 0, 0]])
    close(ra.best_at_k(binary, 4), [1 - 15 / 70])


def test_majority_vote_shares_a_tie() -> None:
    got = ra.compute_maj_at_k(
        ["a", "a", "b", "b", "c", None, None, "x"], torch.tensor([1, 1, 0, 0, 1, 0, 0, 1]), [0] * 5 + [1] * 3
    )
    close(got, [0.5, 0.0])


def test_overlong_penalty() -> None:
    close(ra.overlong_penalty(torch.tensor([12, 14, 16, 99]), 16, 4), [0, -0.5, -1, -1])


def test_entropy_takes_minus_infinity() -> None:
    logits = torch.tensor([[0.0, 0.0, -float("inf")]], requires_grad=True)
    entropy = ra.entropy_from_logits(logits)
    entropy.sum().backward()
    close(entropy, [0.693147])
    close(logits.grad, [[0, 0, 0]])


def test_rewards_on_the_last_trainable_token() -> None:
    mask = torch.tensor([[1, 0, 1, 0], [0, 0, 0, 0]])
    placed = ra.place_on_last_token(torch.tensor([2.0, 5.0]), mask)
    close(placed, [[0, 0, 2, 0], [0, 0, 0, 0]])


def test_clip_cov_tokens_are_chosen_on_the_whole_batch() -> None:
    generator = torch.Generator().manual_seed(0)
    log_prob, gain = torch.randn(8, 50, generator=generator), torch.randn(8, 50, generator=generator)
    mask = torch.rand(8, 50, generator=generator) < 0.7
    chosen = ra.select_clip_cov_tokens(
        log_prob, log_prob, gain, mask, clip_cov_ratio=0.02, clip_cov_lb=0.1, generator=generator
    )
    assert chosen.sum() == int(0.02 * int(mask.sum())) and not chosen[~mask].any()
    top = ra.select_kl_cov_tokens(log_prob, gain, mask, kl_cov_ratio=0.02)
    assert top.sum() == chosen.sum() and not top[~mask].any()


def test_distillation_directions_and_the_tail() -> None:
    torch.manual_seed(0)
    student, teacher = torch.randn(2, 3, 7, requires_grad=True), torch.randn(2, 3, 7)
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    forward = ra.distillation_kl(student, teacher, mask)
    reverse = ra.distillation_kl(student, teacher, mask, "reverse")
    p, q = teacher.log_softmax(-1), student.log_softmax(-1)
    close(forward[0, 0], float((p.exp() * (p - q)).sum(-1)[0, 0]))
    close(reverse[0, 0], float((q.exp() * (q - p)).sum(-1)[0, 0]))
    top, ids = p.topk(3, dim=-1)
    bounded = ra.topk_distillation_kl(student, top, ids, mask)
    assert bool((bounded >= 0).all()) and bool((bounded <= forward + 1e-6).all())
    every, all_ids = p.topk(7, dim=-1)
    torch.testing.assert_close(ra.topk_distillation_kl(student, every, all_ids, mask), forward)
    bad = torch.where(mask[..., None].bool(), student, NAN)
    got = ra.distillation_kl(bad, teacher, mask)
    (slope,) = torch.autograd.grad(got.sum(), student)
    assert not slope[mask == 0].any() and torch.equal(got, forward)


def test_pf_ppo_draws_by_weight() -> None:
    scores = torch.tensor([0.0, 0.0, 3.0, 0.0])
    draw = ra.pf_ppo_indices(scores, "pow", generator=torch.Generator().manual_seed(0))
    assert draw.tolist() == [2, 2, 2, 2]
    assert ra.pf_ppo_indices(torch.zeros(3)).shape == (3,)


def test_group_filter_uses_raw_outcomes() -> None:
    keep = ra.informative_groups(torch.tensor([1.0, 0.0, 1.0, 1.0]), ["a", "a", "b", "b"])
    assert keep.tolist() == [True, True, False, False]
