"""Settings of every test process, made before anything imports torch, Ray or the engine."""

from __future__ import annotations

import os

import pytest

for name, value in {
    # OpenMP threads that spin while they wait starve a test's other processes on a small machine: the same
    # forward pass took 0.5 s with sleeping threads and 11 s with spinning ones.
    "OMP_WAIT_POLICY": "PASSIVE",
    "OMP_NUM_THREADS": "1",
    # By default Ray writes a token file into the home folder; test clusters listen on loopback only.
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Tests make or carry their models: an attempt to fetch one is an error at once, not a time-out.
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}.items():
    os.environ.setdefault(name, value)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests marked `gpu` where there is no CUDA device."""
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu_items:
        return
    import torch

    if not torch.cuda.is_available():
        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
