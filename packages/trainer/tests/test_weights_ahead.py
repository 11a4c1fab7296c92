"""Weights on their way to engines that are busy hold nobody up, and are not forgotten."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rl_protocol import LocalStore
from rl_trainer.config.tree import PPOConfig
from rl_trainer.loop.rollouts import Rollouts


class Calls:
    """A group that notes which of its calls were waited for."""

    def __init__(self) -> None:
        self.sent, self.waited = 0, list[int]()

    def submit(self, method: str, *arguments: Any) -> Any:
        number = self.sent = self.sent + 1
        return SimpleNamespace(get=lambda: self.waited.append(number))


@pytest.mark.parametrize(("staleness", "waited"), [(0, [1, 2, 3, 4]), (1, [1, 2, 3]), (2, [1, 2])])
def test_a_push_is_waited_for_once_its_batches_are_done(staleness: int, waited: list[int]) -> None:
    config, engines = PPOConfig(), Calls()
    config.trainer.staleness = staleness
    rollouts = Rollouts(config, None, engines, Calls(), LocalStore())  # type: ignore[arg-type]
    for _ in range(4):
        rollouts.sync_weights()
    assert engines.waited == waited
