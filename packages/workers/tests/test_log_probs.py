"""Chunked log-probabilities and entropies against the plain form, values and gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import linear

from rl_workers import LogitForm, linear_log_probs
from rl_workers.compute.logprob import linear_sum_pi_squared


def plain(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    bias: torch.Tensor | None,
    form: LogitForm,
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = linear(hidden, weight, bias) * form.scale
    if form.softcap:
        logits = form.softcap * torch.tanh(logits / form.softcap)
    log_p = torch.log_softmax(logits / form.temperature, -1)
    return log_p.gather(1, labels[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)


@settings(deadline=None, max_examples=40)
@given(
    rows=st.integers(0, 9),
    chunk=st.integers(1, 10),
    temperature=st.sampled_from([1.0, 0.6, 1.7]),
    scale=st.sampled_from([1.0, 0.25]),
    softcap=st.sampled_from([0.0, 2.0]),
    with_bias=st.booleans(),
    entropy_grad=st.booleans(),
    seed=st.integers(0, 99),
)
def test_equals_the_plain_form(
    rows: int,
    chunk: int,
    temperature: float,
    scale: float,
    softcap: float,
    with_bias: bool,
    entropy_grad: bool,
    seed: int,
) -> None:
    g = torch.Generator().manual_seed(seed)
    hidden = torch.randn(rows, 6, generator=g, requires_grad=True)
    weight = torch.randn(17, 6, generator=g, requires_grad=True)
    bias = torch.randn(17, generator=g, requires_grad=True) if with_bias else None
    labels = torch.randint(0, 17, (rows,), generator=g)
    up = torch.randn(2, rows, generator=g)
    form = LogitForm(scale, softcap, temperature)
    inputs = [x for x in (hidden, weight, bias) if x is not None]

    lp, ent = linear_log_probs(
        hidden, weight, labels, bias=bias, form=form, entropy_grad=entropy_grad, chunk=chunk
    )
    want_lp, want_ent = plain(hidden, weight, labels, bias, form)
    torch.testing.assert_close(lp, want_lp, atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(ent, want_ent, atol=1e-5, rtol=1e-5)
    got = torch.autograd.grad((lp * up[0]).sum() + (ent * up[1]).sum() * entropy_grad, inputs)
    want = torch.autograd.grad((want_lp * up[0]).sum() + (want_ent * up[1]).sum() * entropy_grad, inputs)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-4)


def test_no_gradient_for_a_frozen_head() -> None:
    hidden, weight = torch.randn(4, 6, requires_grad=True), torch.randn(17, 6)
    linear_log_probs(hidden, weight, torch.zeros(4, dtype=torch.long))[0].sum().backward()
    assert hidden.grad is not None and weight.grad is None


def test_a_row_does_not_see_its_neighbours() -> None:
    weight, labels = torch.randn(50, 8), torch.tensor([1, 2, 3, 4])
    first = torch.randn(4, 8)
    second = first.clone()
    second[2] = torch.randn(8)
    a, b = (linear_log_probs(h, weight, labels)[0] for h in (first, second))
    assert torch.equal(a[[0, 1, 3]], b[[0, 1, 3]]) and a[2] != b[2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_whole_of_the_logits_never_exists(dtype: torch.dtype) -> None:
    rows, vocab, chunk = 256, 4096, 32
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            for x in out if isinstance(out, tuple | list) else [out]:
                largest = max(largest, x.numel() if isinstance(x, torch.Tensor) else 0)
            return out

    hidden = torch.randn(rows, 8, dtype=dtype, requires_grad=True)
    weight = torch.randn(vocab, 8, dtype=dtype, requires_grad=True)
    with Watch():
        lp, ent = linear_log_probs(
            hidden, weight, torch.zeros(rows, dtype=torch.long), entropy_grad=True, chunk=chunk
        )
        (lp.sum() + ent.sum()).backward()
    assert largest <= chunk * vocab


def test_many_chunks_in_bf16_add_up_in_float32() -> None:
    g = torch.Generator().manual_seed(0)
    hidden = torch.randn(64, 8, generator=g).bfloat16().requires_grad_()
    weight = torch.randn(30, 8, generator=g).bfloat16().requires_grad_()
    labels = torch.randint(0, 30, (64,), generator=g)
    wide_h, wide_w = (x.detach().double().requires_grad_() for x in (hidden, weight))
    linear_log_probs(hidden, weight, labels, chunk=4)[0].sum().backward()
    plain(wide_h, wide_w, labels, None, LogitForm())[0].sum().backward()
    assert hidden.grad is not None and weight.grad is not None
    assert hidden.grad.dtype == weight.grad.dtype == torch.bfloat16
    assert (weight.grad - wide_w.grad).norm() < 0.02 * wide_w.grad.norm()  # type: ignore[operator,union-attr]


@pytest.mark.parametrize("form", [LogitForm(), LogitForm(scale=0.5, softcap=2.0, temperature=1.7)])
def test_the_sum_of_squared_probabilities_equals_the_plain_form(form: LogitForm) -> None:
    hidden, weight, bias = torch.randn(7, 6), torch.randn(11, 6), torch.randn(11)
    logits = form.apply_(linear(hidden, weight, bias))
    found = linear_sum_pi_squared(hidden, weight, bias=bias, form=form, chunk=3)
    torch.testing.assert_close(found, logits.softmax(-1).square().sum(-1))
