"""A run that is killed at any point goes on as if it had never been."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from rl_trainer.tiny import tiny_overrides

TIMINGS = ("timing_s/", "perf/")
STEPS = 8


def command(folder: Path) -> list[str]:
    return [
        sys.executable,
        "-m",
        "rl_trainer.main_ppo",
        "tiny_grpo",
        *tiny_overrides(folder),
        "actor_rollout_ref.rollout.name=hf",
        "trainer.n_workers_per_node=2",
        f"trainer.total_training_steps={STEPS}",
        "trainer.save_freq=2",
    ]


def metrics(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    return [{key: x for key, x in line.items() if not key.startswith(TIMINGS)} for line in lines]


def last_step(folder: Path) -> int:
    file = folder / "run" / "metrics.jsonl"
    return file.read_text().count("\n") - 1 if file.exists() else 0


def wait_for_step(process: subprocess.Popen[bytes], folder: Path, step: int) -> None:
    while last_step(folder) < step:
        assert process.poll() is None, "the run did not train"
        time.sleep(0.05)


def kill_tree(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to the program and everything that it started."""
    tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for member in tree:
        member.send_signal(signal.SIGKILL)
    process.wait(timeout=30)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_killed_run_resumes_with_the_metrics_of_one_that_was_not(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    environment = os.environ | {"RAY_AUTH_MODE": "disabled"}
    subprocess.run(command(whole), check=True, env=environment)
    process = subprocess.Popen(command(killed), env=environment)
    wait_for_step(process, killed, 5)
    kill_tree(process)
    subprocess.run(command(killed), check=True, env=environment)
    resumed, unbroken = metrics(killed), metrics(whole)
    assert [line["step"] for line in resumed] == list(range(STEPS + 1))
    assert resumed == unbroken


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_control_c_leaves_no_process_behind(tmp_path: Path) -> None:
    long_run = [*command(tmp_path), "trainer.total_training_steps=100000"]
    environment = os.environ | {"RAY_AUTH_MODE": "disabled"}
    process = subprocess.Popen(
        long_run,
        env=environment,
        stderr=subprocess.PIPE,
        start_new_session=True,
        # As at a terminal, also where the tests run in the background of a shell, which ignores SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        wait_for_step(process, tmp_path, 2)
        children = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGINT)
        _, error = process.communicate()
    finally:
        if process.poll() is None:
            kill_tree(process)
    assert process.returncode == 130
    assert b"Traceback" not in error and b"interrupted" in error
    _, left = psutil.wait_procs(children, timeout=20)
    assert [member.name() for member in left] == []
