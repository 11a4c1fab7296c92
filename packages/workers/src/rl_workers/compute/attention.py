"""Attention over packed units, registered with transformers as ``rl_packed``.

A unit is a prompt and the responses that share it. Each response sees its prompt and itself, never its
neighbours. On a GPU one variable-length kernel serves all units; a shared prompt's keys and values are
gathered for each of its responses. On a CPU each unit is one masked call where it is short, and one call
per response where the masked square would mostly be empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from rl_workers.compute.ulysses import HeadExchange
from rl_workers.errors import ModelSupportError

ATTENTION_NAME = "rl_packed"
PLAN_KWARG = "rl_plan"
_DENSE_UNIT = 256  # up to this many tokens the masked square is cheaper than more kernel calls
_UNSUPPORTED = ("s_aux", "softcap", "sinks")


@dataclass(frozen=True)
class Unit:
    """Lengths of a prompt and of the responses that share it."""

    prompt: int
    responses: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Tokens of the unit in the packed sequence."""
        return self.prompt + sum(self.responses)

    @property
    def is_plain(self) -> bool:
        """Whether plain causal attention over the unit is right."""
        return sum(1 for length in self.responses if length) <= 1


class AttentionPlan:
    """Which token of a packed sequence sees which, and what kernels need of that, computed once."""

    def __init__(self, units: Sequence[Unit], exchange: HeadExchange | None = None) -> None:
        self.units = list(units)
        self.exchange = exchange
        self._masks: dict[object, Tensor] = {}
        self._varlen: dict[str, Any] = {}

    def exchanged(self, exchange: HeadExchange) -> AttentionPlan:
        """The same plan for ranks that each hold a part of the sequence."""
        other = AttentionPlan(self.units, exchange)
        other._masks, other._varlen = self._masks, self._varlen
        return other

    def to(self, device: torch.device) -> AttentionPlan:
        """Prepare the variable-length kernel's arguments where ``device`` is a GPU."""
        if device.type != "cpu" and not self._varlen:
            self._varlen = _varlen_arguments(self.units, device)
        return self

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, scale: float | None, window: int | None
    ) -> Tensor:
        """Attention of ``[1, H, T, D]`` queries on ``[1, Hkv, T, D]`` keys and values: ``[1, H, T, D]``."""
        if self._varlen:
            return self._attend_varlen(query, key, value, scale, window)
        dtype = value.dtype  # queries and keys may still be float32
        if PREFERS_FLOAT32 and dtype.itemsize < 4:
            query, key, value = query.float(), key.float(), value.float()
        sizes = [unit.tokens for unit in self.units]
        pieces = zip(self.units, *(_cut(x, sizes) for x in (query, key, value)), strict=True)
        return _join([self._attend_unit(unit, q, k, v, scale, window) for unit, q, k, v in pieces]).to(dtype)

    def _attend_unit(
        self, unit: Unit, query: Tensor, key: Tensor, value: Tensor, scale: float | None, window: int | None
    ) -> Tensor:
        windowed = window is not None and unit.prompt + max(unit.responses, default=0) > window
        if unit.is_plain and not windowed:
            return _sdpa(query, key, value, None, scale)
        if unit.is_plain or unit.tokens <= _DENSE_UNIT:
            mask = self._unit_mask(unit, window if windowed else None, query.dtype)
            return _sdpa(query, key, value, mask, scale)
        sizes = [unit.prompt, *unit.responses]
        queries, keys, values = (_cut(x, sizes) for x in (query, key, value))
        outputs = [self._attend_unit(Unit(unit.prompt, ()), queries[0], keys[0], values[0], scale, window)]
        for length, q, k, v in zip(unit.responses, queries[1:], keys[1:], values[1:], strict=True):
            k, v = torch.cat([keys[0], k], 2), torch.cat([values[0], v], 2)
            mask = self._tail_mask(length, unit.prompt + length, window if windowed else None, query.dtype)
            outputs.append(_sdpa(q, k, v, mask, scale))
        return _join(outputs)

    def _unit_mask(self, unit: Unit, window: int | None, dtype: torch.dtype) -> Tensor:
        """``[tokens, tokens]``, 0 where the row's token sees the column's and -inf elsewhere."""
        key = (unit, window, dtype)
        if key not in self._masks:
            owner = torch.cat([torch.full((n,), i) for i, n in enumerate([unit.prompt, *unit.responses])])
            place = torch.cat(
                [torch.arange(unit.prompt), *(unit.prompt + torch.arange(n) for n in unit.responses)]
            )
            distance = place[:, None] - place[None, :]
            seen = (distance >= 0) & ((owner[:, None] == owner[None, :]) | (owner[None, :] == 0))
            if window is not None:
                seen &= distance < window
            self._masks[key] = _additive(seen, dtype)
        return self._masks[key]

    def _tail_mask(self, rows: int, columns: int, window: int | None, dtype: torch.dtype) -> Tensor:
        """Causal mask whose last row sees the last column; 0 and -inf."""
        key = (rows, columns, window, dtype)
        if key not in self._masks:
            seen = torch.ones(rows, columns, dtype=torch.bool).tril(columns - rows)
            if window is not None:
                seen = seen.triu(columns - rows - window + 1)
            self._masks[key] = _additive(seen, dtype)
        return self._masks[key]

    def _attend_varlen(
        self, query: Tensor, key: Tensor, value: Tensor, scale: float | None, window: int | None
    ) -> Tensor:
        from torch.nn.attention.varlen import varlen_attn

        args = self._varlen
        q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
        if args["gather"] is not None:
            k, v = k[args["gather"]], v[args["gather"]]
        sides = (-1 if window is None else window - 1, 0)
        out = varlen_attn(
            q,
            k,
            v,
            args["cu_q"],
            args["cu_k"],
            args["max_q"],
            args["max_k"],
            scale=scale,
            window_size=sides,
            enable_gqa=q.shape[1] != k.shape[1],
        )
        return out.transpose(0, 1)[None]  # type: ignore[union-attr]


