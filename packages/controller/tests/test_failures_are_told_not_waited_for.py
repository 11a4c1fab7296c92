from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from lab_workers import Lab

from rl_controller import (
    CallTimeoutError,
    DispatchError,
    PlacementTimeoutError,
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
    WorkerDiedError,
    WorkerMethodError,
)
from rl_protocol import DataProto


def lab(pool: Any, **options: Any) -> RayWorkerGroup:
    return RayWorkerGroup(pool, RayClassWithInitArgs(Lab, base=0), **options)


def test_a_raising_rank_does_not_hang_its_peers(pool: Any) -> None:
    group = lab(pool, grace_s=1.0)
    assert group.all_reduce() == [3.0, 3.0]
    begin = time.monotonic()
    with pytest.raises(
        WorkerMethodError, match=r"rank 1 .*not joining.*\n*Ranks \[0\] were still running"
    ) as caught:
        group.all_reduce(raise_on=1)
    assert caught.value.ranks == (1,) and time.monotonic() - begin < 20
    group = group.rebuild()
    assert group.all_reduce() == [3.0, 3.0]
    group.shutdown()


def test_a_rank_that_only_takes_longer_is_waited_for(pair: RayWorkerGroup) -> None:
    with pytest.raises(WorkerMethodError) as caught:
        pair.execute_all_sync("slow_or_raise")
    assert caught.value.ranks == (1,) and "still running" not in str(caught.value)
    assert pair.alive() == [True, True] and len(pair.place()) == 2


def test_a_dead_worker_is_named_and_the_group_rebuilt_in_its_pool(pool: Any) -> None:
    group = lab(pool, name_prefix="mortal", grace_s=1.0)
    with pytest.raises(WorkerDiedError) as caught:
        group.die(rank=1)
    error = caught.value
    assert error.group == "mortal" and error.method == "die" and error.ranks == (1,)
    for part in ("rank 1", "node ", group.nodes[1][:12], "'die'", "rebuild"):
        assert part in str(error)
    assert _eventually(lambda: group.alive() == [True, False])
    with pytest.raises(WorkerDiedError, match="'place'"):
        group.place()
    again = group.rebuild()
    assert again.name == "mortal" and again.place() == [(0, 2, 0, 2), (1, 2, 1, 2)]
    assert again.alive() == [True, True]
    again.shutdown()


def test_a_future_of_a_dead_worker_tells_the_same(pool: Any) -> None:
    group = lab(pool, grace_s=1.0)
    slow = group.execute_all_async("nap", 30, 1)
    future = group.identity_later(DataProto.from_dict({"x": torch.zeros(2)}))
    import ray

    ray.kill(group.workers[1])
    with pytest.raises(WorkerDiedError, match=r"'identity_later'.*rank 1"):
        future.get()
    with pytest.raises(WorkerDiedError, match=r"'nap'.*rank 1"):
        slow.get()
    group.shutdown()


def test_a_blocking_call_ends_with_its_time(pool: Any) -> None:
    group = lab(pool, timeout_s=1.5)
    begin = time.monotonic()
    with pytest.raises(CallTimeoutError) as caught:
        group.nap(30, rank=1)
    assert time.monotonic() - begin < 10
    assert caught.value.ranks == (1,) and isinstance(caught.value, TimeoutError)
    assert (
        "'nap'" in str(caught.value) and "rank 1" in str(caught.value) and "rank 0" not in str(caught.value)
    )
    group.shutdown()


def test_more_than_the_cluster_has_is_refused_in_time(cluster: None) -> None:
    begin = time.monotonic()
    with pytest.raises(PlacementTimeoutError, match=r"\[500\] slots.*'CPU': 1.0.*within 1.0 s.*'CPU': 10.0"):
        lab(RayResourcePool([500], use_gpu=False, timeout_s=1.0))
    with pytest.raises(PlacementTimeoutError, match=r"'GPU': 1.0.*free now"):
        RayResourcePool([1], use_gpu=True, timeout_s=0.5).get_placement_groups()
    assert time.monotonic() - begin < 10
    RayResourcePool([1], use_gpu=False).get_placement_groups()


def test_a_full_slot_is_a_time_out_too(pool: Any) -> None:
    crowded = RayResourcePool([1], use_gpu=False, max_colocate_count=1)
    first = lab(crowded)
    with pytest.raises(PlacementTimeoutError, match="max_colocate_count is 1"):
        lab(crowded, start_timeout_s=3.0)
    assert first.place() == [(0, 1, 0, 1)]
    first.shutdown()
    crowded.release()


def test_half_a_result_is_an_error(pair: RayWorkerGroup) -> None:
    with pytest.raises(DispatchError, match=r"some workers .*\['DataProto', 'int'\]"):
        pair.half_a_batch(DataProto.from_dict({"x": torch.zeros(2)}))


def _eventually(condition: Any, seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.1)
    return bool(condition())


def test_a_worker_that_ray_restarted_says_that_its_state_is_lost(pool: Any) -> None:
    init = RayClassWithInitArgs(Lab, base=0)
    init.update_options({"max_restarts": 1})
    group = RayWorkerGroup(pool, init, grace_s=1.0)
    with pytest.raises(WorkerDiedError):
        group.die(rank=1)

    def lost() -> bool:
        try:
            group.place()
        except WorkerDiedError:  # not back yet
            return False
        except WorkerMethodError as error:
            return "its state is lost" in str(error)
        return False

    assert _eventually(lost, 40)
    group.shutdown()
