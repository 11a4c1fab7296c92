from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from lab_workers import Talker

from rl_controller import FusedWorker, LocalWorkerGroup, RayClassWithInitArgs, RayWorkerGroup
from rl_protocol import DataProto


@pytest.fixture(scope="module")
def talkers(pool: Any) -> Iterator[RayWorkerGroup]:
    group = RayWorkerGroup(pool, FusedWorker({"talk": RayClassWithInitArgs(Talker)}))
    yield group.spawn({"talk"})["talk"]
    group.shutdown()


def test_a_call_can_wake_another_on_the_same_worker(talkers: RayWorkerGroup) -> None:
    waiting = talkers.wait()
    assert talkers.wake() == ["done", "done"]
    assert waiting.get() == ["woken", "woken"]


def test_sync_and_async_methods_mix(talkers: RayWorkerGroup) -> None:
    assert talkers.double(2) == [4, 4] and talkers.triple(2) == [6, 6]
    batch = DataProto.from_dict({"x": torch.arange(3)})
    assert talkers.identity(batch).batch["x"].tolist() == [0, 1, 2]


def test_async_methods_work_in_process() -> None:
    group = LocalWorkerGroup(RayClassWithInitArgs(Talker))
    assert group.double(2) == [4]
    assert group.identity(DataProto.from_dict({"x": torch.arange(3)})).batch["x"].tolist() == [0, 1, 2]


def test_async_methods_work_inside_a_running_loop() -> None:
    import asyncio

    async def main() -> list[int]:
        group = LocalWorkerGroup(RayClassWithInitArgs(Talker))
        result: list[int] = group.double(4)
        return result

    assert asyncio.run(main()) == [8]