def _cut(x: Tensor, sizes: list[int]) -> list[Tensor]:
    """Parts of ``[1, H, T, D]`` along T, cut where the memory has it: of ``[1, T, H, D]``."""
    return [part.transpose(1, 2) for part in torch.split(x.transpose(1, 2), sizes, 1)]


def _join(parts: Sequence[Tensor]) -> Tensor:
    """The inverse of ``_cut``."""
    if len(parts) == 1:
        return parts[0]
    return torch.cat([part.transpose(1, 2) for part in parts], 1).transpose(1, 2)


def _additive(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask as attention adds it: made once, where a boolean one would be turned into this at each call."""
    return torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, float("-inf"))


def _sdpa(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    gqa = query.shape[1] != key.shape[1]
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=gqa
    )


def _varlen_arguments(units: Sequence[Unit], device: torch.device) -> dict[str, Any]:
    """Segments of queries and, behind each, the keys it sees: the prompt again before every response."""
    q_lengths: list[int] = []
    k_lengths: list[int] = []
    gather: list[Tensor] = []
    offset = 0
    for unit in units:
        pieces = [unit.tokens] if unit.is_plain else [unit.prompt, *(n for n in unit.responses if n)]
        prompt = torch.arange(offset, offset + unit.prompt)
        for index, length in enumerate(pieces):
            own = torch.arange(offset, offset + length)
            keys = own if index == 0 else torch.cat([prompt, own])
            q_lengths.append(length)
            k_lengths.append(keys.numel())
            gather.append(keys)
            offset += length
    shared = q_lengths != k_lengths
    return {
        "cu_q": torch.tensor([0, *accumulate(q_lengths)], dtype=torch.int32, device=device),
        "cu_k": torch.tensor([0, *accumulate(k_lengths)], dtype=torch.int32, device=device),
        "max_q": max(q_lengths),
        "max_k": max(k_lengths),
        "gather": torch.cat(gather).to(device) if shared else None,
    }


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface: ``[1, H, T, D]`` in, ``[1, T, H, D]`` out.

    Raises:
        ModelSupportError: the model does not hand the plan down, or asks for a feature that is not built.
    """
    plan = kwargs.get(PLAN_KWARG)
    name = type(module).__name__
    if not isinstance(plan, AttentionPlan):
        raise ModelSupportError(
            f"{name} does not pass keyword arguments to its attention, which packing needs: "
            "set model.use_remove_padding=False"
        )
    asked = [key_ for key_ in _UNSUPPORTED if kwargs.get(key_) is not None]
    if asked or dropout:
        raise ModelSupportError(
            f"{name} asks for {', '.join(asked) or 'attention dropout'}, which packed attention lacks: "
            "set model.use_remove_padding=False"
        )
    if plan.exchange is None:
        return plan.attend(query, key, value, scaling, sliding_window).transpose(1, 2).contiguous(), None
    q, k, v = (plan.exchange.tokens_for_heads(x) for x in (query, key, value))
    out = plan.exchange.heads_for_tokens(plan.attend(q, k, v, scaling, sliding_window))
    return out.transpose(1, 2).contiguous(), None


def _bf16_tiles() -> bool:
    probe = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return bool(probe()) if probe is not None else False


# without matrix tiles torch's bf16 attention is slower on a CPU than its float32 one, and less exact
PREFERS_FLOAT32 = not _bf16_tiles()


def attention_dtype(config: Any) -> torch.dtype | None:
    """What packed attention computes in on a CPU whatever it is given; None if it takes what comes."""
    packed = getattr(config, "_attn_implementation", None) == ATTENTION_NAME
    return torch.float32 if packed and PREFERS_FLOAT32 else None


def register_packed_attention() -> None:
    """Make ``attn_implementation="rl_packed"`` known to transformers (done before a model is built)."""
    AttentionInterface.register(ATTENTION_NAME, packed_attention)
    AttentionMaskInterface.register(ATTENTION_NAME, lambda *args, **kwargs: None)
