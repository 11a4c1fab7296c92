"""Start the ranks of a job as plain processes and collect what each reports."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

JOBS = Path(__file__).with_name("rank_jobs.py")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_ranks(job: str, folder: Path, ranks: int = 2, port: int = 0, **settings: Any) -> list[Any]:
    """Processes running `rank_jobs.<job>(folder, **settings)` on each rank."""
    port = port or free_port()
    common = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [
        subprocess.Popen(
            [sys.executable, str(JOBS), job, str(folder), json.dumps(settings)],
            env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]


def finish_ranks(processes: list[Any]) -> list[Any]:
    """The report of each rank; a rank that failed fails the test with its output."""
    reports = []
    try:
        for process in processes:
            output, errors = process.communicate()
            assert process.returncode == 0, errors[-4000:]
            reports.append(json.loads(output.strip().splitlines()[-1]))
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
    return reports


def run_ranks(job: str, folder: Path, ranks: int = 2, **settings: Any) -> list[Any]:
    """Start and finish in one."""
    return finish_ranks(start_ranks(job, folder, ranks, **settings))
