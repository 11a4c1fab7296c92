from __future__ import annotations

from typing import Any

import pytest
from lab_workers import Broken, Chatty, Lab, NotAWorker, PlainEnv

from rl_controller import (
    LocalWorkerGroup,
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
    ResourcePool,
    WorkerMethodError,
)


@pytest.mark.parametrize(("counts", "sizes"), [([2, 4], [2, 2, 4, 4, 4, 4]), ([4, 2], [4, 4, 4, 4, 2, 2])])
def test_ranks_of_uneven_nodes(cluster: None, counts: list[int], sizes: list[int]) -> None:
    pool = RayResourcePool(counts, use_gpu=False)
    group = RayWorkerGroup(pool, RayClassWithInitArgs(Lab))
    assert group.world_size == pool.world_size == 6
    assert group.place() == [(r, 6, local, sizes[r]) for r, local in enumerate(pool.local_ranks())]
    assert pool.local_world_sizes() == sizes
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    for rank, env in enumerate(group.environment(*names)):
        assert [int(env[name]) for name in names] == [rank, 6, pool.local_ranks()[rank], sizes[rank]]
    group.shutdown()
    assert not pool.is_reserved


def test_a_process_group_needs_no_setup(pair: RayWorkerGroup) -> None:
    assert pair.all_reduce() == [3.0, 3.0] == pair.all_reduce()
    first, second = pair.environment("MASTER_ADDR", "MASTER_PORT")
    assert first == second and int(first["MASTER_PORT"]) > 0


def test_torchs_own_rendezvous_works(pool: Any) -> None:
    group = RayWorkerGroup(pool, RayClassWithInitArgs(PlainEnv))
    assert group.world() == [(0, 2), (1, 2)]
    group.shutdown()


def test_a_taken_port_is_passed_over(pool: Any) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        group = RayWorkerGroup(pool, RayClassWithInitArgs(Lab), master_ports=(port, 0))
        assert int(group.environment("MASTER_PORT")[0]["MASTER_PORT"]) not in (0, port)
        assert group.all_reduce() == [3.0, 3.0]
        group.shutdown()
        with pytest.raises(WorkerMethodError, match=rf"none of the ports \[{port}\]"):
            RayWorkerGroup(pool, RayClassWithInitArgs(Lab), master_ports=(port,))


def test_a_local_worker_is_a_world_of_one() -> None:
    group = LocalWorkerGroup(RayClassWithInitArgs(Lab))
    assert group.place() == [(0, 1, 0, 1)] and group.all_reduce() == [1.0]
    assert group.environment("RANK", "WORLD_SIZE") == [{"RANK": "0", "WORLD_SIZE": "1"}]
    import os

    assert "LOCAL_WORLD_SIZE" not in os.environ
    import torch.distributed as dist

    dist.destroy_process_group()
    assert LocalWorkerGroup(RayClassWithInitArgs(PlainEnv)).world() == [(0, 1)]
    dist.destroy_process_group()


def test_each_worker_may_have_its_own_environment(pool: Any) -> None:
    group = RayWorkerGroup(
        pool, RayClassWithInitArgs(Lab), worker_env=lambda rank: {"LAB_COLOR": ["red", "blue"][rank]}
    )
    assert [env["LAB_COLOR"] for env in group.environment("LAB_COLOR")] == ["red", "blue"]
    assert group.environment("OMP_NUM_THREADS")[0] == {"OMP_NUM_THREADS": "1"}
    group.shutdown()


def test_a_plain_class_may_be_a_worker(pool: Any) -> None:
    group = RayWorkerGroup(pool, RayClassWithInitArgs(NotAWorker, start=5))
    assert group.execute_all_sync("bump", 2) == [7, 7] and group.execute_all_sync("bump", 2) == [9, 9]
    group.shutdown()


def test_a_class_that_ray_decorated_keeps_its_options(pool: Any) -> None:
    import ray

    decorated = ray.remote(max_concurrency=3)(Lab)
    init = RayClassWithInitArgs(cls=decorated, base=1)
    assert init.options["max_concurrency"] == 3 and init.worker_class is Lab
    group = RayWorkerGroup(pool, init)
    assert group.execute_all_sync("add", 0) == [1, 2]
    group.shutdown()


def test_a_constructor_that_raises_is_named(pool: Any) -> None:
    with pytest.raises(WorkerMethodError, match=r"'__init__'.*rank 1.*cannot be built"):
        RayWorkerGroup(pool, RayClassWithInitArgs(Broken, rank=1))


def test_output_goes_to_a_file_per_worker(pool: Any, tmp_path: Any) -> None:
    group = RayWorkerGroup(pool, RayClassWithInitArgs(Chatty), name_prefix="chat", log_dir=str(tmp_path))
    group.say("hello")
    assert [(tmp_path / f"chat-{rank}.log").read_text() for rank in (0, 1)] == ["hello 0\n", "hello 1\n"]
    group.shutdown()


def test_a_pool_is_arithmetic_until_it_is_used() -> None:
    pool = ResourcePool([2, 1])
    assert (pool.world_size, pool.local_ranks(), pool.local_world_sizes()) == (3, [0, 1, 0], [2, 2, 1])
