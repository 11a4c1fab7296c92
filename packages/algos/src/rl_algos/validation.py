"""Checks at the entry of public functions: shape, dtype and options, each with an error that names the
fix."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

import torch
from torch import Tensor

from rl_algos.errors import DTypeError, NonFiniteError, OptionError, ShapeError, UnknownNameError


def check_mask(mask: Tensor, shape: torch.Size | tuple[int, ...], name: str = "response_mask") -> Tensor:
    """Return `mask` as bool `[B, T]`; bool, int and float masks are taken, non-zero means "in"."""
    if not isinstance(mask, torch.Tensor):
        raise DTypeError(f"{name} must be a torch.Tensor, got {type(mask).__name__}")
    if mask.shape != torch.Size(shape):
        raise ShapeError(
            f"{name} has shape {tuple(mask.shape)}, expected {tuple(shape)} as its loss or values"
        )
    return mask if mask.dtype == torch.bool else mask.bool()


def check_tokens(shape: torch.Size | tuple[int, ...] | None = None, **tensors: Tensor | None) -> torch.Size:
    """Check that every given tensor is floating `[B, T]` of one shape and return that shape; None is
    skipped."""
    expected = None if shape is None else torch.Size(shape)
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        check_floating(name, tensor)
        if tensor.dim() != 2:
            raise ShapeError(f"{name} has shape {tuple(tensor.shape)}, expected [batch, tokens]")
        if expected is not None and tensor.shape != expected:
            raise ShapeError(
                f"{name} has shape {tuple(tensor.shape)}, expected {tuple(expected)} as the others"
            )
        expected = tensor.shape
    if expected is None:
        raise ShapeError("no tensor was given")
    return expected


def check_rows(name: str, tensor: Tensor, rows: int) -> None:
    """Check that `tensor` is floating `[B]` with `rows` entries."""
    check_floating(name, tensor)
    if tensor.shape != (rows,):
        raise ShapeError(f"{name} has shape {tuple(tensor.shape)}, expected ({rows},): one value per row")


def check_floating(name: str, tensor: Tensor) -> None:
    """Check that `tensor` is a floating torch tensor."""
    if not isinstance(tensor, torch.Tensor):
        raise DTypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
    if not tensor.is_floating_point():
        raise DTypeError(f"{name} has dtype {tensor.dtype}, expected a floating dtype: use {name}.float()")


def check_range(name: str, value: float, low: float, high: float = float("inf")) -> None:
    """Check `low <= value <= high`."""
    if not low <= value <= high:
        raise OptionError(f"{name} is {value}, expected a value from {low} to {high}")


def check_finite(name: str, x: Tensor, mask: Tensor | None = None) -> None:
    """Raise `NonFiniteError` naming the tensor and the first place where it is NaN or infinite inside the
    mask.

    Losses do not call this; call it where data enters the trainer. `mask` has the shape of `x` (None: all).
    """
    bad = ~torch.isfinite(x)
    if mask is not None:
        bad &= check_mask(mask, x.shape)
    if bool(bad.any()):
        where = tuple(int(i) for i in bad.nonzero()[0])
        raise NonFiniteError(
            f"{name} holds {int(bad.sum())} NaN or infinite value(s) inside the mask, the first at {where}: "
            f"{x[where].item()}"
        )


def check_finite_rows(what: str, x: Tensor, counted: Tensor, first_row: int = 0) -> None:
    """Raise `NonFiniteError` naming the first row of `x` `[B]` or `[B, T]` that holds NaN or infinity.

    A statistic over rows would carry it to others. `counted` bool `[B]` are the rows that matter; `first_row`
    is the number of row 0 in what the user passed.
    """
    finite = torch.isfinite(x)
    bad = counted & ~(finite if x.dim() == 1 else finite.all(dim=1))
    if bool(bad.any()):
        rows = [int(row) for row in bad.nonzero()[:, 0]]
        value = x[rows[0]] if x.dim() == 1 else x[rows[0]][~finite[rows[0]]][0]
        raise NonFiniteError(
            f"{what} of row {first_row + rows[0]} is {value.item()} ({len(rows)} such row(s)): a reward must "
            "be a finite number that float32 holds; give the row one, or take it out of response_mask"
        )


def unknown_name(kind: str, name: object, known: Iterable[str]) -> UnknownNameError:
    """Build the error for a name that is not registered: lists what is and the nearest."""
    names = sorted(known)
    close = get_close_matches(str(name), names, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return UnknownNameError(f"unknown {kind} {name!r}{hint} Known: {', '.join(names)}")


def compute_dtype(*tensors: Tensor) -> torch.dtype:
    """Return float64 where any tensor is float64, else float32: half precision is for storage only."""
    return torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32
