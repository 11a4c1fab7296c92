"""Several rule rewards, added with weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import torch

from rl_protocol import DataProto

from .manager import RewardManager, RewardResult


class WeightedRewards:
    """The weighted sum of rule rewards; each one's own score is kept under its name.

    A row that one of them gives no value has none: half a reward would teach something else.

    Args:
        managers: one for each rule, by `rule_names`.
        weights: of each.
    """

    def __init__(self, managers: Mapping[str, RewardManager], weights: Sequence[float]) -> None:
        self.managers, self.weights = dict(managers), list(weights)

    def start(self) -> None:
        """Start every rule's processes."""
        for manager in self.managers.values():
            manager.start()

    def close(self) -> None:
        """End every rule's processes."""
        for manager in self.managers.values():
            manager.close()

    def __call__(self, batch: DataProto) -> RewardResult:
        """`scores` `[B]`; extras `<rule>` (its score) and `<rule>/<name>` (its further numbers)."""
        scores, failures = torch.zeros(len(batch)), Counter[str]()
        extras, first = {}, ""
        for (name, manager), weight in zip(self.managers.items(), self.weights, strict=True):
            result = manager(batch)
            scores = scores + weight * result.scores
            extras[name] = result.scores.double().numpy()
            extras |= {f"{name}/{key}": column for key, column in result.extras.items()}
            failures.update(result.failures)
            first = first or result.first_failure
        return RewardResult(scores, extras, dict(failures), first)


def rule_names(functions: Sequence[str]) -> list[str]:
    """A name for each function: what stands behind its colon, with a number where that is there already."""
    names: list[str] = []
    for function in functions:
        name = function.rpartition(":")[2]
        names.append(name if name not in names else f"{name}_{len(names)}")
    return names
