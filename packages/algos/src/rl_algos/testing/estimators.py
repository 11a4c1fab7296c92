"""Properties of advantage estimators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from rl_algos.registry import AdvEstSpec, get_adv_estimator_spec
from rl_algos.testing.batches import GARBAGE, Batch, InputMaker, batches

AdvEstOracle = Callable[..., Any]
ID_NAMES = ("index", "trajectory_index", "anchor_state")


@dataclass(frozen=True)
class Subject:
    """An estimator under test with the options to call it with."""

    spec: AdvEstSpec
    options: dict[str, Any]
    oracle: AdvEstOracle | None = None

    def run(self, batch: Batch, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        chosen = batch.mask if mask is None else mask
        result: tuple[Tensor, Tensor] = self.spec.fn(response_mask=chosen, **batch.inputs, **self.options)
        return result

    def prepared(self, batch: Batch) -> Batch:
        if not self.spec.non_negative_scores:
            return batch
        return batch.with_inputs(token_level_rewards=batch.inputs["token_level_rewards"].abs())


def masked_values_never_matter(subject: Subject, batch: Batch) -> None:
    advantages, returns = subject.run(batch)
    assert not advantages[~batch.mask].any(), "advantages outside the mask are not exactly 0"
    assert not returns[~batch.mask].any(), "returns outside the mask are not exactly 0"
    assert bool(advantages.isfinite().all()), "advantages are not finite"
    for garbage in GARBAGE:
        others = subject.run(batch.garbled(garbage))
        assert torch.equal(advantages, others[0]), f"{garbage} under the mask changes the advantages"
        assert torch.equal(returns, others[1]), f"{garbage} under the mask changes the returns"


def mask_dtype_does_not_matter(subject: Subject, batch: Batch) -> None:
    result = subject.run(batch)
    for dtype in (torch.int64, torch.uint8, torch.float32, torch.bfloat16):
        other = subject.run(batch, batch.mask.to(dtype))
        assert all(torch.equal(a, b) for a, b in zip(result, other, strict=True)), f"a {dtype} mask matters"


def rows_can_be_permuted(subject: Subject, batch: Batch) -> None:
    order = torch.arange(len(batch.mask)).flip(0)
    other = subject.run(batch.rows(order))
    for got, expected in zip(other, subject.run(batch), strict=True):
        _close(got, expected[order])


def ids_can_be_renamed(subject: Subject, batch: Batch) -> None:
    names = [name for name in ID_NAMES if name in batch.inputs]
    result = subject.run(batch)
    renamings: tuple[Callable[[int], Any], ...] = (
        lambda i: f"{'0' * i}1",
        lambda i: ("prompt", -i),
        lambda i: 0.1 * (7 - i),
    )
    for rename in renamings:
        ids = {name: [rename(int(i)) for i in batch.inputs[name]] for name in names}
        for got, expected in zip(subject.run(batch.with_inputs(**ids)), result, strict=True):
            _close(got, expected)


def padding_does_not_matter(subject: Subject, batch: Batch) -> None:
    width = batch.mask.shape[1]
    for got, expected in zip(subject.run(batch.padded(3)), subject.run(batch), strict=True):
        _close(got[:, :width], expected)
        assert not got[:, width:].any(), "padded columns are not exactly 0"


def empty_rows_count_nowhere(subject: Subject, batch: Batch) -> None:
    mask = batch.mask.clone()
    mask[0] = False
    with_empty = Batch(mask, batch.index, batch.inputs)
    without = with_empty.rows(torch.arange(1, len(mask)))
    advantages, returns = subject.run(with_empty)
    assert not advantages[0].any() and not returns[0].any()
    for got, expected in zip((advantages, returns), subject.run(without), strict=True):
        _close(got[1:], expected)


def groups_without_variance_give_exactly_zero(subject: Subject, batch: Batch) -> None:
    """Group estimators: a constant group and a group of one, in float32 and float64, for awkward scores."""
    if "index" not in batch.inputs:
        return
    last = (batch.mask.flip(1).cumsum(1).flip(1) == 1) & batch.mask
    scores = torch.tensor([0.1, 0.7, 100.1])[batch.index][:, None]
    flat = batch.with_inputs(token_level_rewards=torch.where(last, scores.double(), 0.0))
    for name in ("reward_components", "step_returns"):
        if name in batch.inputs:
            flat = flat.with_inputs(**{name: torch.full_like(batch.inputs[name], 0.3)})
    for dtype in (torch.float32, torch.float64):
        advantages, _ = subject.run(flat.to(dtype))
        assert not advantages.any(), f"constant groups give {advantages.abs().max()} in {dtype}"
    alone = batch.with_inputs(
        **{name: torch.arange(len(batch.mask)) for name in ID_NAMES if name in batch.inputs}
    )
    assert not subject.run(alone)[0].any(), "groups of one do not give exactly 0"


def lower_precision_is_close(subject: Subject, batch: Batch) -> None:
    narrow = batch.to(torch.float32)
    exact = subject.run(narrow.to(torch.float64))
    got = subject.run(narrow)
    for a, b in zip(got, exact, strict=True):
        assert a.dtype == torch.float32 and b.dtype == torch.float64
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-5)
    halves = subject.run(batch.to(torch.bfloat16))
    assert all(half.dtype == torch.float32 and bool(half.isfinite().all()) for half in halves)


def agrees_with_the_oracle(subject: Subject, batch: Batch) -> None:
    if subject.oracle is None:
        return
    narrow = batch.to(torch.float32)
    wide = narrow.to(torch.float64)
    expected = torch.as_tensor(subject.oracle(mask=batch.mask, **wide.inputs, **subject.options))
    advantages, _ = subject.run(narrow)
    got, wanted = advantages.double()[batch.mask], expected.double()[batch.mask]
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


Property = Callable[[Subject, Batch], None]
ADV_EST_PROPERTIES: dict[str, Property] = {
    check.__name__: check
    for check in (
        masked_values_never_matter,
        mask_dtype_does_not_matter,
        rows_can_be_permuted,
        ids_can_be_renamed,
        padding_does_not_matter,
        empty_rows_count_nowhere,
        groups_without_variance_give_exactly_zero,
        lower_precision_is_close,
        agrees_with_the_oracle,
    )
}


def check_adv_estimator(
    name: str,
    *,
    options: dict[str, Any] | None = None,
    makers: dict[str, InputMaker] | None = None,
    oracle: AdvEstOracle | None = None,
    properties: tuple[str, ...] = tuple(ADV_EST_PROPERTIES),
    max_examples: int = 30,
) -> None:
    """Check the registered estimator `name` on random batches; raises `AssertionError` at the first
    violation.

    `options`: keywords to call it with. `makers`: how further inputs are made, by keyword. `oracle`: a plain
    float64 computation `oracle(mask=, token_level_rewards=, ...) -> advantages [B, T]`.
    """
    spec = get_adv_estimator_spec(name)
    subject = Subject(spec, options or {}, oracle)
    strategy = batches(("token_level_rewards", *spec.inputs), makers)
    for chosen in properties:
        _check(ADV_EST_PROPERTIES[chosen], subject, strategy, max_examples)


def _check(run: Property, subject: Subject, strategy: st.SearchStrategy[Batch], max_examples: int) -> None:
    quiet = list(HealthCheck)

    @settings(max_examples=max_examples, deadline=None, suppress_health_check=quiet, database=None)
    @given(batch=strategy)
    def holds(batch: Batch) -> None:
        run(subject, subject.prepared(batch))

    holds()


def _close(got: Any, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-7, atol=1e-9)
