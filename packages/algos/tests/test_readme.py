"""The README's code runs, and the property suite finds the fault that it says it finds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import rl_algos as ra
from rl_algos.testing import check_policy_loss

README = Path(__file__).parents[1] / "README.md"


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def test_the_example_runs() -> None:
    scope: dict[str, object] = {}
    exec(blocks()[0], scope)
    log_prob, mask = scope["log_prob"], scope["mask"]
    assert isinstance(log_prob, torch.Tensor) and isinstance(mask, torch.Tensor)
    assert log_prob.grad is not None and not log_prob.grad[mask == 0].any()


def test_the_suite_finds_the_fault_and_accepts_the_repair() -> None:
    scope: dict[str, object] = {}
    exec(blocks()[1], scope)
    try:
        with pytest.raises(AssertionError, match="under the mask"):
            exec(blocks()[2], scope)
        del ra.POLICY_LOSS_REGISTRY["squared"]

        @ra.register_policy_loss("squared")
        def squared(old_log_prob, log_prob, advantages, response_mask, *, row_weights):  # type: ignore[no-untyped-def]
            mask = response_mask.bool()
            new, old, gain = (torch.where(mask, x, 0) for x in (log_prob, old_log_prob, advantages))
            dtype = torch.float64 if new.dtype == torch.float64 else torch.float32
            loss = 0.5 * (new.to(dtype) - old.to(dtype) - gain.to(dtype)) ** 2
            return ra.weighted_sum(loss, mask, row_weights), {}

        check_policy_loss("squared")
    finally:
        ra.POLICY_LOSS_REGISTRY.pop("squared", None)


@pytest.mark.parametrize("fault", ["ignores the weights", "wrong gradient", "sign of masked rows"])
def test_the_suite_catches_faults(fault: str) -> None:
    @ra.register_policy_loss("faulty")
    def faulty(old_log_prob, log_prob, advantages, response_mask, *, row_weights):  # type: ignore[no-untyped-def]
        mask = response_mask.bool()
        new, gain = torch.where(mask, log_prob, 0), torch.where(mask, advantages, 0)
        loss = -gain * new
        if fault == "wrong gradient":
            loss = -gain * new.detach() - 2 * gain * (new - new.detach())
        if fault == "ignores the weights":
            return loss.sum() / mask.sum().clamp(min=1), {}
        if fault == "sign of masked rows":
            loss = loss + mask.shape[1] * new
        return ra.weighted_sum(loss, mask, row_weights), {}

    try:
        with pytest.raises(AssertionError):
            check_policy_loss("faulty")
    finally:
        del ra.POLICY_LOSS_REGISTRY["faulty"]
