"""Properties of advantage estimators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rl_algos.registry import AdvEstSpec, get_adv_estimator_spec
from rl_algos.testing.batches import Batch, InputMaker, batches
from rl_algos.testing.properties import SHARED, Result, assert_close, check_property

AdvEstOracle = Callable[..., Any]
ID_NAMES = ("index", "trajectory_index", "anchor_state")


@dataclass(frozen=True)
class EstimatorSubject:
    """An estimator under test with the options to call it with."""

    spec: AdvEstSpec
    options: dict[str, Any]
    oracle: AdvEstOracle | None = None

    def run(self, batch: Batch, mask: Tensor | None = None) -> Result:
        inputs = dict(batch.inputs)
        if self.spec.non_negative_scores:
            inputs["token_level_rewards"] = inputs["token_level_rewards"].abs()
        chosen = batch.mask if mask is None else mask
        advantages, returns = self.spec.fn(response_mask=chosen, **inputs, **self.options)
        return Result({"advantages": advantages, "returns": returns})

    def expected(self, batch: Batch) -> tuple[Any, Any] | None:
        if self.oracle is None:
            return None
        inputs = dict(batch.to(torch.float64).inputs)
        if self.spec.non_negative_scores:
            inputs["token_level_rewards"] = inputs["token_level_rewards"].abs()
        wanted = torch.as_tensor(self.oracle(mask=batch.mask, **inputs, **self.options))
        return self.run(batch).tokens["advantages"][batch.mask], wanted[batch.mask]


def ids_can_be_renamed(subject: EstimatorSubject, batch: Batch) -> None:
    names = [name for name in ID_NAMES if name in batch.inputs]
    result = subject.run(batch)
    renamings: tuple[Callable[[int], Any], ...] = (
        lambda i: f"{'0' * i}1",
        lambda i: ("prompt", -i),
        lambda i: 0.1 * (7 - i),
    )
    for rename in renamings:
        ids = {name: [rename(int(i)) for i in batch.inputs[name]] for name in names}
        assert_close(subject.run(batch.with_inputs(**ids)), result)


def empty_rows_count_nowhere(subject: EstimatorSubject, batch: Batch) -> None:
    mask = batch.mask.clone()
    mask[0] = False
    with_empty = Batch(mask, batch.index, batch.inputs)
    result = subject.run(with_empty).tokens
    assert not any(value[0].any() for value in result.values())
    rest = subject.run(with_empty.rows(torch.arange(1, len(mask))))
    assert_close(Result({name: value[1:] for name, value in result.items()}), rest)


def groups_without_variance_give_exactly_zero(subject: EstimatorSubject, batch: Batch) -> None:
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
        advantages = subject.run(flat.to(dtype)).tokens["advantages"]
        assert not advantages.any(), f"constant groups give {advantages.abs().max()} in {dtype}"
    alone = {name: torch.arange(len(batch.mask)) for name in ID_NAMES if name in batch.inputs}
    advantages = subject.run(batch.with_inputs(**alone)).tokens["advantages"]
    assert not advantages.any(), "groups of one do not give exactly 0"


ADV_EST_PROPERTIES: dict[str, Callable[[EstimatorSubject, Batch], None]] = {
    check.__name__: check
    for check in (
        *SHARED,
        ids_can_be_renamed,
        empty_rows_count_nowhere,
        groups_without_variance_give_exactly_zero,
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
    subjects = [EstimatorSubject(spec, options or {}, oracle)]
    strategy = batches(("token_level_rewards", *spec.inputs), makers)
    for chosen in properties:
        check_property(ADV_EST_PROPERTIES[chosen], subjects, strategy, max_examples)
