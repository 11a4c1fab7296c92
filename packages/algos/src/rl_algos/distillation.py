"""Distillation from a teacher's distribution: forward, reverse and top-k KL per token."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_algos.errors import ShapeError
from rl_algos.kl import full_kl
from rl_algos.validation import check_floating, check_mask, compute_dtype, unknown_name

_DIRECTIONS = ("forward", "reverse")


def distillation_kl(
    student_logits: Tensor, teacher_logits: Tensor, response_mask: Tensor, direction: str = "forward"
) -> Tensor:
    r"""Exact KL per token between teacher and student, `[B, T]`.

        forward: KL(teacher || student), covers the teacher's modes;   reverse: KL(student || teacher), seeks
            one

    Args:
        student_logits, teacher_logits: floating `[B, T, V]`; the gradient goes to the student only.
        response_mask: `[B, T]`; 0 elsewhere, with gradient 0, whatever the logits there.
        direction: "forward" or "reverse".

    Returns:
        float32 or float64 `[B, T]`: aggregate with `agg_loss` or `weighted_sum`.
    """
    if direction not in _DIRECTIONS:
        raise unknown_name("direction of distillation", direction, _DIRECTIONS)
    if student_logits.shape != teacher_logits.shape:
        raise ShapeError(
            f"student_logits {tuple(student_logits.shape)} and "
            f"teacher_logits {tuple(teacher_logits.shape)} differ"
        )
    student = _log_probs("student_logits", student_logits, response_mask)
    teacher = _log_probs("teacher_logits", teacher_logits.detach(), response_mask)
    return full_kl(teacher, student) if direction == "forward" else full_kl(student, teacher)


def topk_distillation_kl(
    student_logits: Tensor,
    teacher_topk_log_probs: Tensor,
    teacher_topk_ids: Tensor,
    response_mask: Tensor,
    tail: bool = True,
) -> Tensor:
    r"""Forward KL per token on the teacher's k likeliest tokens, `[B, T]`.

        sum over the k of p (log p - log q),   with `tail` plus the same term of all other tokens as one event

    With `tail` it is a true KL (of a coarser distribution): never negative, 0 only where the k agree, at most
    the full KL. Without, it can be negative and is only a weighted cross-entropy.

    Args:
        student_logits: floating `[B, T, V]`; the gradient goes here.
        teacher_topk_log_probs: floating `[B, T, k]`, normalised over the whole vocabulary.
        teacher_topk_ids: int64 `[B, T, k]`, distinct within a token.
        response_mask: `[B, T]`; 0 elsewhere, with gradient 0.
        tail: count the rest of the vocabulary.
    """
    if teacher_topk_log_probs.shape != teacher_topk_ids.shape:
        raise ShapeError(
            f"teacher_topk_log_probs {tuple(teacher_topk_log_probs.shape)} and "
            f"teacher_topk_ids {tuple(teacher_topk_ids.shape)} differ"
        )
    student = _log_probs("student_logits", student_logits, response_mask)
    mask = check_mask(response_mask, student.shape[:2])[..., None]
    ids = torch.where(mask, teacher_topk_ids, torch.arange(teacher_topk_ids.shape[-1], device=mask.device))
    log_q = student.gather(-1, ids)
    log_p = torch.where(mask, teacher_topk_log_probs.detach().to(log_q.dtype), log_q.detach())
    kl = full_kl(log_p, log_q)
    if not tail:
        return torch.where(mask[..., 0], kl, 0)
    rest_p = (1.0 - log_p.exp().sum(dim=-1)).clamp(min=0.0)
    rest_q = (1.0 - log_q.exp().sum(dim=-1)).clamp(min=torch.finfo(log_q.dtype).tiny)
    rest = torch.where(rest_p > 0, rest_p * (rest_p.clamp(min=1e-30).log() - rest_q.log()), 0)
    return torch.where(mask[..., 0], kl + rest, 0)


def _log_probs(name: str, logits: Tensor, response_mask: Tensor) -> Tensor:
    check_floating(name, logits)
    if logits.dim() != 3:
        raise ShapeError(f"{name} has shape {tuple(logits.shape)}, expected [batch, tokens, vocabulary]")
    mask = check_mask(response_mask, logits.shape[:2])
    safe = torch.where(mask[..., None], logits.to(compute_dtype(logits)), 0)
    return torch.log_softmax(safe, dim=-1)
