from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import pytest
import ray
import torch
from lab_workers import Lab, Quiet

from rl_controller import (
    FusedWorker,
    PlacementTimeoutError,
    PoolError,
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
    UnknownRoleError,
    WorkerDiedError,
    merge_resource_pool,
)
from rl_protocol import DataProto


def lab(pool: RayResourcePool, **options: Any) -> RayWorkerGroup:
    return RayWorkerGroup(pool, RayClassWithInitArgs(Lab, base=0), **options)


def rows(count: int) -> DataProto:
    return DataProto.from_dict({"x": torch.arange(float(count))})


def test_each_placement_group_is_one_node_and_ranks_follow_the_pool(nodes: Any, pool: Any) -> None:
    assert pool.slots()  # two CPUs of the first node are taken: seven of its others fit nowhere else
    pool = RayResourcePool([2, 4, 7], use_gpu=False, timeout_s=60)
    group = lab(pool)
    by_rank = group.nodes
    assert len(set(by_rank[:2])) == len(set(by_rank[2:6])) == len(set(by_rank[6:])) == 1
    assert len(set(by_rank)) == 3
    cpus = {node["NodeID"]: node["Resources"].get("CPU") for node in ray.nodes() if node["Alive"]}
    assert [cpus[by_rank[rank]] for rank in (0, 2, 6)] == [2, 4, 10]
    assert [place[2] for place in group.place()] == pool.local_ranks()
    group.shutdown()
    assert not pool.is_reserved


def test_rendezvous_and_batches_across_nodes(nodes: Any) -> None:
    pool = RayResourcePool([2, 4], use_gpu=False, resources_per_slot={"main": 1})
    parts = pool.split([2, 2, 2])
    far = lab(RayResourcePool([2], use_gpu=False, resources_per_slot={"x": 1}))
    near = lab(parts[0])
    assert near.all_reduce() == [3.0, 3.0] == far.all_reduce()
    assert set(near.nodes).isdisjoint(far.nodes)
    future = near.tag_later(rows(5), "y").union(rows(5))
    assert far.identity(future).batch["y"].tolist() == [1, 2, 3, 4, 5]
    near.shutdown(), far.shutdown(), pool.release()


def test_sub_pools_and_merged_pools_count_ranks_anew(nodes: Any) -> None:
    pool = RayResourcePool([4, 2], use_gpu=False, max_colocate_count=4)
    first, second = pool.split([3, 3])
    group = lab(second)
    assert group.place() == [(0, 3, 0, 1), (1, 3, 0, 2), (2, 3, 1, 2)]
    assert len(set(group.nodes[1:])) == 1
    merged = merge_resource_pool(second, first)
    both = lab(merged)
    assert both.world_size == 6 and both.nodes[:3] == group.nodes
    assert [place[3] for place in both.place()] == merged.local_world_sizes() == [1, 2, 2, 3, 3, 3]
    both.shutdown(), group.shutdown()
    assert pool.is_reserved
    pool.release()


def test_spread_puts_one_slot_on_each_node(nodes: Any) -> None:
    pool = RayResourcePool([3], use_gpu=False, strategy="STRICT_SPREAD", timeout_s=20)
    group = RayWorkerGroup(pool, RayClassWithInitArgs(Quiet))
    assert len(set(group.nodes)) == 3
    group.shutdown()
    with pytest.raises(PlacementTimeoutError, match=r"\[4\] slots .*STRICT_SPREAD"):
        RayResourcePool([4], use_gpu=False, strategy="STRICT_SPREAD", timeout_s=1).get_placement_groups()


def test_a_custom_resource_is_applied(nodes: Any) -> None:
    init = RayClassWithInitArgs(Quiet)
    init.set_additional_resource({"x": 1})
    pool = RayResourcePool([2], use_gpu=False, resources_per_slot={"x": 2}, max_colocate_count=2)
    group = RayWorkerGroup(pool, init)
    x_nodes = {node["NodeID"] for node in ray.nodes() if "x" in node["Resources"]}
    assert set(group.nodes) <= x_nodes
    bundles = pool.get_placement_groups()[0].bundle_specs
    assert [bundle["x"] for bundle in bundles] == [2, 2]
    crowd = RayClassWithInitArgs(Quiet)
    crowd.set_additional_resource({"x": 2})
    with pytest.raises(PlacementTimeoutError):
        RayWorkerGroup(pool, crowd, start_timeout_s=3)
    with pytest.raises(PoolError, match=r"ask for \{'x': 3\}.*'x': 2"):
        crowd.set_additional_resource({"x": 3})
        RayWorkerGroup(pool, crowd)
    group.shutdown()


