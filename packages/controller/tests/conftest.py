"""One Ray cluster and a few groups for the whole suite."""

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


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A local cluster that believes to have 12 CPUs."""
    import ray

    if not ray.is_initialized():
        ray.init(num_cpus=12, object_store_memory=300 << 20, include_dashboard=False, log_to_driver=False)
    yield


@pytest.fixture(scope="module")
def pool(cluster: None) -> Iterator[Any]:
    """Two slots that many groups share."""
    from rl_controller import RayResourcePool

    pool = RayResourcePool([2], use_gpu=False, max_colocate_count=20)
    yield pool
    pool.release()


@pytest.fixture(scope="module")
def pair(pool: Any) -> Iterator[Any]:
    """Two `Lab` workers."""
    from lab_workers import Lab

    from rl_controller import RayClassWithInitArgs, RayWorkerGroup

    group = RayWorkerGroup(pool, RayClassWithInitArgs(Lab, base=100), name_prefix="pair")
    yield group
    group.shutdown()


@pytest.fixture(scope="module", params=["local", "ray"])
def group(request: pytest.FixtureRequest) -> Any:
    """The same worker class in this process and on Ray: one suite runs over both."""
    from lab_workers import Lab

    from rl_controller import LocalWorkerGroup, RayClassWithInitArgs

    if request.param == "local":
        return LocalWorkerGroup(RayClassWithInitArgs(Lab, base=100), name_prefix="local")
    return request.getfixturevalue("pair")
