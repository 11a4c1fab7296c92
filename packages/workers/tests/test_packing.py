"""Packing: the right labels, no pad token through the model, the same log-probabilities in every layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM
from workers_models import make_batch
from workers_programs import log_probs
from workers_ranks import run_ranks

from rl_workers import BatchError, TokenBudgetError, balanced_order, check_longest_row, plan_micro_batches
from rl_workers.compute.attention import AttentionPlan, Unit
from rl_workers.compute.micro_batches import row_cost
from rl_workers.compute.packing import pack_rows, tabulate_rows


def table_of(batch: dict[str, torch.Tensor]):  # type: ignore[no-untyped-def]
    return tabulate_rows(batch["input_ids"], batch["attention_mask"], batch["response_mask"])


def test_the_last_token_of_one_row_never_predicts_the_first_of_the_next() -> None:
    ids = torch.tensor([[10, 11, 12], [20, 21, 0]])
    real = torch.tensor([[1, 1, 1], [1, 1, 0]])
    packed = pack_rows(tabulate_rows(ids, real, real[:, 1:]), [0, 1])
    pairs = [
        (int(packed.input_ids[0, p]), int(y)) for p, y in zip(packed.predict, packed.labels, strict=True)
    ]
    assert pairs == [(10, 11), (11, 12), (20, 21)]
    assert packed.input_ids.tolist() == [[10, 11, 20]]  # a last token predicts nothing: left out
    assert packed.position_ids.tolist() == [[0, 1, 0]]


def test_a_shared_prompt_stands_once() -> None:
    ids = torch.tensor([[7, 8, 1, 2, 3], [7, 8, 4, 5, 0], [9, 9, 6, 6, 6]])
    real = (ids > 0).long()
    packed = pack_rows(tabulate_rows(ids, real, real[:, 2:]), [0, 1, 2])
    assert packed.input_ids.tolist() == [[7, 8, 1, 2, 4, 9, 9, 6, 6]]
    assert packed.position_ids.tolist() == [[0, 1, 2, 3, 2, 0, 1, 2, 3]]
    assert packed.plan is not None and packed.plan.units == [Unit(2, (2, 1)), Unit(2, (2,))]


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(0, 99),
    st.booleans(),
    st.booleans(),
    st.integers(16, 80),
)
def test_every_trained_token_is_predicted_once(
    groups: int, n: int, seed: int, left: bool, holes: bool, budget: int
) -> None:
    batch = make_batch(groups, n, 9, 7, seed=seed, left=left, holes=holes)
    table = table_of(batch)
    seen = torch.zeros_like(batch["response_mask"])
    for rows in plan_micro_batches(table, budget):
        packed = pack_rows(table, rows)
        assert packed.tokens <= budget
        if packed.is_dummy:
            continue
        seen.index_put_((packed.rows, packed.columns), torch.ones_like(packed.rows), accumulate=True)
        assert torch.equal(batch["responses"][packed.rows, packed.columns], packed.labels)
    assert torch.equal(seen, batch["response_mask"])


@pytest.fixture(scope="module")
def one_by_one(tied_model: str) -> np.ndarray:
    batch = make_batch(3, 4, 9, 7, seed=21, holes=True)
    model = AutoModelForCausalLM.from_pretrained(tied_model).eval()
    out = torch.zeros(batch["response_mask"].shape)
    for row in range(12):
        ids = batch["input_ids"][row][batch["attention_mask"][row].bool()]
        with torch.no_grad():
            log_p = torch.log_softmax(model(ids[None]).logits[0], -1)
        length = int(batch["attention_mask"][row, 9:].sum())
        found = log_p[:-1].gather(1, ids[1:, None])[-length:, 0]
        out[row, :length] = found * batch["response_mask"][row, :length]
    return out.numpy()


@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
@pytest.mark.parametrize("form", ["padded", "packed", "shared"])
def test_every_layout_gives_the_same_log_probs(
    tied_model: str, tmp_path: Path, one_by_one: np.ndarray, form: str, left: bool
) -> None:
    batch = make_batch(3, 4, 9, 7, seed=21, left=left, holes=True)
    found = run_ranks(tmp_path, 1, log_probs, tied_model, batch, form, 64)[0][0]
    np.testing.assert_allclose(found, one_by_one, atol=1e-5)


@pytest.mark.parametrize("form", ["packed", "shared"])
def test_a_row_s_bits_do_not_depend_on_another_row(tied_model: str, tmp_path: Path, form: str) -> None:
    batch = make_batch(2, 3, 9, 7, seed=22)
    changed = {k: v.clone() for k, v in batch.items()}
    real = changed["attention_mask"][5].bool()
    changed["input_ids"][5, 9:] = torch.where(real[9:], 99, changed["input_ids"][5, 9:])
    a, b = (run_ranks(tmp_path, 1, log_probs, tied_model, x, form, 4096)[0][0] for x in (batch, changed))
    assert np.array_equal(a[:5], b[:5]) and not np.array_equal(a[5], b[5])


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.tuples(st.integers(1, 6), st.lists(st.integers(0, 6), min_size=1, max_size=4)), min_size=1),
    st.sampled_from([None, 1, 3]),
    st.booleans(),
)
def test_attention_sees_the_prompt_and_oneself(
    shape: list[tuple[int, list[int]]], window: int | None, split: bool
) -> None:
    units = [Unit(p, tuple(r)) for p, r in shape]
    total = sum(u.tokens for u in units)
    q, k, v = (torch.randn(1, heads, total, 8) for heads in (4, 2, 2))
    plan = AttentionPlan(units)
    found = _attend(plan, q, k, v, window, split)
    start = 0
    for unit in units:
        offset = start + unit.prompt
        prompt = torch.arange(start, offset)
        for length in (0, *unit.responses):
            own = torch.arange(offset, offset + length)
            keys = torch.cat([prompt, own])
            rows = own if length else prompt
            distance = torch.arange(keys.numel())[-rows.numel() :, None] - torch.arange(keys.numel())[None]
            seen = (distance >= 0) & (distance < (window or 10**9))
            scores = q[0][:, rows] @ k[0][:, keys].repeat_interleave(2, 0).mT / 8**0.5
            weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
            want = weights @ v[0][:, keys].repeat_interleave(2, 0)
            torch.testing.assert_close(found[0][:, rows], want, atol=1e-5, rtol=1e-4)
            offset += length
        start = offset


def _attend(
    plan: AttentionPlan, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int | None, split: bool
) -> torch.Tensor:
    import rl_workers.compute.attention as attention

    limit = attention._DENSE_UNIT
    attention._DENSE_UNIT = 0 if split else limit
    try:
        return plan.attend(q, k, v, None, window)
    finally:
        attention._DENSE_UNIT = limit


def test_eight_rows_of_seven_tokens_make_eight_micro_batches() -> None:
    ids = torch.arange(4, 60).view(8, 7)
    table = tabulate_rows(ids, torch.ones_like(ids), torch.ones(8, 4))
    plan = plan_micro_batches(table, 8)
    assert sorted(map(len, plan)) == [1] * 8
    long = torch.arange(4, 13)[None]
    with pytest.raises(TokenBudgetError, match=r"5 prompt and 4 response tokens has 9 .*to at least 9"):
        plan_micro_batches(
            tabulate_rows(long, torch.ones_like(long), torch.ones(1, 4)), 8, key="actor.budget"
        )
    with pytest.raises(TokenBudgetError, match="at least 1024"):
        check_longest_row(512, 512, 1000, "actor.budget")


def test_ranks_agree_on_the_number_of_micro_batches() -> None:
    table = table_of(make_batch(1, 2, 9, 7, seed=1))
    plan = plan_micro_batches(table, 4096, agree=lambda count: 5)
    assert len(plan) == 5 and sorted(row for rows in plan for row in rows) == [0, 1]
    assert pack_rows(table, []).is_dummy


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), max_size=40), st.integers(1, 6))
def test_balanced_order_is_a_permutation_and_even(rows: list[tuple[int, int]], parts: int) -> None:
    prompts, responses = [p for p, _ in rows], [r for _, r in rows]
    order = balanced_order(prompts, responses, parts)
    assert sorted(order) == list(range(len(rows)))


@pytest.mark.parametrize("dtype", [np.int32, torch.int32, torch.int16])
def test_long_rows_are_balanced_though_their_squares_exceed_the_lengths_type(dtype: Any) -> None:
    long = [30_000, 32_000, 200, 100]
    make = np.asarray if isinstance(dtype, type) else torch.tensor
    order = balanced_order(make([100] * 4, dtype=dtype), make(long, dtype=dtype), 2)
    assert order == balanced_order([100] * 4, long, 2)
    assert row_cost(np.int32(1000), np.int32(60_000)) == row_cost(1000, 60_000) > 60_000


def test_balanced_order_keeps_groups_and_evens_cost() -> None:
    prompts, responses = [40] * 32, [5, 90] * 16
    groups = [row // 4 for row in range(32)]
    order = balanced_order(prompts, responses, 2, groups)
    halves = [order[:16], order[16:]]
    assert all(len({groups[row] for row in half}) == 4 for half in halves)
    sums = [sum(responses[row] for row in half) for half in halves]
    assert sums[0] == sums[1]


def test_impossible_batches_are_refused() -> None:
    ids = torch.ones(1, 4, dtype=torch.long)
    with pytest.raises(BatchError, match="a pad token cannot be trained"):
        tabulate_rows(ids, torch.tensor([[1, 1, 1, 0]]), torch.ones(1, 2))
    with pytest.raises(BatchError, match="no prompt token"):
        tabulate_rows(ids, torch.tensor([[0, 0, 1, 1]]), torch.ones(1, 2))
    with pytest.raises(BatchError, match="disagree"):
        tabulate_rows(ids, torch.ones(1, 3), torch.ones(1, 2))
