"""Aggregation, value loss, entropy and masked statistics against the golden vectors."""

from __future__ import annotations

from typing import Any

import torch
from golden_vectors import Case, LeftOut, check, grad, leaf
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
