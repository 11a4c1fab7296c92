"""Everything that must pass before a commit lands: linter, formatter, types, import rules, then all tests.

usage: python tools/check.py [pytest options]
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from run_tests import run_tests
from workspace import ROOT

PYTHON = [sys.executable, "-m"]
STATIC = {
    "ruff check": [*PYTHON, "ruff", "check", "."],
    "ruff format": [*PYTHON, "ruff", "format", "--check", "."],
    "mypy --strict, packages": [*PYTHON, "mypy"],
    "mypy --strict, tools": [
        *PYTHON,
        "mypy",
        "dev.py",
        "conftest.py",
        *map(str, Path("tools").rglob("*.py")),
    ],
    "import rules": [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"],
    "size": [sys.executable, "tools/size.py"],
}


def run_static() -> list[str]:
    """Run the checks that start nothing; show the output of those that fail, and the table of sizes."""
    failed = []
    for name, command in STATIC.items():
        begin = time.monotonic()
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        print(
            f"{'FAILED' if done.returncode else 'ok    '} {name:26s}{time.monotonic() - begin:6.1f} s",
            flush=True,
        )
        if done.returncode:
            failed.append(name)
        if done.returncode or name == "size":
            print(done.stdout, flush=True)
    return failed


def main() -> int:
    """Run all checks; the tests only once the static ones pass, since those take seconds to repair."""
    begin = time.monotonic()
    failed = run_static()
    if not failed:
        outcomes = run_tests(sys.argv[1:])
        failed = [f"tests of {o.group}" for o in outcomes if not o.ok]
        if not any(o.passed for o in outcomes):
            failed.append("tests (none ran)")
    elapsed = time.monotonic() - begin
    print(
        f"\ncheck FAILED after {elapsed:.0f} s: {', '.join(failed)}"
        if failed
        else f"\nall checks passed in {elapsed:.0f} s"
    )
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
