"""Plain loops in float64: what an estimator or a loss is, written token by token."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor


def gae(
    *, mask: Tensor, token_level_rewards: Tensor, values: Tensor, gamma: float = 1.0, lam: float = 1.0
) -> Tensor:
    out = torch.zeros_like(values)
    for row in range(mask.shape[0]):
        following, trace = 0.0, 0.0
        for t in reversed(range(mask.shape[1])):
            if not mask[row, t]:
                continue
            delta = float(token_level_rewards[row, t]) + gamma * following - float(values[row, t])
            trace = delta + gamma * lam * trace
            following = float(values[row, t])
            out[row, t] = trace
    return whiten(out, mask)


def whiten(x: Tensor, mask: Tensor) -> Tensor:
    flat = [float(v) for v in x[mask]]
    if len(flat) < 2 or max(flat) == min(flat):
        return torch.zeros_like(x)
    mean = math.fsum(flat) / len(flat)
    variance = math.fsum((v - mean) ** 2 for v in flat) / (len(flat) - 1)
    return (x - mean) / math.sqrt(variance + 1e-8)


def reinforce_plus_plus(*, mask: Tensor, token_level_rewards: Tensor, gamma: float = 1.0) -> Tensor:
    out = torch.zeros_like(token_level_rewards)
    for row in range(mask.shape[0]):
        total = 0.0
        for t in reversed(range(mask.shape[1])):
            if mask[row, t]:
                total = float(token_level_rewards[row, t]) + gamma * total
                out[row, t] = total
    return whiten(out, mask)


def remax(*, mask: Tensor, token_level_rewards: Tensor, reward_baselines: Tensor) -> Tensor:
    out = torch.zeros_like(token_level_rewards)
    for row in range(mask.shape[0]):
        for t in range(mask.shape[1]):
            later = [float(token_level_rewards[row, u]) for u in range(t, mask.shape[1]) if mask[row, u]]
            out[row, t] = math.fsum(later) - float(reward_baselines[row])
    return out


def grouped(advantage: Any) -> Any:
    """Oracle of a group estimator from `advantage(scores of the group, position, lengths) -> float`."""

    def oracle(*, mask: Tensor, token_level_rewards: Tensor, index: Tensor, **_: Any) -> Tensor:
        out = torch.zeros_like(token_level_rewards)
        scores, groups = {}, defaultdict(list)
        for row in range(mask.shape[0]):
            tokens = [float(token_level_rewards[row, t]) for t in range(mask.shape[1]) if mask[row, t]]
            if tokens:
                scores[row] = math.fsum(tokens)
                groups[int(index[row])].append(row)
        for rows in groups.values():
            values = [scores[row] for row in rows]
            lengths = [int(mask[row].sum()) for row in rows]
            for place, row in enumerate(rows):
                flat = len(rows) == 1 or max(values) == min(values)
                out[row] = 0.0 if flat else advantage(values, place, lengths)
        return out

    return oracle


def mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def std(values: list[float]) -> float:
    centre = mean(values)
    return math.sqrt(math.fsum((v - centre) ** 2 for v in values) / (len(values) - 1))


def best(values: list[float], place: int, _: list[int]) -> float:
    first, second = sorted(values, reverse=True)[:2]
    lead = values[place] == first and values.count(first) == 1
    return (first - second) / (std(values) + 1e-6) if lead else 0.0


def leave_one_out(values: list[float], place: int, _: list[int]) -> float:
    return values[place] - mean(values[:place] + values[place + 1 :])


def length_weighted(values: list[float], place: int, lengths: list[int]) -> float:
    weighted = math.fsum(n * v for n, v in zip(lengths, values, strict=True))
    return values[place] - weighted / sum(lengths)


ADV_EST_ORACLES = {
    "gae": gae,
    "reinforce_plus_plus": reinforce_plus_plus,
    "remax": remax,
    "grpo": grouped(lambda v, i, _: (v[i] - mean(v)) / (std(v) + 1e-6)),
    "dr_grpo": grouped(lambda v, i, _: v[i] - mean(v)),
    "rloo": grouped(leave_one_out),
    "opo": grouped(length_weighted),
    "grpo_passk": grouped(best),
    "maxrl": grouped(lambda v, i, _: (v[i] - mean(v)) / (mean(v) + 1e-6)),
}


def token_oracle(token: Any) -> Any:
    """Oracle of a loss from `token(row, t, log_ratio, a, log_prob, ratios) -> float`; see `Row`."""

    def oracle(
        *, mask: Tensor, weights: Tensor, old_log_prob: Tensor, log_prob: Tensor, advantages: Tensor, **_: Any
    ) -> float:
        total = []
        for row in range(mask.shape[0]):
            places = [t for t in range(mask.shape[1]) if mask[row, t]]
            logs = [float(log_prob[row, t] - old_log_prob[row, t]) for t in places]
            gains = [float(advantages[row, t]) for t in places]
            for k, t in enumerate(places):
                value = token(k, logs, gains, float(log_prob[row, t]))
                total.append(float(weights[row]) * value)
        return math.fsum(total)

    return oracle


def ppo(ratio: float, a: float, low: float, high: float, dual: float = math.inf) -> float:
    worst = max(-a * ratio, -a * min(max(ratio, 1 - low), 1 + high))
    return min(worst, -a * dual) if a < 0 else worst


def geo_mean(k: int, logs: list[float], gains: list[float], _: float) -> float:
    kept = []
    for x, a in zip(logs, gains, strict=True):
        clipped = min(max(x, -0.4), 0.4)
        kept.append(min(x, clipped) if a > 0 else max(x, clipped) if a < 0 else 0.0)
    return -mean(gains) * math.exp(mean(kept))


def sapo(k: int, logs: list[float], gains: list[float], _: float) -> float:
    tau = 1.0 if gains[k] > 0 else 1.05
    return -gains[k] * 4 / tau / (1 + math.exp(-tau * (math.exp(logs[k]) - 1)))


def vespo(k: int, logs: list[float], gains: list[float], log_prob: float) -> float:
    power, rate = (2.0, 3.0) if gains[k] >= 0 else (3.0, 2.0)
    log_w = min(max(math.fsum(logs), -20.0), 20.0)
    return -math.exp(power * log_w + rate * (1 - math.exp(log_w))) * gains[k] * log_prob


def topr(k: int, logs: list[float], gains: list[float], log_prob: float) -> float:
    weight = 1.0 if gains[k] >= 0 else min(1.0, math.exp(min(max(math.fsum(logs), -20.0), 20.0)))
    return -weight * gains[k] * log_prob


POLICY_LOSS_ORACLES = {
    "vanilla": token_oracle(lambda k, logs, a, lp: ppo(math.exp(logs[k]), a[k], 0.2, 0.2, 3.0)),
    "clip_higher": token_oracle(lambda k, logs, a, lp: ppo(math.exp(logs[k]), a[k], 0.2, 0.28, 10.0)),
    "gspo": token_oracle(lambda k, logs, a, lp: ppo(math.exp(mean(logs)), a[k], 3e-4, 4e-4)),
    "luspo": token_oracle(lambda k, logs, a, lp: len(logs) * ppo(math.exp(mean(logs)), a[k], 3e-4, 4e-4)),
    "cispo": token_oracle(lambda k, logs, a, lp: -min(math.exp(logs[k]), 5.0) * a[k] * lp),
    "reinforce": token_oracle(lambda k, logs, a, lp: -a[k] * lp),
    "gpg": token_oracle(lambda k, logs, a, lp: -a[k] * lp),
    "dro": token_oracle(lambda k, logs, a, lp: 0.25 * logs[k] ** 2 - a[k] * lp),
    "sapo": token_oracle(sapo),
    "geo_mean": token_oracle(geo_mean),
    "vespo": token_oracle(vespo),
    "topr": token_oracle(topr),
}
