"""What becomes of prompts that are sampled while others train, without a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rl_protocol import DataProto, DataProtoFuture, LocalStore
from rl_trainer.config.tree import PPOConfig
from rl_trainer.loop.async_rollouts import AsyncRollouts

ROWS = 2


class Pending(LocalStore):
    """Values that are there once they are released; whoever waits releases the next."""

    def __init__(self) -> None:
        self.held: list[Any] = []

    def wait_any(self, refs: Sequence[Any], timeout: float | None = None) -> list[Any]:
        if timeout != 0 and not [ref for ref in refs if ref not in self.held]:
            self.held.remove(next(ref for ref in self.held if ref in refs))
        return [ref for ref in refs if ref not in self.held]


class Engines:
    """Two engines whose rows stand for who made them; `late` prompts are held back."""

    world_size = 2

    def __init__(self) -> None:
        self.version, self.late, self.store = 0, set[str](), Pending()
        self.calls: list[tuple[int, str]] = []

    def submit_to(self, rank: int, method: str, rows: DataProtoFuture) -> DataProtoFuture:
        data = rows.select(["input_ids", "seeds"]).get()
        name = str(int(data.batch["input_ids"][0, 0]))
        self.calls.append((rank, name))
        count = torch.ones(len(data), dtype=torch.long)
        columns = {"response_lengths": count, "num_actions": count, "oldest_version": count * self.version}
        ref = self.store.put(DataProto.from_dict(columns | {"seeds": data.batch["seeds"]}))
        if name in self.late:
            self.store.held.append(ref)
        return DataProtoFuture([ref], store=self.store)

    def submit(self, method: str, *arguments: Any) -> Any:
        return SimpleNamespace(get=lambda: None)


def drawing(state: Any, batches: int, size: int) -> Callable[[], DataProto | None]:
    """Batches of prompts 0, 1, 2, ...; None after the last."""

    def draw() -> DataProto | None:
        if state.drawn == batches:
            return None
        ids = torch.arange(size)[:, None] + size * state.drawn
        state.drawn += 1
        tensors = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        return DataProto.from_dict(
            tensors, {"uid": np.array([str(i[0]) for i in ids.tolist()], dtype=object)}
        )

    return draw


def make(staleness: int, drop_stale: bool = True) -> tuple[AsyncRollouts, Engines, Any]:
    config, engines = PPOConfig(), Engines()
    config.trainer.mode, config.data.train_batch_size = "async", 4
    config.actor_rollout_ref.rollout.n = ROWS
    config.async_training.staleness, config.async_training.drop_stale = staleness, drop_stale
    state: Any = SimpleNamespace(drawn=0, version=0)
    return AsyncRollouts(config, state, engines, engines, LocalStore()), engines, state  # type: ignore[arg-type]


def step(rollouts: AsyncRollouts, engines: Engines, draw: Any) -> tuple[list[str], dict[str, float]]:
    """Take a batch, train, push: the prompts of the batch."""
    batch, metrics = rollouts.next(draw)
    rollouts.state.version += 1
    engines.version = rollouts.state.version
    return list(dict.fromkeys(batch.uids)), metrics


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_each_prompt_is_trained_on_once_and_in_its_order_where_none_is_late(staleness: int) -> None:
    rollouts, engines, state = make(staleness)
    draw = drawing(state, 5, 4)
    steps = [step(rollouts, engines, draw) for _ in range(5)]
    assert [name for names, _ in steps for name in names] == [str(i) for i in range(20)]
    assert [m["training/staleness"] for _, m in steps] == [min(i, staleness) for i in range(5)]
    assert max(m["async/rows_in_flight"] for _, m in steps) <= 4 * ROWS * staleness
    assert steps[-1][1]["async/rows_trained"] == 20 * ROWS == steps[-1][1]["async/rows_started"]


def test_a_late_prompt_is_overtaken_then_dropped_and_sampled_anew() -> None:
    rollouts, engines, state = make(1)
    draw = drawing(state, 4, 4)
    engines.late = {"1"}
    first, _ = step(rollouts, engines, draw)
    second, _ = step(rollouts, engines, draw)
    assert first == ["0", "2", "3", "4"] and second == ["5", "6", "7", "8"]
    engines.late, engines.store.held = set(), []  # its rows arrive, of version 0, where the policy is at 2
    third, metrics = step(rollouts, engines, draw)
    assert third == ["1", "9", "10", "11"]
    assert metrics["async/rows_dropped"] == ROWS
    assert [name for _, name in engines.calls].count("1") == 2
    fourth, metrics = step(rollouts, engines, draw)
    assert fourth == ["12", "13", "14", "15"] and metrics["async/rows_in_flight"] == 0
    assert metrics["async/rows_started"] == metrics["async/rows_trained"] + ROWS


def test_old_rows_are_trained_on_where_that_is_chosen() -> None:
    rollouts, engines, state = make(1, drop_stale=False)
    draw = drawing(state, 4, 4)
    engines.late = {"1"}
    step(rollouts, engines, draw)
    step(rollouts, engines, draw)
    engines.store.held = []
    third, metrics = step(rollouts, engines, draw)
    assert third[0] == "1" and metrics["training/staleness"] == 2 and metrics["async/rows_dropped"] == 0


def test_prompts_go_to_the_engine_with_least_to_do() -> None:
    rollouts, engines, state = make(1)
    draw = drawing(state, 3, 4)
    engines.late = {"0", "2", "4", "6"}  # all of engine 0
    step(rollouts, engines, draw)
    assert [rank for rank, _ in engines.calls] == [0, 1] * 4
    step(rollouts, engines, draw)
    ranks = [rank for rank, name in engines.calls if int(name) >= 8]
    assert ranks.count(1) > ranks.count(0)


def test_a_resumed_run_loses_and_repeats_no_prompt(tmp_path: Path) -> None:
    rollouts, engines, state = make(2)
    draw = drawing(state, 5, 4)
    engines.late = {"1", "6"}
    seen = step(rollouts, engines, draw)[0]
    versions = rollouts.versions_in_flight
    assert versions.count(-1) == 2 and len(versions) == 8
    rollouts.save(tmp_path / "in_flight")
    again, engines, resumed = make(2)
    resumed.drawn, resumed.version, engines.version = state.drawn, state.version, state.version
    again.load(tmp_path / "in_flight", versions)
    draw = drawing(resumed, 5, 4)
    for _ in range(4):
        names, metrics = step(again, engines, draw)
        seen += names
    assert sorted(seen, key=int) == [str(i) for i in range(20)]
    assert metrics["async/rows_trained"] == metrics["async/rows_started"] == 20 * ROWS
    assert [name for _, name in engines.calls[:2]] == ["1", "6"]  # those under way are begun again, alone
