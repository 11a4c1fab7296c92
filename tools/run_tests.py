"""Run the tests: each package in a process of its own that sees only what the package declares, and tests/.

usage: python tools/run_tests.py [pytest options] [paths below packages/ or tests/]

Most of a test's time is one process that imports torch, so two groups run side by side: tests/, as long as
the packages together, beside these. A group's output is printed when it is done.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from workspace import ROOT, TEST_REQUIREMENTS, undeclared

SILENCE_S = 3600  # without a test that ends: what its own limit could not stop, since it hangs in native code
NO_TESTS_COLLECTED = 5
SIDE_BY_SIDE = 2 if (os.cpu_count() or 1) > 1 else 1
STOP = threading.Event()


@dataclass
class Outcome:
    """How the tests of one group ended."""

    group: str
    ok: bool
    seconds: float
    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __str__(self) -> str:
        counts = f"{self.passed:5d} passed {self.failed:3d} failed {self.skipped:3d} skipped"
        return f"{'ok    ' if self.ok else 'FAILED'} {self.group:11s}{counts} {self.seconds:6.0f} s"


def isolated_environment(package: str) -> dict[str, str]:
    """Environment variables under which Python processes see only what the package's tests may import."""
    distributions, modules = undeclared(TEST_REQUIREMENTS[package])
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(
            filter(None, [str(ROOT / "tools/isolation"), os.environ.get("PYTHONPATH")])
        ),
        "RL_HIDDEN_DISTRIBUTIONS": " ".join(sorted(distributions)),
        "RL_HIDDEN_MODULES": " ".join(sorted(modules)),
    }


def groups(args: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Name and pytest arguments of each group of tests; where `args` has paths, of those alone."""
    paths = [a for a in args if a.startswith(("packages", "tests"))]
    options = [a for a in args if a not in paths]
    for name in [*TEST_REQUIREMENTS, "workspace"]:
        folder = f"packages/{name}/" if name in TEST_REQUIREMENTS else ""
        own = [p for p in paths if f"{p}/".startswith(folder or "tests/")]
        if own or not paths:
            yield name, [*options, *(own or [f"{folder}tests"])]


def run_watched(command: list[str], environment: dict[str, str], pulse: Path, output: IO[str] | None) -> int:
    """Exit status of a command that touches `pulse` as it goes on; what it left running ends with it."""
    pulse.touch()
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment | {"RL_TEST_PULSE": str(pulse)},
        start_new_session=True,
        stdout=output,
        stderr=output and subprocess.STDOUT,
    )
    try:
        while time.time() - pulse.stat().st_mtime < SILENCE_S and not STOP.is_set():
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(1)
        if STOP.is_set():  # Ctrl-C reaches this process only, since the other has a session of its own
            process.send_signal(signal.SIGINT)
            return process.wait(30)
        print(f"no test ended within {SILENCE_S} s, killed: {' '.join(command)}", file=output, flush=True)
        return -1
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run_group(name: str, pytest_args: list[str], alone: bool) -> Outcome:
    """Run one group in a pytest of its own; `alone` it writes as it goes, else all at once at its end."""
    environment = isolated_environment(name) if name in TEST_REQUIREMENTS else dict(os.environ)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, Path(folder, "output").open("w+") as output:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", f"--junitxml={report}", *pytest_args]
        code = run_watched(command, environment, Path(folder) / "pulse", None if alone else output)
        outcome = Outcome(name, code in (0, NO_TESTS_COLLECTED), time.monotonic() - begin)
        for suite in ET.parse(report).iter("testsuite") if report.exists() else ():
            outcome.skipped += int(suite.get("skipped", 0))
            outcome.failed += int(suite.get("failures", 0)) + int(suite.get("errors", 0))
            outcome.passed += int(suite.get("tests", 0)) - outcome.skipped - outcome.failed
        output.seek(0)
        print(f"\n--- tests of {name}\n{output.read()}", end="", flush=True)
    return outcome


def run_tests(args: list[str]) -> list[Outcome]:
    """Run every group, going on after one that fails, and print a summary."""
    chosen = sorted(groups(args), key=lambda group: group[0] != "workspace")  # the longest first
    alone = len(chosen) == 1
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        runs = [pool.submit(run_group, *group, alone) for group in chosen]
        try:
            outcomes = [run.result() for run in runs]
        except KeyboardInterrupt:
            STOP.set()
            pool.shutdown(cancel_futures=True)
            raise
    print("\n--- summary", *outcomes, sep="\n")
    passed, failed, skipped = (
        sum(getattr(o, key) for o in outcomes) for key in ("passed", "failed", "skipped")
    )
    print(f"{passed} passed, {failed} failed, {skipped} skipped", flush=True)
    return outcomes


if __name__ == "__main__":
    results = run_tests(sys.argv[1:])
    sys.exit(not all(r.ok for r in results) or not any(r.passed for r in results))
