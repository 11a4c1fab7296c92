"""Properties of policy losses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from rl_algos.aggregation import loss_weights
from rl_algos.metrics import Metric, merge_metrics
from rl_algos.registry import PolicyLossFn, PolicyLossSpec, get_policy_loss_spec
from rl_algos.testing.batches import GARBAGE, Batch, InputMaker, batches

LossOracle = Callable[..., Any]
MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean")


@dataclass(frozen=True)
class Subject:
    """A loss under test with the options to call it with."""

    spec: PolicyLossSpec
    options: dict[str, Any]
    oracle: LossOracle | None = None

    def weights(self, batch: Batch, mode: str) -> Tensor:
        return loss_weights(batch.mask, mode, dtype=torch.float64)

    def run(
        self, batch: Batch, weights: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, dict[str, Metric]]:
        """Loss, gradient in `log_prob`, metrics."""
        inputs = dict(batch.inputs)
        log_prob = inputs.pop("log_prob").detach().clone().requires_grad_()
        chosen = batch.mask if mask is None else mask
        loss, metrics = self.spec.fn(
            log_prob=log_prob, response_mask=chosen, row_weights=weights, **inputs, **self.options
        )
        (gradient,) = torch.autograd.grad(loss, log_prob)
        return loss.detach(), gradient, metrics

    def declared(self, batch: Batch, weights: Tensor, log_prob: Tensor, anchor: Tensor) -> float:
        """Value at `log_prob` of the function whose gradient at `anchor` the loss is meant to have."""
        inputs = {**batch.inputs, "log_prob": log_prob}
        fn: PolicyLossFn = self.spec.fn
        if self.spec.surrogate is not None:
            fn, inputs = self.spec.surrogate, {**inputs, "anchor": anchor}
        with torch.no_grad():
            loss, _ = fn(response_mask=batch.mask, row_weights=weights, **inputs, **self.options)
        return float(loss)


def masked_values_never_matter(subject: Subject, batch: Batch, mode: str) -> None:
    weights = subject.weights(batch, mode)
    loss, gradient, metrics = subject.run(batch, weights)
    assert not gradient[~batch.mask].any(), "the gradient under the mask is not exactly 0"
    for garbage in GARBAGE:
        other, slope, others = subject.run(batch.garbled(garbage), weights)
        assert torch.equal(loss, other), f"{garbage} under the mask changes the loss: {loss} to {other}"
        assert torch.equal(gradient, slope), f"{garbage} under the mask changes the gradient"
        _same_metrics(metrics, others)


def nothing_selected_is_zero(subject: Subject, batch: Batch, mode: str) -> None:
    empty = Batch(torch.zeros_like(batch.mask), batch.index, batch.inputs)
    loss, gradient, _ = subject.run(empty, subject.weights(empty, mode))
    assert loss == 0 and not gradient.any(), "loss or gradient without any token is not exactly 0"


def mask_dtype_does_not_matter(subject: Subject, batch: Batch, mode: str) -> None:
    weights = subject.weights(batch, mode)
    loss, gradient, _ = subject.run(batch, weights)
    for dtype in (torch.int64, torch.uint8, torch.float32, torch.bfloat16):
        other, slope, _ = subject.run(batch, weights, batch.mask.to(dtype))
        assert torch.equal(loss, other) and torch.equal(gradient, slope), f"a {dtype} mask changes the result"


def rows_can_be_permuted(subject: Subject, batch: Batch, mode: str) -> None:
    order = torch.arange(len(batch.mask)).flip(0)
    weights = subject.weights(batch, mode)
    loss, gradient, metrics = subject.run(batch, weights)
    other, slope, others = subject.run(batch.rows(order), weights[order])
    _close(other, loss)
    _close(slope, gradient[order])
    _same_metrics(metrics, others)


def micro_batches_add_up(subject: Subject, batch: Batch, mode: str) -> None:
    weights = subject.weights(batch, mode)
    loss, gradient, metrics = subject.run(batch, weights)
    for size in (1, 2, 3):
        parts = torch.arange(len(batch.mask)).split(size)  # type: ignore[no-untyped-call]
        runs = [subject.run(batch.rows(part), weights[part]) for part in parts]
        _close(sum(run[0] for run in runs), loss)
        _close(torch.cat([run[1] for run in runs]), gradient)
        _same_metrics(metrics, merge_metrics(run[2] for run in runs))


def padding_does_not_matter(subject: Subject, batch: Batch, mode: str) -> None:
    width = batch.mask.shape[1]
    loss, gradient, metrics = subject.run(batch, subject.weights(batch, mode))
    wider = batch.padded(3)
    other, slope, others = subject.run(wider, subject.weights(wider, mode))
    _close(other, loss)
    _close(slope[:, :width], gradient)
    assert not slope[:, width:].any(), "the gradient in padded columns is not exactly 0"
    _same_metrics(metrics, others)


def gradient_is_that_of_the_declared_function(subject: Subject, batch: Batch, mode: str) -> None:
    weights = subject.weights(batch, mode)
    _, gradient, _ = subject.run(batch, weights)
    point, step = batch.inputs["log_prob"], 1e-5
    here = subject.declared(batch, weights, point, point)
    for place in batch.mask.nonzero():
        move = torch.zeros_like(point)
        move[tuple(place)] = step
        ahead = (subject.declared(batch, weights, point + move, point) - here) / step
        behind = (here - subject.declared(batch, weights, point - move, point)) / step
        # Between the slopes of both sides, which differ at the edge of a clip.
        low, high, got = min(ahead, behind), max(ahead, behind), float(gradient[tuple(place)])
        slack = 1e-5 * max(1.0, abs(low), abs(high))
        assert low - slack <= got <= high + slack, (
            f"gradient {got} at token {tuple(int(i) for i in place)}, finite differences {low} to {high}"
        )


def tokens_are_independent(subject: Subject, batch: Batch, mode: str) -> None:
    """Another token's log-prob does not change a token's gradient; over rows for a sequence-level loss."""
    weights = subject.weights(batch, mode)
    _, gradient, _ = subject.run(batch, weights)
    moved = batch.inputs["log_prob"].clone()
    moved[0, 0] -= 0.7
    _, other, _ = subject.run(batch.with_inputs(log_prob=moved), weights)
    apart = torch.ones_like(batch.mask)
    if subject.spec.sequence_level:
        apart[0] = False
    else:
        apart[0, 0] = False
    _close(other[apart], gradient[apart])


def lower_precision_is_close(subject: Subject, batch: Batch, mode: str) -> None:
    weights = loss_weights(batch.mask, mode)
    narrow = batch.to(torch.float32)
    reference, exact_slope, _ = subject.run(narrow.to(torch.float64), weights)
    loss, gradient, _ = subject.run(narrow, weights)
    assert loss.dtype == torch.float32 and reference.dtype == torch.float64
    torch.testing.assert_close(loss.double(), reference, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradient.double(), exact_slope, rtol=1e-4, atol=1e-5)
    half, half_slope, _ = subject.run(batch.to(torch.bfloat16), weights)
    assert half.dtype == torch.float32, "half precision is for storage: the loss is float32"
    assert half_slope.dtype == torch.bfloat16 and bool(half_slope.isfinite().all())
    assert not half_slope[~batch.mask].any()


def agrees_with_the_oracle(subject: Subject, batch: Batch, mode: str) -> None:
    if subject.oracle is None:
        return
    narrow = batch.to(torch.float32)
    weights = loss_weights(batch.mask, mode)
    loss, _, _ = subject.run(narrow, weights)
    wide = narrow.to(torch.float64)
    expected = subject.oracle(mask=batch.mask, weights=weights.double(), **wide.inputs, **subject.options)
    torch.testing.assert_close(loss.double(), torch.as_tensor(expected).double(), rtol=1e-4, atol=1e-5)


Property = Callable[[Subject, Batch, str], None]
POLICY_LOSS_PROPERTIES: dict[str, Property] = {
    check.__name__: check
    for check in (
        masked_values_never_matter,
        nothing_selected_is_zero,
        mask_dtype_does_not_matter,
        rows_can_be_permuted,
        micro_batches_add_up,
        padding_does_not_matter,
        gradient_is_that_of_the_declared_function,
        tokens_are_independent,
        lower_precision_is_close,
        agrees_with_the_oracle,
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
    subject = Subject(spec, options or {}, oracle)
    inputs = ("old_log_prob", "log_prob", "advantages", *spec.inputs)
    for chosen in properties:
        _check(POLICY_LOSS_PROPERTIES[chosen], subject, batches(inputs, makers), max_examples)


def _check(run: Property, subject: Subject, strategy: st.SearchStrategy[Batch], max_examples: int) -> None:
    quiet = list(HealthCheck)

    @settings(max_examples=max_examples, deadline=None, suppress_health_check=quiet, database=None)
    @given(batch=strategy, mode=st.sampled_from(MODES))
    def holds(batch: Batch, mode: str) -> None:
        run(subject, batch, mode)

    holds()


def _same_metrics(one: dict[str, Metric], other: dict[str, Metric]) -> None:
    assert one.keys() == other.keys(), f"metrics differ: {sorted(one)} and {sorted(other)}"
    for name, metric in one.items():
        a, b = metric.value(), other[name].value()
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7, equal_nan=True, msg=f"metric {name}: {a}, {b}")


def _close(got: Any, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-11)
