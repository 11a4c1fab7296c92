"""Ulysses sequence parallelism: ranks of a group hold parts of a sequence, and exchange them for heads.

Between layers each rank has some tokens and all heads; inside attention all tokens and some heads. The
exchange is one all-to-all, exact, with uneven parts, so no pad token is needed. See "DeepSpeed Ulysses"
(https://arxiv.org/abs/2309.14509).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from rl_workers.errors import ModelSupportError


def check_heads(config: Any, size: int) -> None:
    """Raise :class:`ModelSupportError` if a model's heads do not divide by the group's size."""
    if size == 1:
        return
    text = config.get_text_config()
    heads = int(text.num_attention_heads)
    kv_heads = int(getattr(text, "num_key_value_heads", None) or heads)
    if heads % size or kv_heads % size:
        raise ModelSupportError(
            f"ulysses_sequence_parallel_size={size} must divide the {heads} attention and the {kv_heads} "
            "key-value heads: choose a divisor of both"
        )


class HeadExchange:
    """The two exchanges of one sequence, whose parts have the given sizes on the ranks of ``group``."""

    def __init__(self, group: dist.ProcessGroup, sizes: Sequence[int]) -> None:
        self.group = group
        self.sizes = list(sizes)

    def tokens_for_heads(self, x: Tensor) -> Tensor:
        """``[1, H, t, D]`` of this rank's tokens to ``[1, H / n, T, D]`` of this rank's heads."""
        return cast(Tensor, _ToHeads.apply(x, self))  # type: ignore[no-untyped-call]

    def heads_for_tokens(self, x: Tensor) -> Tensor:
        """The inverse."""
        return cast(Tensor, _ToTokens.apply(x, self))  # type: ignore[no-untyped-call]


def _to_heads(x: Tensor, exchange: HeadExchange) -> Tensor:
    ranks, me = len(exchange.sizes), dist.get_rank(exchange.group)
    _, heads, tokens, width = x.shape
    share = heads // ranks
    send = x[0].reshape(ranks, share, tokens, width).transpose(1, 2).contiguous()
    out = x.new_empty(sum(exchange.sizes), share, width)
    dist.all_to_all_single(
        out,
        send.view(ranks * tokens, share, width),
        exchange.sizes,
        [exchange.sizes[me]] * ranks,
        exchange.group,
    )
    return out.transpose(0, 1)[None]


def _to_tokens(x: Tensor, exchange: HeadExchange) -> Tensor:
    ranks, me = len(exchange.sizes), dist.get_rank(exchange.group)
    _, share, _, width = x.shape
    tokens = exchange.sizes[me]
    out = x.new_empty(ranks * tokens, share, width)
    dist.all_to_all_single(
        out, x[0].transpose(0, 1).contiguous(), [tokens] * ranks, exchange.sizes, exchange.group
    )
    return out.view(ranks, tokens, share, width).transpose(1, 2).reshape(1, ranks * share, tokens, width)


class _ToHeads(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, exchange: HeadExchange) -> Tensor:
        ctx.exchange = exchange
        return _to_heads(x, exchange)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return _to_tokens(grads[0], ctx.exchange), None


class _ToTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, exchange: HeadExchange) -> Tensor:
        ctx.exchange = exchange
        return _to_tokens(x, exchange)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return _to_heads(grads[0], ctx.exchange), None


def gather_parts(x: Tensor, sizes: Sequence[int], group: dist.ProcessGroup) -> Tensor:
    """``[n_r]`` of each rank to ``[sum n_r]`` on all.

    The backward pass hands each rank the gradient of its own part: every rank computes the same loss from
    the gathered values, so summing over ranks would count it once per rank.
    """
    return cast(Tensor, _Gather.apply(x, list(sizes), group))  # type: ignore[no-untyped-call]


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, sizes: list[int], group: dist.ProcessGroup) -> Tensor:
        me = dist.get_rank(group)
        ctx.range = (sum(sizes[:me]), sizes[me])
        padded = x.new_zeros(max(sizes))
        padded[: x.numel()] = x
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded, group=group)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        start, size = ctx.range
        return grads[0].narrow(0, start, size), None, None
