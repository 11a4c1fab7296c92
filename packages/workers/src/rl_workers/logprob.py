"""Log-probabilities and entropies from hidden states, a chunk of tokens at a time.

For logits ``z = (W h + b)`` divided by the temperature, the log-probability of label y is
``z_y - logsumexp(z)`` and the entropy ``logsumexp(z) - sum(p z)``. The backward pass computes each chunk's
logits again, so that ``[tokens, vocab]`` never exists whole; the forward pass's last chunk is the backward
pass's first, and is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

DEFAULT_CHUNK = 512


@dataclass(frozen=True)
class LogitForm:
    """What a model does to its logits: ``scale * z``, then ``softcap * tanh(z / softcap)``, then ``/ temperature``."""

    scale: float = 1.0
    softcap: float = 0.0
    temperature: float = 1.0

    def apply_(self, logits: Tensor) -> Tensor:
        """Apply the form in place, in float32."""
        if self.softcap:
            logits.mul_(self.scale / self.softcap).tanh_().mul_(self.softcap / self.temperature)
        elif self.scale != self.temperature:
            logits.mul_(self.scale / self.temperature)
        return logits

    def backward_(self, grad: Tensor, log_probs: Tensor, log_normaliser: Tensor) -> Tensor:
        """Turn the gradient of the final logits into that of ``z``, in place."""
        if self.softcap:
            # the capped logits come back from the log-probabilities: their square gives tanh's derivative
            capped = log_probs.add(log_normaliser[:, None]).mul_(self.temperature / self.softcap)
            grad.mul_(capped.square_().neg_().add_(1.0)).mul_(self.scale / self.temperature)
        elif self.scale != self.temperature:
            grad.mul_(self.scale / self.temperature)
        return grad


def linear_log_probs(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    *,
    bias: Tensor | None = None,
    form: LogitForm | None = None,
    entropy: bool = True,
    entropy_grad: bool = False,
    chunk: int = DEFAULT_CHUNK,
) -> tuple[Tensor, Tensor]:
    """Log-probability of each label, and the entropy of its distribution.

    Args:
        hidden: ``[N, D]`` hidden states, in any floating dtype.
        weight: ``[V, D]`` of the same dtype; bias: ``[V]``.
        labels: ``[N]`` token ids.
        form: scale, soft cap and temperature of the logits.
        entropy: compute the entropy at all; it is zeros otherwise.
        entropy_grad: whether a gradient flows through the entropy.
        chunk: tokens whose logits exist at one time.

    Returns:
        Two float32 tensors ``[N]``.
    """
    options = (form or LogitForm(), entropy or entropy_grad, entropy_grad, max(1, chunk))
    out = _LinearLogProbs.apply(hidden, weight, bias, labels, options)  # type: ignore[no-untyped-call]
    return cast(tuple[Tensor, Tensor], out)


def _chunks(total: int, chunk: int) -> list[slice]:
    """Slices of nearly equal size, none above ``chunk``."""
    count = -(-total // chunk)
    bounds = [total * index // max(count, 1) for index in range(count + 1)]
    return [slice(a, b) for a, b in zip(bounds, bounds[1:], strict=False)]


def _chunk_logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, form: LogitForm) -> Tensor:
    return form.apply_(F.linear(hidden, weight, bias).float())


class _LinearLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        options: tuple[Any, ...],
    ) -> tuple[Tensor, Tensor]:
        form, with_entropy, _, chunk = options
        total = hidden.shape[0]
        log_probs = torch.zeros(total, dtype=torch.float32, device=hidden.device)
        entropy, normaliser = torch.zeros_like(log_probs), torch.zeros_like(log_probs)
        kept: Tensor | None = None
        for part in _chunks(total, chunk):
            kept = None  # frees the last chunk before the next is made
            logits = _chunk_logits(hidden[part], weight, bias, form)
            picked = logits.gather(1, labels[part, None])[:, 0]
            kept = torch.log_softmax(logits, -1)
            log_probs[part] = kept.gather(1, labels[part, None])[:, 0]
            normaliser[part] = picked - log_probs[part]
            if with_entropy:
                entropy[part] = -torch.linalg.vecdot(torch.exp(kept, out=logits), kept)
            del logits
        ctx.options = options
        ctx.kept = kept if any(ctx.needs_input_grad) else None
        ctx.save_for_backward(hidden, weight, bias, labels, normaliser, entropy)
        return log_probs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        hidden, weight, bias, labels, normaliser, entropy = ctx.saved_tensors
        form, _, with_entropy, chunk = ctx.options
        g_logp, g_entropy = grads
        d_hidden = torch.empty_like(hidden)
        needs_weight, needs_bias = ctx.needs_input_grad[1], ctx.needs_input_grad[2]
        d_weight = (
            torch.zeros(weight.shape, dtype=torch.float32, device=weight.device) if needs_weight else None
        )
        d_bias = (
            torch.zeros(weight.shape[0], dtype=torch.float32, device=weight.device) if needs_bias else None
        )
        kept, ctx.kept = ctx.kept, None
        for part in reversed(_chunks(hidden.shape[0], chunk)):
            if kept is None:
                kept = torch.log_softmax(_chunk_logits(hidden[part], weight, bias, form), -1)
            ge = g_entropy[part] if with_entropy else None
            grad = _logit_grad(kept, labels[part], g_logp[part], ge, entropy[part], form, normaliser[part])
            kept = None
            low = grad.to(hidden.dtype)
            d_hidden[part] = low @ weight
            if d_bias is not None:
                d_bias.add_(grad.sum(0))
            if d_weight is not None:
                _accumulate_outer(d_weight, low, hidden[part])
        return (
            d_hidden,
            None if d_weight is None else d_weight.to(weight.dtype),
            None if d_bias is None or bias is None else d_bias.to(bias.dtype),
            None,
            None,
        )


def _accumulate_outer(total: Tensor, left: Tensor, right: Tensor) -> None:
    """``total += left^T right`` with ``total`` in float32."""
    if left.dtype == torch.float32:
        total.addmm_(left.t(), right)
    else:
        total.add_(left.t() @ right)


def _logit_grad(
    log_probs: Tensor,
    labels: Tensor,
    g_logp: Tensor,
    g_entropy: Tensor | None,
    entropy: Tensor,
    form: LogitForm,
    normaliser: Tensor,
) -> Tensor:
    """Gradient of the raw logits: ``g (1_y - p) - g_H p (log p + H)``, through the logit form."""
    if g_entropy is None:
        grad = log_probs.exp().mul_(g_logp.neg()[:, None])
    else:
        inner = log_probs.add(entropy[:, None]).mul_(g_entropy[:, None]).add_(g_logp[:, None])
        grad = log_probs.exp().mul_(inner).neg_()
        del inner
    grad.scatter_add_(1, labels[:, None], g_logp[:, None])
    return form.backward_(grad, log_probs, normaliser)
