"""Settings of every test process, made before anything imports torch, Ray or the engine."""

from __future__ import annotations

import os
import time
from pathlib import Path

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


CALIBRATION_S = 0.25  # what `slowness` takes on the idle two-core machine that the limits were written on


def slowness() -> float:
    """How many times slower than where the limits were written it is here and now; at least 1."""
    begin = time.monotonic()
    for _ in range(10_000_000):
        pass
    return max((time.monotonic() - begin) / CALIBRATION_S, 1.0)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Stretch the limits, which guard against hangs and not slowness; skip `gpu` without CUDA."""
    factor = slowness()
    for item in items:
        mark = item.get_closest_marker("timeout")
        limit = float(mark.args[0] if mark else config.getini("timeout"))
        item.add_marker(pytest.mark.timeout(limit * factor), append=False)
    skip_without_cuda([item for item in items if item.get_closest_marker("gpu")])


def skip_without_cuda(items: list[pytest.Item]) -> None:
    """Skip these where there is no CUDA device; torch is imported only if there are any."""
    if not items:
        return
    import torch

    if not torch.cuda.is_available():
        for item in items:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def pytest_runtest_logfinish() -> None:
    """Tell `tools/run_tests.py` that the tests go on: it ends a group of which it hears nothing."""
    if pulse := os.environ.get("RL_TEST_PULSE"):
        Path(pulse).touch()
