"""Aggregation of per-token losses: every mode is one weight per row, computed on the global mini-batch."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from rl_algos.errors import OptionError, ShapeError
from rl_algos.groups import GroupIndex, group_codes
from rl_algos.masking import row_lengths, select
from rl_algos.validation import check_mask, check_rows, check_tokens, compute_dtype, unknown_name

AggregationMode = Literal[
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
    "prompt-mean",
]
AGGREGATION_MODES: tuple[str, ...] = get_args(AggregationMode)


def loss_weights(
    mask: Tensor,
    mode: str = "token-mean",
    *,
    norm_constant: float | None = None,
    prompt_index: GroupIndex | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    r"""Return one weight per row, so that the loss is `sum(where(mask, loss, 0) * weights[:, None])`.

    Call it once on the mask of the *global* mini-batch and cut the weights with the rows: loss and gradient
    then do not depend on micro-batches, ranks or packing. With N selected tokens, `len` those of the row, S
    rows with at least one token:

    - `token-mean`: 1 / N (DAPO)
    - `token-sum`: 1
    - `seq-mean-token-sum`: 1 / S
    - `seq-mean-token-mean`: 1 / (S len) (GRPO)
    - `seq-mean-token-sum-norm`: 1 / (S C) with the constant C = `norm_constant`, required (Dr.GRPO)
    - `prompt-mean`: 1 / (P tokens of the row's prompt), P prompts with at least one token, by `prompt_index`

    Args:
        mask: `[B, T]`, bool, int or float; non-zero means a token that the policy chose.
        mode: one of the above; an unknown one raises `UnknownNameError`.
        norm_constant: positive; only for `seq-mean-token-sum-norm`.
        prompt_index: `[B]` ids; only for `prompt-mean`.
        dtype: of the result.

    Returns:
        `[B]`, float32 unless asked otherwise; 0 for rows without a token, also where no row has one.
    """
    if mode not in AGGREGATION_MODES:
        raise unknown_name("loss aggregation mode", mode, AGGREGATION_MODES)
    if mask.dim() != 2:
        raise ShapeError(f"mask has shape {tuple(mask.shape)}, expected [batch, tokens]")
    _check_options(mode, norm_constant, prompt_index)
    lengths = row_lengths(check_mask(mask, mask.shape, "mask"))
    weights = _denominators(lengths, mode, norm_constant, prompt_index)
    return torch.where(lengths > 0, 1.0 / weights.clamp(min=torch.finfo(torch.float64).tiny), 0.0).to(dtype)


def agg_loss(
    loss_mat: Tensor,
    loss_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    *,
    norm_constant: float | None = None,
    prompt_index: GroupIndex | None = None,
) -> Tensor:
    """Aggregate per-token losses `[B, T]` of one whole mini-batch to a scalar; see `loss_weights` for the
    modes.

    The scalar is float32, or float64 for a float64 loss. What lies under the mask has no influence and
    gradient 0; with nothing selected the loss is 0. For a micro-batch use `weighted_sum` with weights of the
    global mini-batch.
    """
    weights = loss_weights(
        loss_mask,
        loss_agg_mode,
        norm_constant=norm_constant,
        prompt_index=prompt_index,
        dtype=compute_dtype(loss_mat),
    )
    return weighted_sum(loss_mat, loss_mask, weights)


def weighted_sum(loss_mat: Tensor, loss_mask: Tensor, row_weights: Tensor) -> Tensor:
    """Return `sum(where(mask, loss, 0) * row_weights[:, None])`: a micro-batch's share of the global loss.

    `loss_mat`, `loss_mask` `[B, T]`; `row_weights` `[B]`, those rows of `loss_weights(global mask, ...)`.
    """
    check_tokens(loss_mat=loss_mat)
    mask = check_mask(loss_mask, loss_mat.shape, "loss_mask")
    check_rows("row_weights", row_weights, loss_mat.shape[0])
    rows = select(loss_mat.to(compute_dtype(loss_mat)), mask).sum(dim=1)
    return (rows * row_weights.to(rows)).sum()


def _check_options(mode: str, norm_constant: float | None, prompt_index: GroupIndex | None) -> None:
    if (mode == "seq-mean-token-sum-norm") != (norm_constant is not None):
        raise OptionError(
            f"mode {mode!r} with norm_constant={norm_constant}: 'seq-mean-token-sum-norm' requires the "
            "constant (for example the longest response allowed), and no other mode takes it"
        )
    if norm_constant is not None and not 0 < norm_constant < float("inf"):
        raise OptionError(f"norm_constant is {norm_constant}, expected a positive number")
    if (mode == "prompt-mean") != (prompt_index is not None):
        raise OptionError(f"mode {mode!r}: 'prompt-mean' requires prompt_index, and no other mode takes it")


def _denominators(
    lengths: Tensor, mode: str, norm_constant: float | None, prompt_index: GroupIndex | None
) -> Tensor:
    sequences = (lengths > 0).sum().double()
    if mode == "token-mean":
        return lengths.sum().expand_as(lengths)
    if mode == "token-sum":
        return torch.ones_like(lengths)
    if mode == "seq-mean-token-sum":
        return sequences.expand_as(lengths)
    if mode == "seq-mean-token-mean":
        return sequences * lengths
    if norm_constant is not None:
        return (sequences * norm_constant).expand_as(lengths)
    codes, groups = group_codes(prompt_index, lengths.shape[0])
    codes = codes.to(lengths.device)
    tokens = lengths.new_zeros(groups).index_add_(0, codes, lengths)
    return (tokens > 0).sum() * tokens[codes]
