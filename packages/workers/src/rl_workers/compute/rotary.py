"""Rotary position embedding in few passes over memory, in place of a Hugging Face model's own on a CPU.

Of halves ``(a, b)`` of a head, ``(a cos - b sin, b cos + a sin)``, in float32 and rounded once; the backward
pass is the rotation back. "RoFormer" (https://arxiv.org/abs/2104.09864).
"""

from __future__ import annotations

import inspect
from types import FunctionType, MethodType
from typing import Any, cast

import torch
from torch import Tensor, nn

_NAME = "apply_rotary_pos_emb"  # what transformers calls it in every model's file


def rotate_heads(x: Tensor, cos: Tensor, sin: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Rotate ``x`` ``[B, H, T, D]`` by the angles of ``cos`` and ``sin`` ``[B or 1, T, D]``.

    The result has ``dtype``, or that of ``x``.
    """
    return cast(Tensor, _Rotation.apply(x, cos, sin, dtype or x.dtype))  # type: ignore[no-untyped-call]


def use_fast_rotary(model: nn.Module, dtype: torch.dtype | None = None) -> int:
    """Give attention modules the fast rotation; returns how many they are.

    A module qualifies if its forward pass calls its file's ``apply_rotary_pos_emb`` and that function agrees
    with the fast one on a trial input (some models rotate pairs of neighbours, or a part of the head). The
    module gets a copy of its forward pass in which that name means the fast form; nothing else changes.

    ``dtype`` is what the modules' attention computes in, if not in what it is given: rotated queries and keys
    come in that, and are not rounded before.
    """
    copies: dict[type, FunctionType | None] = {}
    found = 0
    for module in model.modules():
        kind = type(module)
        if kind not in copies:
            copies[kind] = _fast_forward(kind.forward, dtype)
        forward = copies[kind]
        if forward is not None and "forward" not in vars(module):
            module.forward = MethodType(forward, module)
            found += 1
    return found


def _fast_forward(forward: Any, dtype: torch.dtype | None) -> FunctionType | None:
    forward = inspect.unwrap(
        forward
    )  # of decorators that rename old keywords, which no model's own call uses
    if not isinstance(forward, FunctionType) or _NAME not in forward.__code__.co_names:
        return None
    own = forward.__globals__.get(_NAME)
    if not callable(own) or not _agrees(own):
        return None

    def rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs or not cos.shape == sin.shape == (*cos.shape[:1], *q.shape[2:]):
            return own(q, k, cos, sin, *args, **kwargs)
        return rotate_heads(q, cos, sin, dtype), rotate_heads(k, cos, sin, dtype)

    names = {**forward.__globals__, _NAME: rotate}
    fast = FunctionType(forward.__code__, names, None, forward.__defaults__, forward.__closure__)
    fast.__kwdefaults__ = forward.__kwdefaults__
    return fast


def _agrees(own: Any) -> bool:
    generator = torch.Generator().manual_seed(0)
    q, k, cos, sin = (
        torch.randn(shape, generator=generator)
        for shape in ((1, 2, 3, 8), (1, 1, 3, 8), (1, 3, 8), (1, 3, 8))
    )
    try:
        found = own(q, k, cos, sin)
    except (TypeError, ValueError, RuntimeError):  # it takes something else
        return False
    wanted = (rotate_heads(q, cos, sin), rotate_heads(k, cos, sin))
    return len(found) == 2 and all(
        a.shape == b.shape and torch.allclose(a, b, 1e-5, 1e-6) for a, b in zip(found, wanted, strict=True)
    )


def _turned(x: Tensor, cos: Tensor, sin: Tensor, dtype: torch.dtype, *, back: bool) -> Tensor:
    """``x`` ``[B, T, H, D]`` times the rotation, or times its transpose."""
    half = x.shape[-1] // 2
    value, cos, sin = x.float(), cos.float()[:, :, None], sin.float()[:, :, None]
    out = value * cos
    first, second = (sin[..., half:], sin[..., :half]) if back else (sin[..., :half], sin[..., half:])
    sign = 1.0 if back else -1.0
    out[..., :half].addcmul_(value[..., half:], first, value=sign)
    out[..., half:].addcmul_(value[..., :half], second, value=-sign)
    return out.to(dtype)


class _Rotation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.dtype = x.dtype
        return _turned(x.transpose(1, 2), cos, sin, dtype, back=False).transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        cos, sin = ctx.saved_tensors
        grad = _turned(grads[0].transpose(1, 2), cos, sin, ctx.dtype, back=True)
        return grad.transpose(1, 2), None, None, None
