"""Random batches: ragged masks with holes, empty rows, groups of any size, seeded values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

try:
    from hypothesis import strategies as st
except ImportError as error:  # pragma: no cover
    raise ImportError("rl_algos.testing needs hypothesis: pip install 'rl-algos[test]'") from error

ROW_INPUTS = {"reward_components"}
"""Inputs that have two axes, and rows only: their second axis may be as long as the tokens'."""

GARBAGE = (float("nan"), float("inf"), float("-inf"), 1e30, -1e30)


@dataclass(frozen=True)
class Batch:
    """A batch of B rows and T tokens. `inputs` are what one function needs beside them, by keyword.

    Tensors of shape `[B, T]` are per token, everything else with B entries is per row. `index` int64 `[B]`.
    """

    mask: Tensor
    index: Tensor
    inputs: dict[str, Any] = field(default_factory=dict)

    def with_inputs(self, **inputs: Any) -> Batch:
        """Return the batch with these inputs replaced or added."""
        return replace(self, inputs={**self.inputs, **inputs})

    def rows(self, order: Tensor) -> Batch:
        """Return the batch with the rows at `order` only."""
        inputs = {name: value[order] for name, value in self.inputs.items()}
        return Batch(self.mask[order], self.index[order], inputs)

    def padded(self, columns: int) -> Batch:
        """Return the batch with masked columns of garbage added on the right."""
        inputs = {
            name: _pad(value, columns) if is_per_token(name, value, self.mask) else value
            for name, value in self.inputs.items()
        }
        return Batch(torch.nn.functional.pad(self.mask, (0, columns)), self.index, inputs)

    def garbled(self, garbage: float) -> Batch:
        """Return the batch with garbage in every floating per-token input under the mask."""
        return self.map_tokens(lambda x: x.masked_fill(~self.mask, garbage))

    def to(self, dtype: torch.dtype) -> Batch:
        """Return the batch with every floating tensor in `dtype`."""
        inputs = {
            name: value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value
            for name, value in self.inputs.items()
        }
        return replace(self, inputs=inputs)

    def map_tokens(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """Return the batch with `change` applied to every floating per-token input."""
        inputs = dict(self.inputs)
        for name, value in inputs.items():
            if is_per_token(name, value, self.mask) and value.is_floating_point():
                inputs[name] = change(value)
        return replace(self, inputs=inputs)


InputMaker = Callable[[Batch, torch.Generator], Any]


def _normal(batch: Batch, generator: torch.Generator) -> Tensor:
    return torch.randn(batch.mask.shape, generator=generator, dtype=torch.float64)


def _log_probs(batch: Batch, generator: torch.Generator) -> Tensor:
    return -_normal(batch, generator).abs() - 0.01


def _outcome_rewards(batch: Batch, generator: torch.Generator) -> Tensor:
    rewards = _normal(batch, generator)
    # Half of the rows: one of three scores on the last token, as verifiers give them.
    last = (batch.mask.flip(1).cumsum(1).flip(1) == 1) & batch.mask
    score = torch.randint(0, 3, (len(batch.mask), 1), generator=generator) * 0.5
    outcome = torch.rand((len(batch.mask), 1), generator=generator) < 0.5
    return torch.where(outcome, last * score, rewards)


def _uniform(batch: Batch, generator: torch.Generator) -> Tensor:
    return torch.rand(batch.mask.shape, generator=generator, dtype=torch.float64)


def _one_of(number: int, columns: tuple[int, ...] = ()) -> InputMaker:
    return lambda batch, generator: torch.randint(
        0, number, (len(batch.mask), *columns), generator=generator, dtype=torch.float64
    )


INPUT_MAKERS: dict[str, InputMaker] = {
    "token_level_rewards": _outcome_rewards,
    "values": _normal,
    "index": lambda batch, generator: batch.index,
    "reward_baselines": lambda batch, generator: _normal(batch, generator)[:, 0],
    "old_log_probs": _log_probs,
    "sum_pi_squared": _uniform,
    "rollout_is_weights": lambda batch, generator: (0.3 * _normal(batch, generator)).exp(),
    "reward_components": _one_of(3, (2,)),
    "trajectory_index": lambda batch, generator: batch.index * 100 + torch.arange(len(batch.mask)) // 2,
    "anchor_state": lambda batch, generator: _one_of(2)(batch, generator).long(),
    "step_returns": _one_of(3),
    "selected": lambda batch, generator: _uniform(batch, generator) < 0.3,
    "advantages": _normal,
    "old_log_prob": _log_probs,
}
"""How each input is made; add your own under its keyword, or pass `makers` to a check."""


@st.composite
def batches(draw: st.DrawFn, names: tuple[str, ...], makers: dict[str, InputMaker] | None = None) -> Batch:
    """Batches that hold the named inputs, in float64; `log_prob` comes after and lies near `old_log_prob`."""
    rows, width = draw(st.integers(1, 6)), draw(st.integers(1, 8))
    bits = draw(st.lists(st.booleans(), min_size=rows * width, max_size=rows * width))
    groups = draw(st.lists(st.integers(0, 2), min_size=rows, max_size=rows))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    batch = Batch(torch.tensor(bits).view(rows, width), torch.tensor(groups))
    known = {**INPUT_MAKERS, **(makers or {})}
    for name in names:
        if name == "log_prob" and name not in known:
            scale = draw(st.sampled_from([0.02, 0.3, 1.5]))
            value = batch.inputs["old_log_prob"] + scale * _normal(batch, generator)
        elif name in known:
            value = known[name](batch, generator)
        else:
            raise KeyError(
                f"no maker for input {name!r}: pass makers={{{name!r}: lambda batch, generator: ...}}"
            )
        batch = batch.with_inputs(**{name: value})
    return batch


def is_per_token(name: str, value: Any, mask: Tensor) -> bool:
    """Whether the input has one entry per token: shape `[B, T]`, and not known to be per row."""
    return name not in ROW_INPUTS and isinstance(value, Tensor) and value.shape == mask.shape


def _pad(value: Tensor, columns: int) -> Tensor:
    if not value.is_floating_point():
        return torch.nn.functional.pad(value, (0, columns))
    return torch.nn.functional.pad(value, (0, columns), value=float("nan"))
