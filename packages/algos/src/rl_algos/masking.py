"""Masked statistics. Masking is selection: what lies under the mask cannot matter, not even NaN or
infinity."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_algos.errors import ShapeError
from rl_algos.validation import check_floating, check_mask, compute_dtype

_BITS = {
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}


def as_number(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a bool tensor as 0 and 1 of `dtype` (through bytes, whose conversion is vectorised on a CPU)."""
    return mask.view(torch.uint8).to(dtype)


def row_lengths(mask: Tensor) -> Tensor:
    """Number of selected entries of each row of a bool `[B, T]`, float64 `[B]`."""
    parts = [as_number(part, torch.float32).sum(dim=1) for part in torch.split(mask, 256)]
    return torch.cat(parts).double()


def select(x: Tensor, mask: Tensor) -> Tensor:
    """Return `x` where the bool `mask` is set and 0 elsewhere, with gradient exactly 0 elsewhere.

    By bits where no gradient is wanted: as safe against NaN as `where`, and some ten times faster on a CPU.
    """
    bits = _BITS.get(x.dtype)
    if bits is None or (x.requires_grad and torch.is_grad_enabled()):
        return torch.where(mask, x, 0)
    return (x.view(bits) & as_number(mask, bits).neg_()).view(x.dtype)


def masked_sum(values: Tensor, mask: Tensor, axis: int | None = None) -> Tensor:
    """Sum of `values` over the selected entries (of `axis`, or of all), in float32 or float64.

    `values` and `mask` have one shape. Nothing selected gives 0.
    """
    check_floating("values", values)
    chosen = select(values.to(compute_dtype(values)), check_mask(mask, values.shape, "mask"))
    return chosen.sum() if axis is None else chosen.sum(dim=axis)


def masked_mean(values: Tensor, mask: Tensor, axis: int | None = None) -> Tensor:
    """Mean of `values` over the selected entries (of `axis`, or of all); 0 where nothing is selected."""
    total = masked_sum(values, mask, axis)
    chosen = check_mask(mask, values.shape, "mask")
    count = chosen.sum() if axis is None else chosen.sum(dim=axis)
    return total / count.clamp(min=1)


def masked_var(values: Tensor, mask: Tensor, unbiased: bool = True) -> Tensor:
    """Variance of the selected entries (divisor n - 1 or n); 0 for one entry or none, and for equal ones."""
    check_floating("values", values)
    flat = values[check_mask(mask, values.shape, "mask")].double()
    if flat.numel() < 2 or bool(flat.max() == flat.min()):
        return torch.zeros((), dtype=compute_dtype(values), device=values.device)
    _, variance = moments(flat, torch.ones_like(flat))
    biased = variance * ((flat.numel() - 1) / flat.numel())
    return (variance if unbiased else biased).to(compute_dtype(values))


def masked_whiten(values: Tensor, mask: Tensor, shift_mean: bool = True, epsilon: float = 1e-8) -> Tensor:
    """Whiten the selected entries: `(x - mean) / sqrt(var + epsilon)`, unbiased variance; 0 elsewhere.

    `values`, `mask` `[B, T]`. With `shift_mean=False` the mean is added back. Equal entries (also: one)
    become exactly 0, or their mean.
    """
    check_floating("values", values)
    chosen = check_mask(mask, values.shape, "mask")
    flat = whiten_flat(values[chosen].double(), shift_mean, epsilon)
    return scatter_flat(flat, chosen, compute_dtype(values))


def whiten_flat(flat: Tensor, shift_mean: bool = True, epsilon: float = 1e-8) -> Tensor:
    """Whiten a 1-D float64 tensor of selected entries; see `masked_whiten`."""
    if flat.numel() == 0:
        return flat
    if bool(flat.max() == flat.min()):
        return torch.zeros_like(flat) if shift_mean else flat.clone()
    mean, variance = moments(flat, torch.ones_like(flat))
    whitened = (flat - mean) * torch.rsqrt(variance + epsilon)
    return whitened if shift_mean else whitened + mean


def moments(values: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and unbiased variance of float64 `values`, each of which stands for `counts` entries (more than
    1)."""
    total = counts.sum()
    mean = (counts * values).sum() / total
    return mean, (counts * (values - mean).square()).sum() / (total - 1)


def scatter_flat(flat: Tensor, mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Put the selected entries `flat` back to their places in the shape of the bool `mask`; 0 elsewhere."""
    if flat.dim() != 1:
        raise ShapeError(f"flat has shape {tuple(flat.shape)}, expected one dimension")
    out = torch.zeros(mask.shape, dtype=dtype, device=flat.device)
    return out.masked_scatter_(mask, flat.to(dtype))
