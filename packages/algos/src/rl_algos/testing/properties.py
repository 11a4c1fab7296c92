"""Properties that estimators and losses share, and how a property is checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from rl_algos.metrics import Metric
from rl_algos.testing.batches import GARBAGE, Batch


@dataclass(frozen=True)
class Result:
    """What a function gave: tensors `[B, T]` by name, a scalar `loss` where it is one, and metrics."""

    tokens: dict[str, Tensor]
    loss: Tensor | None = None
    metrics: dict[str, Metric] = field(default_factory=dict)


class Subject(Protocol):
    """A function under test with the options to call it with."""

    def run(self, batch: Batch, mask: Tensor | None = None) -> Result:
        """Call it on the batch, with another mask if one is given."""

    def expected(self, batch: Batch) -> tuple[Any, Any] | None:
        """What it gives in float32 and what the oracle says, of the selected tokens; None without one."""


def masked_values_never_matter(subject: Subject, batch: Batch) -> None:
    result = subject.run(batch)
    for name, value in result.tokens.items():
        assert not value[~batch.mask].any(), f"{name} under the mask is not exactly 0"
        assert bool(value.isfinite().all()), f"{name} is not finite"
    for garbage in GARBAGE:
        _same(subject.run(batch.garbled(garbage)), result, f"{garbage} under the mask")


def mask_dtype_does_not_matter(subject: Subject, batch: Batch) -> None:
    result = subject.run(batch)
    for dtype in (torch.int64, torch.uint8, torch.float32, torch.bfloat16):
        _same(subject.run(batch, batch.mask.to(dtype)), result, f"a {dtype} mask")


def rows_can_be_permuted(subject: Subject, batch: Batch) -> None:
    order = torch.arange(len(batch.mask)).flip(0)
    result = subject.run(batch)
    permuted = {name: value[order] for name, value in result.tokens.items()}
    assert_close(subject.run(batch.rows(order)), Result(permuted, result.loss, result.metrics))


def padding_does_not_matter(subject: Subject, batch: Batch) -> None:
    width = batch.mask.shape[1]
    wider = subject.run(batch.padded(3))
    for name, value in wider.tokens.items():
        assert not value[:, width:].any(), f"{name} in padded columns is not exactly 0"
    cut = {name: value[:, :width] for name, value in wider.tokens.items()}
    assert_close(Result(cut, wider.loss, wider.metrics), subject.run(batch))


def lower_precision_is_close(subject: Subject, batch: Batch) -> None:
    """Half precision is for storage: statistics and losses are float32."""
    narrow = batch.to(torch.float32)
    exact, got, half = (subject.run(b) for b in (narrow.to(torch.float64), narrow, batch.to(torch.bfloat16)))
    for name, value in _tensors(got):
        reference = dict(_tensors(exact))[name]
        assert value.dtype == torch.float32 and reference.dtype == torch.float64, f"dtype of {name}"
        torch.testing.assert_close(value.double(), reference, rtol=1e-4, atol=1e-5)
    for name, value in _tensors(half):
        wanted = torch.bfloat16 if name.startswith("gradient") else torch.float32
        assert value.dtype == wanted and bool(value.isfinite().all()), f"{name} of half-precision inputs"


def agrees_with_the_oracle(subject: Subject, batch: Batch) -> None:
    pair = subject.expected(batch.to(torch.float32))
    if pair is not None:
        got, wanted = (torch.as_tensor(value).double() for value in pair)
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


SHARED = (
    masked_values_never_matter,
    mask_dtype_does_not_matter,
    rows_can_be_permuted,
    padding_does_not_matter,
    lower_precision_is_close,
    agrees_with_the_oracle,
)

_Subject = TypeVar("_Subject")


def check_property(
    check: Callable[[_Subject, Batch], None],
    subjects: Sequence[_Subject],
    strategy: st.SearchStrategy[Batch],
    max_examples: int,
) -> None:
    """Check a property on random batches, with one of the subjects drawn for each."""
    quiet = list(HealthCheck)

    @settings(max_examples=max_examples, deadline=None, suppress_health_check=quiet, database=None)
    @given(batch=strategy, subject=st.sampled_from(subjects))
    def holds(batch: Batch, subject: _Subject) -> None:
        check(subject, batch)

    holds()


def assert_close(got: Result, expected: Result) -> None:
    """Both results are the same up to the rounding of float64."""
    for (name, value), (_, reference) in zip(_tensors(got), _tensors(expected), strict=True):
        torch.testing.assert_close(
            value, reference, rtol=1e-7, atol=1e-9, msg=f"{name}: {value}, {reference}"
        )
    same_metrics(got.metrics, expected.metrics)


def same_metrics(one: dict[str, Metric], other: dict[str, Metric]) -> None:
    """Both have the same metrics, NaN for NaN."""
    assert one.keys() == other.keys(), f"metrics differ: {sorted(one)} and {sorted(other)}"
    for name, metric in one.items():
        a, b = metric.value(), other[name].value()
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7, equal_nan=True, msg=f"metric {name}: {a}, {b}")


def _same(got: Result, expected: Result, cause: str) -> None:
    for (name, value), (_, reference) in zip(_tensors(got), _tensors(expected), strict=True):
        assert torch.equal(value, reference), f"{cause} changes the {name}: {reference} to {value}"
    same_metrics(got.metrics, expected.metrics)


def _tensors(result: Result) -> list[tuple[str, Tensor]]:
    return [*result.tokens.items(), *([] if result.loss is None else [("loss", result.loss)])]
