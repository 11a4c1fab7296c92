"""Run the tests: each package in a process of its own that sees only what the package declares, then tests/.

usage: python tools/run_tests.py [pytest options] [paths below packages/ or tests/]
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from workspace import ROOT, TEST_REQUIREMENTS, undeclared

SILENCE_S = 3600  # without a test that ends: what its own limit could not stop, since it hangs in native code
NO_TESTS_COLLECTED = 5


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


def run_watched(command: list[str], environment: dict[str, str], pulse: Path) -> int:
    """Exit status of a command that touches `pulse` as it goes on; what it left running ends with it."""
    pulse.touch()
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment | {"RL_TEST_PULSE": str(pulse)}, start_new_session=True
    )
    try:
        while time.time() - pulse.stat().st_mtime < SILENCE_S:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(5)
        print(f"no test ended within {SILENCE_S} s, killed: {' '.join(command)}", flush=True)
        return -1
    except KeyboardInterrupt:  # reaches this process only, since the other has a session of its own
        process.send_signal(signal.SIGINT)
        process.wait(30)
        raise
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run_group(name: str, pytest_args: list[str]) -> Outcome:
    """Run one group in a pytest of its own."""
    environment = isolated_environment(name) if name in TEST_REQUIREMENTS else dict(os.environ)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", f"--junitxml={report}", *pytest_args]
        code = run_watched(command, environment, Path(folder) / "pulse")
        outcome = Outcome(name, code in (0, NO_TESTS_COLLECTED), time.monotonic() - begin)
        for suite in ET.parse(report).iter("testsuite") if report.exists() else ():
            outcome.skipped += int(suite.get("skipped", 0))
            outcome.failed += int(suite.get("failures", 0)) + int(suite.get("errors", 0))
            outcome.passed += int(suite.get("tests", 0)) - outcome.skipped - outcome.failed
    return outcome


def run_tests(args: list[str]) -> list[Outcome]:
    """Run every group, going on after one that fails, and print a summary."""
    outcomes = []
    for name, pytest_args in groups(args):
        print(f"\n--- tests of {name}", flush=True)
        outcomes.append(run_group(name, pytest_args))
    print("\n--- summary", *outcomes, sep="\n")
    passed, failed, skipped = (
        sum(getattr(o, key) for o in outcomes) for key in ("passed", "failed", "skipped")
    )
    print(f"{passed} passed, {failed} failed, {skipped} skipped", flush=True)
    return outcomes


if __name__ == "__main__":
    results = run_tests(sys.argv[1:])
    sys.exit(not all(r.ok for r in results) or not any(r.passed for r in results))
