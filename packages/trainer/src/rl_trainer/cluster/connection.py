"""The Ray cluster of a run: the one that is named, else one of our own on this machine."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray

from ..config.running import TrainerConfig
from ..errors import TrainingError


@contextmanager
def connected(config: TrainerConfig) -> Iterator[None]:
    """Join or start a cluster for the time of a run; one that this process has joined already is kept.

    Raises:
        TrainingError: there is no cluster at the address, or none could be started here.
    """
    if ray.is_initialized():
        yield
        return
    address = config.ray_address
    options: dict[str, Any] = {"address": address} if address else _own_cluster(config)
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR, configure_logging=False, **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        where = f"at {address!r} (trainer.ray_address or RAY_ADDRESS)" if address else "on this machine"
        raise TrainingError(f"no Ray cluster {where}: {error}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _own_cluster(config: TrainerConfig) -> dict[str, Any]:
    workers = (config.n_workers_per_node + config.n_rollout_workers_per_node) * config.nnodes
    return {
        "address": "local",
        "num_cpus": max(workers, os.cpu_count() or 1),
        "include_dashboard": False,
        "object_store_memory": 1 << 30,
    }