def test_a_pool_makes_room_for_what_its_first_group_asks_for(nodes: Any) -> None:
    init = RayClassWithInitArgs(Quiet)
    init.set_additional_resource({"x": 1})
    pool = RayResourcePool([1], use_gpu=False)
    group = RayWorkerGroup(pool, init)
    assert pool.get_placement_groups()[0].bundle_specs[0]["x"] == 1
    assert group.nodes[0] in {node["NodeID"] for node in ray.nodes() if "x" in node["Resources"]}
    group.shutdown()


DRIVER = """
import sys, ray, torch
from rl_controller import RayWorkerGroup, UnknownRoleError
from rl_protocol import DataProto
ray.init(address=sys.argv[1], namespace=sys.argv[3], log_to_driver=False)
try:
    group = RayWorkerGroup.from_detached(sys.argv[2])
except UnknownRoleError as error:
    print("NONE", error)
else:
    out = group.lab_identity(DataProto.from_dict({"x": torch.arange(3.0)}))
    quiet = group.spawn(["quiet"])["quiet"]
    print("FOUND", group.world_size, out.batch["x"].tolist(), quiet.rest(), sum(group.alive()))
"""


def other_driver(nodes: Any, name: str, namespace: str) -> str:
    command = [sys.executable, "-c", DRIVER, nodes.address, name, namespace]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout


def test_a_detached_group_is_found_by_another_driver_in_its_namespace(nodes: Any) -> None:
    pool = RayResourcePool([2], use_gpu=False, detached=True)
    init = FusedWorker({"lab": RayClassWithInitArgs(Lab), "quiet": RayClassWithInitArgs(Quiet)})
    group = RayWorkerGroup(pool, init, name_prefix="lasting", detached=True)
    assert "FOUND 2 [0.0, 1.0, 2.0] ['rest', 'rest'] 2" in other_driver(nodes, "lasting", "rl-tests")
    assert "NONE no actor lasting-0" in other_driver(nodes, "lasting", "elsewhere")
    with pytest.raises(UnknownRoleError, match="no actor nobody-0"):
        RayWorkerGroup.from_detached("nobody")
    again = RayWorkerGroup.from_detached("lasting")
    assert again.lab_place() == [(0, 2, 0, 2), (1, 2, 1, 2)] and again.nodes == group.nodes
    group.shutdown()


JOB = """
import sys, ray
from lab_workers import Lab
from rl_controller import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
ray.init(address=sys.argv[1], log_to_driver=False)
group = RayWorkerGroup(RayResourcePool([2], use_gpu=False), RayClassWithInitArgs(Lab), name_prefix="job")
print("SUM", group.all_reduce(), group.environment("MASTER_PORT")[0])
"""


def test_two_jobs_with_the_same_names_do_not_disturb_each_other(nodes: Any) -> None:
    mine = lab(RayResourcePool([2], use_gpu=False), name_prefix="job")
    jobs = [
        subprocess.Popen([sys.executable, "-c", JOB, nodes.address], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert mine.all_reduce() == [3.0, 3.0]
    outputs = [job.communicate()[0] for job in jobs]
    assert all("SUM [3.0, 3.0]" in output for output in outputs) and outputs[0] != outputs[1]
    assert mine.all_reduce() == [3.0, 3.0]
    mine.shutdown()


def test_a_node_that_dies_is_named_and_its_group_rebuilt_elsewhere(nodes: Any) -> None:
    doomed = nodes.add_node(num_cpus=1, resources={"y": 1}, object_store_memory=100 << 20)
    pool_on_doomed = RayResourcePool([1], use_gpu=False, resources_per_slot={"y": 1}, timeout_s=30)
    group = lab(pool_on_doomed, grace_s=1.0)
    lost = group.nodes[0]
    future = group.tag_later(rows(300_000), "y")
    future.wait()
    nodes.remove_node(doomed, allow_graceful=False)
    deadline = time.monotonic() + 60
    with pytest.raises(WorkerDiedError, match=rf"rank 0 \(node {lost[:12]}\) died"):
        while time.monotonic() < deadline:  # its processes take a moment to notice
            group.place()
            time.sleep(0.1)
    while any(group.alive()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(group.alive())
    nodes.add_node(num_cpus=1, resources={"y": 1}, object_store_memory=100 << 20)
    again = group.rebuild()
    assert again.place() == [(0, 1, 0, 1)] and again.nodes[0] != lost
    again.shutdown(), pool_on_doomed.release()
    del future


def test_names_are_unique_by_default(pool: Any) -> None:
    first, second = (RayWorkerGroup(pool, RayClassWithInitArgs(Quiet)) for _ in range(2))
    assert first.name != second.name
    first.shutdown(), second.shutdown()
