"""CPU time of ours and verl's functions on the same tensors at one thread; prints ratios and JSON."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator

import torch
from inputs import SHAPES, Inputs, make_inputs, verl_actor_config
from verl.trainer.ppo import core_algos as verl

import rl_algos as ra

Pair = tuple[str, float | None, Callable[[], object], Callable[[], object]]
LOSSES = (
    "clip_higher",
    "gspo",
    "cispo",
    "sapo",
    "geo_mean",
    "gpg",
    "clip_cov",
    "kl_cov",
    "dppo_tv",
    "dppo_kl",
    "dro",
)
OPTIONS = {"gspo": {"clip_ratio": 0.2}, "cispo": {"clip_ratio": 0.2}, "geo_mean": {"clip_ratio": 0.2}}


def cpu_seconds(*runs: Callable[[], object], repeats: int = 7, budget: float = 12.0) -> list[float]:
    """Best CPU time of each, called in turn so that other work on the machine meets all; once to warm up."""
    for run in runs:
        run()
    best, spent = [float("inf")] * len(runs), 0.0
    for _ in range(repeats):
        for place, run in enumerate(runs):
            start = time.process_time()
            run()
            took = time.process_time() - start
            best[place], spent = min(best[place], took), spent + took
        if spent > budget:
            break
    return best


def gae(x: Inputs) -> Iterator[Pair]:
    arguments = (x.rewards, x.values, x.mask)
    yield (
        "gae",
        6.0,
        lambda: ra.compute_gae_advantage_return(*arguments, 0.99, 0.95),
        lambda: verl.compute_gae_advantage_return(*arguments, 0.99, 0.95),
    )
    config = {"gamma": 0.99}
    yield (
        "reinforce_plus_plus",
        6.0,
        lambda: ra.compute_reinforce_plus_plus_outcome_advantage(x.rewards, x.mask, 0.99),
        lambda: verl.compute_reinforce_plus_plus_outcome_advantage(x.rewards, x.mask, _Config(config)),
    )


def groups(x: Inputs) -> Iterator[Pair]:
    for size in (8, 16):
        for name in ("grpo", "rloo", "reinforce_plus_plus_baseline"):
            target = 4.0 if x.mask.shape[0] > 4096 else None
            yield (f"{name} groups of {size}", target, *group_pair(x, name, name, size, torch.float32))
    # Unsafe: what lies under the mask counts. int64 is the mask's dtype in verl's trainer (a slice of the
    # attention mask); float32 is the fastest for verl, bool for us.
    for name in ("grpo", "rloo"):
        for dtype in (torch.float32, torch.int64, torch.bool):
            label = f"{name} vectorised, {str(dtype).removeprefix('torch.')} mask"
            yield (label, 1 / 1.5, *group_pair(x, name, f"{name}_vectorized", 8, dtype))


def group_pair(
    x: Inputs, name: str, theirs: str, size: int, dtype: torch.dtype
) -> tuple[Callable[[], object], Callable[[], object]]:
    """Both estimators on one batch with a mask of this dtype."""
    inputs = {"token_level_rewards": x.rewards, "response_mask": x.mask.to(dtype), "index": x.index(size)}
    ours, reference = ra.get_adv_estimator_fn(name), verl.get_adv_estimator_fn(theirs)
    return lambda: ours(**inputs), lambda: reference(**inputs, config=None)


def ppo(x: Inputs) -> Iterator[Pair]:
    yield ("vanilla, forward and backward", 2.0, *loss_pair(x, "vanilla", "vanilla", {}))


def losses(x: Inputs) -> Iterator[Pair]:
    for name in LOSSES:
        theirs = "vanilla" if name == "clip_higher" else name
        yield (f"{name}, forward and backward", 1.0, *loss_pair(x, name, theirs, OPTIONS.get(name, {})))


def loss_pair(
    x: Inputs, name: str, theirs: str, options: dict[str, float]
) -> tuple[Callable[[], object], Callable[[], object]]:
    """Forward and backward of both, from one set of log-probs."""
    config, leaf = verl_actor_config(), x.log_prob.clone().requires_grad_()
    shared = {
        "old_log_prob": x.old_log_prob,
        "log_prob": leaf,
        "advantages": x.advantages,
        "response_mask": x.mask,
        "loss_agg_mode": "token-mean",
    }

    def run_ours() -> None:
        leaf.grad = None
        extra = dict(options)
        if name == "clip_cov":
            inputs = (x.old_log_prob, x.log_prob, x.advantages, x.mask)
            extra = {"selected": ra.select_clip_cov_tokens(*inputs)}
        if name == "kl_cov":
            extra = {"selected": ra.select_kl_cov_tokens(x.log_prob, x.advantages, x.mask)}
        loss, metrics = ra.get_policy_loss_fn(name)(**shared, **extra)
        loss.backward()
        _ = {key: metric.value().item() for key, metric in metrics.items()}

    def run_theirs() -> None:
        leaf.grad = None
        loss, _ = verl.get_policy_loss_fn(theirs)(**shared, config=config)
        loss.backward()

    return run_ours, run_theirs


def evaluation() -> None:
    """pass@k, maj@k, mean and best of n for 10,000 prompts of 16 samples."""
    correct = torch.randint(0, 2, (10_000, 16)).double()
    answers = torch.randint(0, 5, (160_000,)).tolist()
    index = (torch.arange(160_000) // 16).tolist()

    def run() -> None:
        n = torch.full((10_000,), 16)
        for k in (1, 2, 4, 8, 16):
            ra.compute_pass_at_k(n, correct.sum(1), k)
            ra.best_at_k(correct, k)
            ra.worst_at_k(correct, k)
        correct.mean(1)
        ra.compute_maj_at_k([str(answer) for answer in answers], correct.flatten(), index)

    (took,) = cpu_seconds(run)
    print(f"{'pass@k, best@k, maj@k, 10,000 x 16':52s} ours {took * 1e3:8.1f} ms   target < 1,000 ms")


class _Config(dict):
    """verl reads this option as an attribute."""

    gamma = 0.99


def main() -> None:
    logging.basicConfig(level=logging.ERROR)
    torch.set_num_threads(1)
    wanted = set(sys.argv[1:])
    sections = {"gae": gae, "groups": groups, "ppo": ppo, "losses": losses}
    results = []
    for shape in SHAPES:
        x = make_inputs(*shape)
        for section, pairs in sections.items():
            if wanted and section not in wanted:
                continue
            for name, target, ours, theirs in pairs(x):
                mine, reference = cpu_seconds(ours, theirs)
                label = f"{name} {shape[0]}x{shape[1]}"
                wanted_ratio = "" if target is None else f" (target {target:.2f})"
                mark = "" if target is None or reference / mine >= target else "   BELOW TARGET"
                print(
                    f"{label:52s} ours {mine * 1e3:8.1f} ms   verl {reference * 1e3:8.1f} ms   "
                    f"ratio {reference / mine:6.2f}{wanted_ratio}{mark}",
                    flush=True,
                )
                results.append({"name": label, "ours_s": mine, "verl_s": reference, "target": target})
    if not wanted or "evaluation" in wanted:
        evaluation()
    print(json.dumps(results))


if __name__ == "__main__":
    main()
