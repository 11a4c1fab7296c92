"""GAE, returns and the advantage pipeline of OpenRLHF, and the group advantages of TRL."""

from __future__ import annotations

from typing import Any

import torch
from golden_vectors import Case, LeftOut, check

import rl_algos as ra


def leave_out(case: Case) -> torch.Tensor:
    mask = case.inputs["action_mask"].bool()
    first = mask.cumsum(1) > 0
    inside = first & (mask.flip(1).cumsum(1).flip(1) > 0)
    if bool((inside & ~mask).any()):
        raise LeftOut("returns decay through observation tokens")
    return mask


def test_gae() -> None:
    def adapter(case: Case) -> dict[str, Any]:
        mask = leave_out(case)
        advantages, returns = ra.compute_gae_advantage_return(
            case.inputs["rewards"],
            case.inputs["values"],
            mask,
            case.params["gamma"],
            case.params["lambd"],
            whiten=False,
        )
        return {"advantages": advantages, "returns": returns}

    check("openrlhf", "openrlhf/gae", adapter)


def test_cumulative_returns() -> None:
    def adapter(case: Case) -> dict[str, Any]:
        mask = leave_out(case)
        return {"returns": ra.compute_discounted_returns(case.inputs["rewards"], mask, case.params["gamma"])}

    check("openrlhf", "openrlhf/cumulative_returns", adapter)


def group_rewards(case: Case) -> tuple[torch.Tensor, list[int]]:
    rewards = case.inputs["rewards"]
    groups = (torch.arange(rewards.numel()) // case.params["n_samples_per_prompt"]).tolist()
    return rewards, groups


def pipeline(case: Case) -> dict[str, Any]:
    mask = leave_out(case)
    name = case.params["estimator"]
    if not mask.any(1).all():
        raise LeftOut("a row without tokens counts in the reference's statistics")
    rewards, groups = group_rewards(case)
    placed = ra.place_on_last_token(rewards, mask)
    if case.params["kl_coef"]:
        if name not in ("gae", "reinforce"):
            raise LeftOut("KL is subtracted after the baseline")
        placed = placed - case.params["kl_coef"] * torch.where(mask, case.inputs["kl"], 0)
    n = mask.sum().double()
    # Their whitening divides by the deviation with n, ours with n - 1.
    whitening = (n / (n - 1)).sqrt()
    if name in ("gae", "reinforce"):
        options = {"gamma": case.params["gamma"]}
        if name == "gae":
            options |= {"lam": case.params["lambd"], "values": case.inputs["values"]}
        chosen = "gae" if name == "gae" else "reinforce_plus_plus"
        advantages, returns = ra.get_adv_estimator_fn(chosen)(
            token_level_rewards=placed, response_mask=mask, **options
        )
        return {"advantages": advantages * whitening, "returns": returns}
    chosen, options = {
        "rloo": ("rloo", {}),
        "reinforce_baseline": ("reinforce_plus_plus_baseline", {}),
        "group_norm": ("grpo", {"epsilon": 1e-9}),
        "dr_grpo": ("dr_grpo", {}),
    }[name]
    advantages, _ = ra.get_adv_estimator_fn(chosen)(
        token_level_rewards=placed, response_mask=mask, index=groups, **options
    )
    if name == "reinforce_baseline":
        if not ra.informative_groups(rewards, groups).all():
            raise LeftOut("whitening moves a constant group away from 0")
        advantages = advantages * whitening
    return {"advantages": advantages}


def test_pipeline() -> None:
    check("openrlhf", "openrlhf/adv_pipeline", pipeline)


def trl_scores(case: Case) -> tuple[torch.Tensor, list[int]]:
    per_function = case.inputs["rewards_per_func"]
    if bool(torch.isnan(per_function).any()):
        raise LeftOut("NaN rewards are the trainer's to drop")
    scores = (per_function * torch.tensor(case.params["reward_weights"])).sum(1, keepdim=True)
    return scores, (torch.arange(len(scores)) // case.params["num_generations"]).tolist()


def test_trl_group_advantages() -> None:
    def adapter(case: Case) -> dict[str, Any]:
        scores, groups = trl_scores(case)
        p = case.params
        if p["scale_rewards"] == "batch":
            raise LeftOut("scaling by the batch's deviation is no estimator here")
        if p["multi_objective_aggregation"] == "normalize_then_sum":
            raise LeftOut("normalised again over the batch without tokens")
        advantages, _ = ra.compute_grpo_outcome_advantage(
            scores,
            torch.ones_like(scores),
            groups,
            epsilon=1e-4,
            norm_adv_by_std_in_grpo=p["scale_rewards"] == "group",
        )
        return {"advantages": advantages[:, 0]}

    check("trl", "trl/grpo_adv", adapter)


def test_trl_leave_one_out() -> None:
    def adapter(case: Case) -> dict[str, Any]:
        scores, groups = trl_scores(case)
        if case.params["normalize_advantages"]:
            raise LeftOut("normalised again over the batch without tokens")
        advantages, _ = ra.compute_rloo_outcome_advantage(scores, torch.ones_like(scores), groups)
        return {"advantages": advantages[:, 0]}

    check("trl", "trl/rloo_adv", adapter)
