"""Properties of policy losses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rl_algos.aggregation import loss_weights
from rl_algos.metrics import merge_metrics
from rl_algos.registry import PolicyLossFn, PolicyLossSpec, get_policy_loss_spec
from rl_algos.testing.batches import Batch, InputMaker, batches
from rl_algos.testing.properties import SHARED, Result, assert_close, check_property

LossOracle = Callable[..., Any]
MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean")


@dataclass(frozen=True)
class LossSubject:
    """A loss under test with the options to call it with and a mode of aggregation."""

    spec: PolicyLossSpec
    options: dict[str, Any]
    mode: str
    oracle: LossOracle | None = None

    def weights(self, batch: Batch) -> Tensor:
        return loss_weights(batch.mask, self.mode, dtype=torch.float64)

    def run(self, batch: Batch, mask: Tensor | None = None, weights: Tensor | None = None) -> Result:
        """Loss, gradient in `log_prob`, metrics; `weights` of a larger batch for a part of it."""
        inputs = dict(batch.inputs)
        log_prob = inputs.pop("log_prob").detach().clone().requires_grad_()
        loss, metrics = self.spec.fn(
            log_prob=log_prob,
            response_mask=batch.mask if mask is None else mask,
            row_weights=self.weights(batch) if weights is None else weights,
            **inputs,
            **self.options,
        )
        (gradient,) = torch.autograd.grad(loss, log_prob)
        return Result({"gradient": gradient}, loss.detach(), metrics)

    def expected(self, batch: Batch) -> tuple[Any, Any] | None:
        if self.oracle is None:
            return None
        inputs, weights = batch.to(torch.float64).inputs, self.weights(batch)
        wanted = self.oracle(mask=batch.mask, weights=weights, **inputs, **self.options)
        return self.run(batch).loss, wanted

    def declared(self, batch: Batch, log_prob: Tensor, anchor: Tensor) -> float:
        """Value at `log_prob` of the function whose gradient at `anchor` the loss is meant to have."""
        inputs = {**batch.inputs, "log_prob": log_prob}
        fn: PolicyLossFn = self.spec.fn
        if self.spec.surrogate is not None:
            fn, inputs = self.spec.surrogate, {**inputs, "anchor": anchor}
        with torch.no_grad():
            loss, _ = fn(response_mask=batch.mask, row_weights=self.weights(batch), **inputs, **self.options)
        return float(loss)


def nothing_selected_is_zero(subject: LossSubject, batch: Batch) -> None:
    result = subject.run(Batch(torch.zeros_like(batch.mask), batch.index, batch.inputs))
    assert result.loss == 0, "the loss without any token is not exactly 0"
    assert not result.tokens["gradient"].any(), "the gradient without any token is not exactly 0"


def micro_batches_add_up(subject: LossSubject, batch: Batch) -> None:
    weights, result = subject.weights(batch), subject.run(batch)
    for size in (1, 2, 3):
        parts = torch.arange(len(batch.mask)).split(size)  # type: ignore[no-untyped-call]
        runs = [subject.run(batch.rows(part), weights=weights[part]) for part in parts]
        gradient = torch.cat([run.tokens["gradient"] for run in runs])
        total = torch.stack([run.loss for run in runs if run.loss is not None]).sum()
        metrics = merge_metrics(run.metrics for run in runs)
        assert_close(Result({"gradient": gradient}, total, metrics), result)


def gradient_is_that_of_the_declared_function(subject: LossSubject, batch: Batch) -> None:
    gradient = subject.run(batch).tokens["gradient"]
    point, step = batch.inputs["log_prob"], 1e-5
    here = subject.declared(batch, point, point)
    for place in batch.mask.nonzero():
        move = torch.zeros_like(point)
        move[tuple(place)] = step
        ahead = (subject.declared(batch, point + move, point) - here) / step
        behind = (here - subject.declared(batch, point - move, point)) / step
        # Between the slopes of both sides, which differ at the edge of a clip.
        low, high, got = min(ahead, behind), max(ahead, behind), float(gradient[tuple(place)])
        slack = 1e-5 * max(1.0, abs(low), abs(high))
        assert low - slack <= got <= high + slack, (
            f"gradient {got} at token {tuple(int(i) for i in place)}, finite differences {low} to {high}"
        )


def tokens_are_independent(subject: LossSubject, batch: Batch) -> None:
    """Another token's log-prob does not change a token's gradient; over rows for a sequence-level loss."""
    moved = batch.inputs["log_prob"].clone()
    moved[0, 0] -= 0.7
    apart = torch.ones_like(batch.mask)
    if subject.spec.sequence_level:
        apart[0] = False
    else:
        apart[0, 0] = False
    results = (subject.run(b).tokens["gradient"] for b in (batch.with_inputs(log_prob=moved), batch))
    got, expected = (Result({"gradient": gradient[apart]}) for gradient in results)
    assert_close(got, expected)


POLICY_LOSS_PROPERTIES: dict[str, Callable[[LossSubject, Batch], None]] = {
    check.__name__: check
    for check in (
        *SHARED,
        nothing_selected_is_zero,
        micro_batches_add_up,
        gradient_is_that_of_the_declared_function,
        tokens_are_independent,
    )
}


def check_policy_loss(
    name: str,
    *,
    options: dict[str, Any] | None = None,
    makers: dict[str, InputMaker] | None = None,
    oracle: LossOracle | None = None,
    properties: tuple[str, ...] = tuple(POLICY_LOSS_PROPERTIES),
    max_examples: int = 20,
) -> None:
    """Check the registered policy loss `name` on random batches; raises `AssertionError` at the first
    violation.

    `options`: keywords to call it with. `makers`: how further inputs are made, by keyword. `oracle`: a plain
    float64 computation `oracle(mask=, weights=, old_log_prob=, log_prob=, advantages=, ...) -> value`.
    """
    spec = get_policy_loss_spec(name)
    subjects = [LossSubject(spec, options or {}, mode, oracle) for mode in MODES]
    strategy = batches(("old_log_prob", "log_prob", "advantages", *spec.inputs), makers)
    for chosen in properties:
        check_property(POLICY_LOSS_PROPERTIES[chosen], subjects, strategy, max_examples)
