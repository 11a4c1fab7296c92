"""KL estimators, controllers and KL in the reward against the golden vectors."""

from __future__ import annotations

from typing import Any

import torch
from golden_vectors import Case, LeftOut, check, grad, leaf

import rl_algos as ra


def test_kl_penalty() -> None:
    def adapter(case: Case) -> dict[str, Any]:
        name = case.params["kl_penalty"]
        if "neginf_ref" in case.tags:
            raise LeftOut("minus infinity inside the mask is checked where data enters")
        logprob = leaf(case.inputs["logprob"])
        value = ra.kl_penalty(logprob, case.inputs["ref_logprob"], name)
        if name.rstrip("+") in ("k3", "low_var_kl") and bool((value > 10).any()):
            raise LeftOut("k3 is clamped to 10, with gradient 0")
        return {"value": value, "grad_logprob": grad(value.sum(), logprob)}

    check("verl_kl", "verl/kl/", adapter)


def test_openrlhf_approx_kl() -> None:
    def adapter(case: Case) -> dict[str, Any]:
        if "extreme50" in case.tags:
            raise LeftOut("clamped to plus or minus 10")
        if "float64" in case.tags:
            raise LeftOut("computes float64 in float32")
        logprob = leaf(case.inputs["log_probs"])
        value = ra.kl_penalty(logprob, case.inputs["log_probs_base"], case.params["kl_estimator"])
        return {"value": value, "grad_log_probs": grad(value.sum(), logprob)}

    check("openrlhf", "openrlhf/approx_kl", adapter)


def test_adaptive_controller() -> None:
    def adapter(case: Case) -> dict[str, Any]:
        p = case.params
        controller = ra.AdaptiveKLController(p["init_kl_coef"], p["target_kl"], p["horizon"])
        values = []
        for current, steps in p["updates"]:
            controller.update(current, steps)
            values.append(controller.value)
        return {"values": values}

    check("verl_kl", "verl/adaptive_kl", adapter)


def test_kl_in_reward() -> None:
    def adapter(case: Case) -> dict[str, Any]:
        p = case.params
        adaptive = p["ctrl"] == "adaptive"
        controller: ra.FixedKLController | ra.AdaptiveKLController = ra.FixedKLController(p["kl_coef"])
        if adaptive:
            controller = ra.AdaptiveKLController(p["kl_coef"], p["target_kl"], p["horizon"])
        coefficient = controller.value
        rewards, metrics = ra.apply_kl_penalty(**case.inputs, kl_coef=coefficient, kl_penalty=p["kl_penalty"])
        if not case.mask.bool().any(1).all():
            return {"token_level_rewards": rewards}
        current = metrics["reward_kl_penalty"].value().item()
        controller.update(current, case.mask.shape[0])
        values = {"actor/reward_kl_penalty": current, "actor/reward_kl_penalty_coeff": coefficient}
        return {"token_level_rewards": rewards, "metrics": values, "kl_coef_after": controller.value}

    check("verl_kl", "verl/apply_kl_penalty", adapter)


def test_classic_rewards() -> None:
    def adapter(case: Case) -> dict[str, Any]:
        scores = case.inputs["token_level_scores"]
        rewards, _ = ra.apply_kl_penalty(
            scores,
            case.inputs["old_log_prob"],
            case.inputs["ref_log_prob"],
            torch.ones_like(scores),
            case.params["kl_ratio"],
        )
        return {"value": rewards}

    check("verl_kl", "verl/compute_rewards", adapter)


def test_openrlhf_reward_placement() -> None:
    def adapter(case: Case) -> dict[str, Any]:
        mask = case.inputs["action_mask"]
        rewards = case.inputs["r"]
        if case.params["reward_clip_range"]:
            rewards = rewards.clamp(*case.params["reward_clip_range"])
        placed = ra.place_on_last_token(rewards, mask)
        kl = case.inputs["kl"]
        return {"value": placed - case.params["kl_coef"] * torch.where(mask.bool(), kl, 0)}

    check("openrlhf", "openrlhf/compute_reward", adapter)
