from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ranks import finish_ranks, free_port, start_ranks

from rl_rollout import engine_env

pytest.importorskip("vllm")

ON_POLICY = 1e-5


def check(reports: list[Any], size: int, place: int = 0) -> None:
    """Both ranks on policy throughout; the same tokens exactly where they share an engine group."""
    for report in reports:
        assert max(report[place]["differences"]) < ON_POLICY
        assert report[place]["tokens"][0] != report[place]["tokens"][-1]
    assert (reports[0][place]["tokens"] == reports[1][place]["tokens"]) == (size == 2)


def shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}


def test_a_killed_job_leaves_nothing_in_the_next_ones_way(models: dict[str, str], tmp_path: Path) -> None:
    port, before = free_port(), shared_memory()
    killed = start_ranks("on_policy", tmp_path, port=port, path=models["tied"], sizes=[2], steps=3, die=True)
    outputs = [process.communicate() for process in killed]
    assert [process.returncode for process in killed] == [-9, -9], outputs
    check([json.loads(output.strip().splitlines()[-1]) for output, _ in outputs], size=2)
    assert not [name for name in shared_memory() - before if "rlrollout" in name]
    # the same port, hence the same name wherever a name is made of it; then an engine per rank
    processes = start_ranks("on_policy", tmp_path, port=port, path=models["untied"], sizes=[2, 1], steps=2)
    reports = finish_ranks(processes)
    check(reports, size=2)
    check(reports, size=1, place=1)


def test_two_ray_actors_stay_on_policy(models: dict[str, str]) -> None:
    ray = pytest.importorskip("ray")
    started = not ray.is_initialized()
    if started:
        ray.init(
            "local", num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20
        )
    tests = str(Path(__file__).parent)
    environment = {"env_vars": engine_env("cpu", offline=True) | {"PYTHONPATH": tests}}

    class Rank:
        def run(self, rank: int, port: int, path: str) -> Any:
            import os

            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            import rank_jobs
            import torch.distributed as dist

            dist.init_process_group("gloo")
            return rank_jobs.on_policy(Path(), path, sizes=[2], steps=3)

    actors = [ray.remote(num_cpus=1, runtime_env=environment)(Rank).remote() for _ in range(2)]
    try:
        port = free_port()
        calls = [actor.run.remote(rank, port, models["tied"]) for rank, actor in enumerate(actors)]
        check(ray.get(calls), size=2)
    finally:
        for actor in actors:
            ray.kill(actor)
        if started:
            ray.shutdown()
