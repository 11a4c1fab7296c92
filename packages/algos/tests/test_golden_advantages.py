"""Advantage estimators against the golden vectors of verl."""

from __future__ import annotations

import pytest
import torch
from golden_vectors import Case, LeftOut, check

import rl_algos as ra

PREFIX = "verl/adv/"
WHITENED = ("gae", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "gdpo")


def degenerate(case: Case) -> None:
    """Leave out what the references get wrong about groups; our values are in test_group_estimators.py."""
    scores = torch.where(case.inputs["response_mask"].bool(), case.inputs["token_level_rewards"], 0).sum(1)
    raw = case.inputs["token_level_rewards"].sum(1)
    counted = case.inputs["response_mask"].bool().any(1)
    if not counted.any():
        raise LeftOut("nothing selected")
    if not torch.equal(raw, scores):
        raise LeftOut("a reward on a masked position counts in the reference")
    ids = list(case.inputs["index"])
    for key in set(ids):
        rows = [i for i, other in enumerate(ids) if other == key]
        kept = [i for i in rows if counted[i]]
        if len(kept) != len(rows):
            raise LeftOut("a row without tokens counts in the reference's statistics")
        if len(rows) == 1:
            raise LeftOut("a group of one: ours is exactly 0")


def bessel_rounding(case: Case) -> torch.Tensor:
    """What the reference's float32 n / (n - 1) makes of a whitened float64 advantage."""
    n = case.inputs["response_mask"].sum()
    return ((n.double() / (n.double() - 1)) / (n.float() / (n.float() - 1)).double()).sqrt()


def no_offset(case: Case) -> None:
    if "offset" in case.tags:
        raise LeftOut("scores near 10,000: the reference's float32 statistics cancel")


def run(case: Case, name: str, **options: object) -> dict[str, torch.Tensor]:
    spec = ra.get_adv_estimator_spec(name)
    names = ("token_level_rewards", "response_mask", *spec.inputs)
    inputs = {key: value for key, value in case.inputs.items() if key in names}
    advantages, returns = ra.get_adv_estimator_fn(name)(**inputs, **options)
    if name in WHITENED and "float64" in case.tags:
        advantages = advantages * bessel_rounding(case)
    if name == "reinforce_plus_plus_baseline" or name == "gdpo":
        returns = advantages
    return {"advantages": advantages, "returns": returns}


def group(case: Case, name: str, **options: object) -> dict[str, torch.Tensor]:
    degenerate(case)
    no_offset(case)
    return run(case, name, **options)


def gae(case: Case) -> dict[str, torch.Tensor]:
    if not case.inputs["response_mask"].any():
        raise LeftOut("nothing selected")
    return run(case, "gae", gamma=case.params["gamma"], lam=case.params["lam"])


def test_gae() -> None:
    check("verl_adv", PREFIX + "gae", gae)


@pytest.mark.parametrize("form", ["grpo_std", "grpo_vectorized"])
def test_grpo(form: str) -> None:
    def adapter(case: Case) -> dict[str, torch.Tensor]:
        if form == "grpo_vectorized" and "float64" in case.tags:
            raise LeftOut("the vectorised form computes float64 in float32")
        divide = case.params["norm_adv_by_std_in_grpo"]
        return group(case, "grpo", norm_adv_by_std_in_grpo=divide, epsilon=case.params["epsilon"])

    check("verl_adv", PREFIX + form, adapter)


def test_grpo_passk() -> None:
    def adapter(case: Case) -> dict[str, torch.Tensor]:
        return group(case, "grpo_passk", **case.params["config"])

    check("verl_adv", PREFIX + "grpo_passk", adapter)


@pytest.mark.parametrize("form", ["rloo/", "rloo_vectorized"])
def test_rloo(form: str) -> None:
    check("verl_adv", PREFIX + form, lambda case: group(case, "rloo"))


def test_opo() -> None:
    check("verl_adv", PREFIX + "opo", lambda case: group(case, "opo"))


def test_reinforce_plus_plus_baseline() -> None:
    def adapter(case: Case) -> dict[str, torch.Tensor]:
        return group(case, "reinforce_plus_plus_baseline")

    check("verl_adv", PREFIX + "reinforce_plus_plus_baseline", adapter)


def test_reinforce_plus_plus() -> None:
    def adapter(case: Case) -> dict[str, torch.Tensor]:
        if not case.inputs["response_mask"].any():
            raise LeftOut("nothing selected")
        no_offset(case)
        if case.params["config"]["gamma"] == 1.0 and "single_row" in case.tags:
            raise LeftOut("equal returns: ours are exactly 0")
        return run(case, "reinforce_plus_plus", gamma=case.params["config"]["gamma"])

    check("verl_adv", PREFIX + "reinforce_plus_plus_g", adapter)


def test_remax() -> None:
    check("verl_adv", PREFIX + "remax", lambda case: run(case, "remax"))


def test_gpg_up_to_its_alpha() -> None:
    """The reference's alpha counts non-zero scores; divide it out and put ours in."""

    def adapter(case: Case) -> dict[str, torch.Tensor]:
        advantages = group(case, "gpg")["advantages"]
        scores = case.inputs["token_level_rewards"].sum(1)
        theirs = scores.numel() / scores.count_nonzero().clamp(min=1)
        informative = ra.informative_groups(scores, case.inputs["index"])
        ours = scores.numel() / informative.sum().clamp(min=1)
        return {"advantages": advantages / ours * theirs}

    check("verl_adv", PREFIX + "gpg", adapter)


def test_gdpo() -> None:
    def adapter(case: Case) -> dict[str, torch.Tensor]:
        degenerate(case)
        no_offset(case)
        if "float64" in case.tags and case.params.get("gdpo_reward_keys"):
            raise LeftOut("reward components are float32 in a float64 run")
        keys = case.params.get("gdpo_reward_keys")
        options: dict[str, object] = {}
        if keys:
            parts = [torch.as_tensor(case.inputs[key]).float() for key in keys]
            options["reward_components"] = torch.stack(parts, dim=1)
            if case.params.get("gdpo_reward_weights"):
                options["reward_weights"] = case.params["gdpo_reward_weights"]
        return run(case, "gdpo", **options)

    check("verl_adv", PREFIX + "gdpo", adapter)


@pytest.mark.parametrize("name", ["optimal_token_baseline", "tir_optimal_token_baseline"])
def test_optimal_token_baseline(name: str) -> None:
    def adapter(case: Case) -> dict[str, torch.Tensor]:
        degenerate(case)
        tail = case.params["handle_zero_tail"]
        holes = any(tag.startswith("holes") for tag in case.tags)
        if name == "optimal_token_baseline" and tail and holes:
            raise LeftOut("the zero tail takes the mask's sum for a column")
        if "float16" in case.tags:
            raise LeftOut("half precision divides 0 by 0")
        if tail and "equal01" in case.tags:
            raise LeftOut("a constant group: ours is exactly 0, in the tail too")
        return group(case, name, handle_zero_tail=tail, epsilon=case.params["epsilon"])

    check("verl_adv", PREFIX + name, adapter)
