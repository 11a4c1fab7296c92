"""One Ray cluster of three nodes and a few groups for the whole suite."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = str(Path(__file__).parent)
sys.path.insert(0, HERE)
# worker processes inherit the environment of the node that starts them
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [HERE, os.environ.get("PYTHONPATH")]))
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

MB = 1 << 20
SHARED = "shared_by_the_session"


@pytest.fixture(scope="module", autouse=True)
def pools_end_with_their_module() -> Iterator[None]:
    """Give back what the tests of a file reserved and did not release: other files need the CPUs."""
    yield
    import ray
    from ray.util.placement_group import get_placement_group, placement_group_table, remove_placement_group

    if not ray.is_initialized():
        return
    for entry in placement_group_table().values():
        if entry["state"] in ("CREATED", "PENDING") and not entry["name"].startswith(SHARED):
            remove_placement_group(get_placement_group(entry["name"]))


@pytest.fixture(scope="session")
def nodes() -> Iterator[Any]:
    """Three raylets here that believe to have 10, 4 and 2 CPUs, and resources `main` and `x`."""
    import ray
    from ray._common.utils import reset_ray_address
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 10,
            "resources": {"main": 100},
            "object_store_memory": 300 * MB,
            "include_dashboard": False,
        },
    )
    cluster.add_node(num_cpus=4, resources={"x": 4}, object_store_memory=100 * MB)
    cluster.add_node(num_cpus=2, object_store_memory=100 * MB)
    reset_ray_address()  # or every ray.init() on this machine would join this cluster
    ray.init(address=cluster.address, log_to_driver=False, namespace="rl-tests")
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture(scope="session")
def cluster(nodes: Any) -> None:
    """The cluster, for tests that do not care how many nodes it has."""


@pytest.fixture(scope="session")
def pool(cluster: None) -> Iterator[Any]:
    """Two slots of the first node that many groups share."""
    from rl_controller import RayResourcePool

    pool = RayResourcePool(
        [2], use_gpu=False, name_prefix=SHARED, resources_per_slot={"main": 1}, max_colocate_count=20
    )
    yield pool
    pool.release()


@pytest.fixture(scope="session")
def pair(pool: Any) -> Iterator[Any]:
    """Two `Lab` workers."""
    from lab_workers import Lab

    from rl_controller import RayClassWithInitArgs, RayWorkerGroup

    group = RayWorkerGroup(pool, RayClassWithInitArgs(Lab, base=100), name_prefix="pair")
    yield group
    group.shutdown()


@pytest.fixture(scope="session", params=["local", "ray"])
def group(request: pytest.FixtureRequest) -> Any:
    """The same worker class in this process and on Ray: one suite runs over both."""
    from lab_workers import Lab

    from rl_controller import LocalWorkerGroup, RayClassWithInitArgs

    if request.param == "local":
        return LocalWorkerGroup(RayClassWithInitArgs(Lab, base=100), name_prefix="local")
    return request.getfixturevalue("pair")
