"""Log-probabilities and entropies from hidden states, a chunk of tokens at a time.

For logits ``z = (W h + b)`` divided by the temperature, the log-probability of label y is
``z_y - logsumexp(z)`` and the entropy ``logsumexp(z) - sum(p z)``. The backward pass computes each chunk's
logits again, so that ``[tokens, vocab]`` never exists whole; the forward pass's last chunk is the backward
pass's first, and is kept. A chunk is as large as its matrix product needs to be quick; what follows works in
float32 on blocks of rows that fit the cache, and the gradient overwrites the logits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

DEFAULT_CHUNK = 1024
_BLOCK_ELEMENTS = 1 << 18  # 1 MB in float32
_LOG2_E = math.log2(math.e)  # torch's exp2 is up to three times as fast as its exp, and as exact


@dataclass(frozen=True)
class LogitForm:
    """What becomes of logits: ``scale * z``, ``softcap * tanh(z / softcap)``, ``z / temperature``."""

    scale: float = 1.0
    softcap: float = 0.0
    temperature: float = 1.0

    @property
    def is_plain(self) -> bool:
        """Whether logits stay as they are."""
        return not self.softcap and self.scale == self.temperature

    def apply_(self, logits: Tensor) -> Tensor:
        """Apply the form in place, in float32."""
        if self.softcap:
            logits.mul_(self.scale / self.softcap).tanh_().mul_(self.softcap / self.temperature)
        elif not self.is_plain:
            logits.mul_(self.scale / self.temperature)
        return logits

    def backward_(self, grad: Tensor, logits: Tensor) -> Tensor:
        """Turn the gradient of the final ``logits`` into that of ``z``, in place; overwrites ``logits``."""
        if self.softcap:
            # tanh comes back from the capped logits: one minus its square is its derivative
            slope = logits.mul_(self.temperature / self.softcap).square_().neg_().add_(1.0)
            grad.mul_(slope).mul_(self.scale / self.temperature)
        elif not self.is_plain:
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


@torch.no_grad()
def linear_sum_pi_squared(
    hidden: Tensor,
    weight: Tensor,
    *,
    bias: Tensor | None = None,
    form: LogitForm | None = None,
    chunk: int = DEFAULT_CHUNK,
) -> Tensor:
    """The vocabulary's sum of squared probabilities after each hidden state, float32 ``[N]``, no gradient.

    ``exp(logsumexp(2 z) - 2 logsumexp(z))``; arguments as for :func:`linear_log_probs`.
    """
    out = torch.zeros(hidden.shape[0], dtype=torch.float32, device=hidden.device)
    for part in _chunks(hidden.shape[0], max(1, chunk)):
        raw = F.linear(hidden[part], weight, bias)
        for rows in _blocks(part, raw.shape[1]):
            logits = _final_logits(raw[_within(rows, part)], form or LogitForm(), overwrite=True)
            once = logits.logsumexp(-1)
            out[rows] = (logits.mul_(2.0).logsumexp(-1) - 2.0 * once).exp()
    return out


def _chunks(total: int, chunk: int) -> list[slice]:
    """Slices of nearly equal size, none above ``chunk``."""
    count = -(-total // chunk)
    bounds = [total * index // max(count, 1) for index in range(count + 1)]
    return [slice(a, b) for a, b in pairwise(bounds)]


def _blocks(part: slice, vocab: int) -> list[slice]:
    """Rows of a chunk, as many at a time as fit the cache in float32."""
    rows = max(1, _BLOCK_ELEMENTS // vocab)
    return [slice(a, min(a + rows, part.stop)) for a in range(part.start, part.stop, rows)]


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
        raw: Tensor | None = None
        for part in _chunks(total, chunk):
            raw = None  # frees the last chunk before the next is made
            raw = F.linear(hidden[part], weight, bias)
            for rows in _blocks(part, raw.shape[1]):
                logits = _final_logits(raw[_within(rows, part)], form, overwrite=False)
                top = logits.amax(-1, keepdim=True)
                shifted = logits - top
                powers = shifted.mul(_LOG2_E).exp2_()
                total_power = powers.sum(-1)
                normaliser[rows] = top[:, 0] + total_power.log()
                log_probs[rows] = logits.gather(1, labels[rows, None])[:, 0] - normaliser[rows]
                if with_entropy:
                    entropy[rows] = total_power.log() - powers.mul_(shifted).sum(-1) / total_power
        ctx.options = options
        ctx.kept = raw if any(ctx.needs_input_grad) else None
        ctx.save_for_backward(hidden, weight, bias, labels, normaliser, entropy)
        return log_probs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        hidden, weight, bias, labels, normaliser, entropy = ctx.saved_tensors
        form, _, with_entropy, chunk = ctx.options
        g_logp, g_entropy = grads
        d_hidden = torch.empty_like(hidden)
        d_weight: Tensor | None = None
        d_bias = _float_zeros(bias) if bias is not None and ctx.needs_input_grad[2] else None
        raw, ctx.kept = ctx.kept, None
        for part in reversed(_chunks(hidden.shape[0], chunk)):
            if raw is None:
                raw = F.linear(hidden[part], weight, bias)
            for rows in _blocks(part, raw.shape[1]):
                target = raw[_within(rows, part)]
                ge = (g_entropy[rows], entropy[rows]) if with_entropy else None
                logits = _final_logits(target, form, overwrite=True)
                grad = _logit_grad(logits, normaliser[rows], labels[rows], g_logp[rows], ge, form)
                if grad.data_ptr() != target.data_ptr():
                    target.copy_(grad)
                if d_bias is not None:
                    d_bias.add_(grad.sum(0))
            d_hidden[part] = raw @ weight
            if ctx.needs_input_grad[1]:
                d_weight = _add_outer(d_weight, raw, hidden[part], last=part.start == 0)
            raw = None
        if d_weight is None and ctx.needs_input_grad[1]:
            d_weight = torch.zeros_like(weight)
        return (
            d_hidden,
            d_weight,
            None if d_bias is None else d_bias.to(bias.dtype),
            None,
            None,
        )


def _within(rows: slice, part: slice) -> slice:
    """Rows of the whole as rows of the chunk."""
    return slice(rows.start - part.start, rows.stop - part.start)


def _final_logits(raw: Tensor, form: LogitForm, *, overwrite: bool) -> Tensor:
    """The form applied in float32; in place where ``raw`` has that dtype and may be overwritten."""
    if form.is_plain:
        return raw.float()
    return form.apply_(raw.to(torch.float32, copy=not overwrite))


def _float_zeros(like: Tensor) -> Tensor:
    return torch.zeros(like.shape, dtype=torch.float32, device=like.device)


def _add_outer(total: Tensor | None, left: Tensor, right: Tensor, *, last: bool) -> Tensor:
    """``total + left^T right``, summed in float32; with the last chunk, in the inputs' dtype."""
    if left.dtype == torch.float32:
        return left.t() @ right if total is None else total.addmm_(left.t(), right)
    product = left.t() @ right
    if total is not None:
        product = total.add_(product)
    return product.to(left.dtype) if last else product.float()


def _logit_grad(
    logits: Tensor,
    normaliser: Tensor,
    labels: Tensor,
    g_logp: Tensor,
    entropy: tuple[Tensor, Tensor] | None,
    form: LogitForm,
) -> Tensor:
    """Gradient of the raw logits: ``g (1_y - p) - g_H p (log p + H)``, through the logit form."""
    if entropy is None and not form.softcap:
        grad = logits.sub_(normaliser[:, None]).mul_(_LOG2_E).exp2_().mul_(g_logp.neg()[:, None])
    else:
        log_p = logits - normaliser[:, None]
        factor = g_logp.neg()[:, None]
        if entropy is not None:
            g_entropy, value = entropy
            factor = (log_p + value[:, None]).mul_(-g_entropy[:, None]).add_(factor)
        grad = log_p.exp_().mul_(factor)
    grad.scatter_add_(1, labels[:, None], g_logp[:, None])
    return form.backward_(grad, logits)
