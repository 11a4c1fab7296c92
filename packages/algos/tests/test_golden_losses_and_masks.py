"""Aggregation, value loss, entropy, masked statistics and token log-probs against the golden vectors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from golden_vectors import Case, LeftOut, cases, check, grad, leaf
from test_golden_policy_losses import verl_weights

import rl_algos as ra


def info(case: Case) -> dict[str, Any]:
    names = ("dp_size", "batch_num_tokens", "global_batch_size", "loss_scale_factor")
    return {name: case.params[name] for name in names if case.params.get(name) is not None}


def nothing_selected(case: Case) -> None:
    if case.mask is not None and not case.mask.bool().any():
        raise LeftOut("nothing selected")


def test_agg_loss_with_global_counts() -> None:
    def adapter(case: Case) -> dict[str, Any]:
        nothing_selected(case)
        matrix, mask = leaf(case.inputs["loss_mat"]), case.inputs["loss_mask"]
        loss = ra.weighted_sum(matrix, mask, verl_weights(mask, case.params["loss_agg_mode"], info(case)))
        return {"loss": loss, "grad_loss_mat": grad(loss, matrix)}

    check("verl_agg_value_entropy", "verl/agg_loss", adapter)


def test_agg_loss_of_a_whole_batch() -> None:
    def adapter(case: Case) -> dict[str, Any]:
        nothing_selected(case)
        if info(case):
            raise LeftOut("counts of another batch: compared by weights")
        matrix, mask, mode = (
            leaf(case.inputs["loss_mat"]),
            case.inputs["loss_mask"],
            case.params["loss_agg_mode"],
        )
        norm = float(mask.shape[1]) if mode == "seq-mean-token-sum-norm" else None
        loss = ra.agg_loss(matrix, mask, mode, norm_constant=norm)
        return {"loss": loss, "grad_loss_mat": grad(loss, matrix)}

    check("verl_agg_value_entropy", "verl/agg_loss", adapter)


def test_value_loss() -> None:
    def adapter(case: Case) -> dict[str, Any]:
        nothing_selected(case)
        inputs = dict(case.inputs)
        new, mask = leaf(inputs.pop("vpreds")), inputs["response_mask"]
        weights = verl_weights(mask, case.params["loss_agg_mode"], info(case))
        clip = case.params["cliprange_value"]
        loss, clipfrac = ra.compute_value_loss(new, **inputs, cliprange_value=clip, row_weights=weights)
        # Their share is float32 in a float64 run.
        clipfrac = clipfrac.float().to(case.outputs["vf_clipfrac"].dtype)
        return {"loss": loss, "vf_clipfrac": clipfrac, "grad_vpreds": grad(loss, new)}

    check("verl_agg_value_entropy", "verl/value_loss", adapter)


def test_openrlhf_value_loss() -> None:
    def adapter(case: Case) -> dict[str, Any]:
        nothing_selected(case)
        new, mask = leaf(case.inputs["values"]), case.inputs["action_mask"]
        mode = "token-mean" if case.params["token_level_loss"] else "seq-mean-token-mean"
        if mode.startswith("seq") and not mask.bool().any(1).all():
            raise LeftOut("fully masked rows dilute the mean over sequences")
        loss, _ = ra.compute_value_loss(
            new,
            case.inputs["returns"],
            case.inputs["old_values"],
            mask,
            case.params["clip_eps"],
            row_weights=ra.loss_weights(mask, mode, dtype=torch.float64),
        )
        return {"loss": loss, "grad_values": grad(loss, new)}

    check("openrlhf", "openrlhf/value_loss", adapter)


def test_entropy_loss() -> None:
    def adapter(case: Case) -> dict[str, Any]:
        nothing_selected(case)
        logits, mask, mode = leaf(case.inputs["logits"]), case.mask, case.params["loss_agg_mode"]
        norm = float(mask.shape[1]) if mode == "seq-mean-token-sum-norm" else None
        loss = ra.compute_entropy_loss(logits, mask, mode, norm_constant=norm)
        return {"loss": loss, "grad_logits": grad(loss, logits)}

    check("verl_agg_value_entropy", "verl/entropy_loss", adapter)


def test_trl_entropy_from_logits() -> None:
    def adapter(case: Case) -> dict[str, Any]:
        logits = leaf(case.inputs["logits"])
        value = ra.entropy_from_logits(logits)
        return {"value": value, "grad_logits": grad(value.sum(), logits)}

    check("trl", "trl/entropy_from_logits", adapter)


@pytest.mark.parametrize("form", ["entropy_from_logits/", "entropy_from_logits_with_chunking"])
def test_verl_entropy_from_logits(form: str) -> None:
    def adapter(case: Case) -> dict[str, Any]:
        if "neginf" in case.tags:
            raise LeftOut("the entropy of logits with minus infinity is NaN")
        if "chunking" in form and "float64" in case.tags:
            raise LeftOut("the chunked form computes float64 in float32")
        if "big" in case.tags:
            raise LeftOut("the entropy of wide logits is a difference of two large float32 numbers")
        logits = leaf(case.inputs["logits"])
        value = ra.entropy_from_logits(logits)
        return {"value": value, "grad_logits": grad(value.sum(), logits)}

    check("verl_logits", f"verl/{form}", adapter)


def test_entropy_where_the_reference_is_wrong() -> None:
    """Minus infinity is probability 0, and wide logits lose nothing: ours is near the float64 value."""
    for case in cases("verl_logits"):
        if not {"neginf", "big"} & set(case.tags):
            continue
        logits = leaf(case.inputs["logits"])
        p = torch.softmax(logits.detach().double(), dim=-1)
        expected = -torch.where(p > 0, p * p.log(), 0).sum(-1)
        value = ra.entropy_from_logits(logits)
        torch.testing.assert_close(value.detach().double(), expected, rtol=1e-6, atol=1e-6)
        slope = grad(value.sum(), logits)
        assert bool(slope.isfinite().all()) and not slope[logits.isinf()].any()


def token_log_prob(case: Case, labels: str) -> dict[str, Any]:
    """Log-prob of a token: minus the KL to a teacher that puts all on it, by both distillation losses."""
    logits, ids = leaf(case.inputs["logits"]), case.inputs[labels]
    scaled, certain = logits.double() / case.params["temperature"], torch.ones(ids.shape)
    teacher = torch.full_like(scaled, float("-inf")).scatter(-1, ids[..., None], 0.0)
    value = -ra.distillation_kl(scaled, teacher, certain)
    top = -ra.topk_distillation_kl(scaled, torch.zeros(*ids.shape, 1), ids[..., None], certain, tail=False)
    torch.testing.assert_close(value, top)
    return {"value": value, "grad_logits": grad(value.sum(), logits)}


def test_token_log_probs() -> None:
    check("trl", "trl/selective_log_softmax", lambda case: token_log_prob(case, "index"))
    check("openrlhf", "openrlhf/log_probs_from_logits", lambda case: token_log_prob(case, "labels"))


def test_trl_nanstd_is_the_deviation_of_a_group() -> None:
    """Rows as groups, NaN as what counts in no statistic."""

    def adapter(case: Case) -> dict[str, Any]:
        x = case.inputs["tensor"]
        rows = torch.arange(len(x)).repeat_interleave(x.shape[1])
        return {"value": ra.group_stats(x.flatten(), rows, ~x.flatten().isnan()).std}

    check("trl", "trl/nanstd", adapter)


def test_openrlhf_masked_normalize_is_whitening_by_row() -> None:
    def adapter(case: Case) -> dict[str, Any]:
        values, mask = case.inputs["tensor"], case.inputs["mask"].bool()
        rows = zip(values.double(), mask, strict=True)
        # Theirs keeps the variance above 1e-8, ours adds an epsilon: none here.
        whitened = [ra.masked_whiten(row[None], keep[None], epsilon=0.0) for row, keep in rows]
        # Theirs divides by the deviation with n, ours with n - 1.
        n = mask.sum(1, keepdim=True).clamp(min=2)
        got = torch.cat(whitened) * (n / (n - 1)).sqrt()
        return {"value": torch.where(mask, got.to(values.dtype), case.outputs["value"])}

    check("openrlhf", "openrlhf/masked_normalize", adapter)


def test_losses_of_other_packages_are_left_out() -> None:
    def adapter(case: Case) -> dict[str, Any]:
        raise LeftOut("preference and reward-model losses are not in this package")

    for name in ("dpo", "logexp", "pairwise"):
        check("openrlhf", f"openrlhf/{name}", adapter)


def statistic(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    mask = case.inputs["mask"].bool()
    if not mask.any():
        raise LeftOut("nothing selected")
    return case.inputs["values"], mask


def test_masked_sum_and_mean() -> None:
    def mean(case: Case) -> dict[str, Any]:
        return {"value": ra.masked_mean(*statistic(case), case.params["axis"])}

    def total(case: Case) -> dict[str, Any]:
        return {"value": ra.masked_sum(*statistic(case), case.params["axis"])}

    check("verl_agg_value_entropy", "verl/masked_mean", mean)
    check("verl_agg_value_entropy", "verl/masked_sum", total)


def test_masked_var_and_whiten() -> None:
    def var(case: Case) -> dict[str, Any]:
        values, mask = statistic(case)
        value = ra.masked_var(values, mask, unbiased=case.params["unbiased"])
        if case.params["unbiased"] and values.dtype == torch.float64:
            # Their n / (n - 1) is float32.
            n = mask.sum()
            value = value * (n.float() / (n.float() - 1)).double() / (n.double() / (n.double() - 1))
        return {"value": value}

    def whiten(case: Case) -> dict[str, Any]:
        values, mask = statistic(case)
        got = ra.masked_whiten(values, mask, shift_mean=case.params["shift_mean"])
        if values.dtype == torch.float64:
            n, mean = mask.sum(), ra.masked_mean(got, mask)
            theirs = (n.float() / (n.float() - 1)).double() / (n.double() / (n.double() - 1))
            got = mean + (got - mean) / theirs.sqrt()
        return {"value": torch.where(mask, got.to(case.outputs["value"].dtype), case.outputs["value"])}

    check("verl_agg_value_entropy", "verl/masked_var", var)
    check("verl_agg_value_entropy", "verl/masked_whiten", whiten)
