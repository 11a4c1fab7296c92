"""Runs a package's `measure.py` on both sides in turns and compares: ratios of one run, never absolute times.

    python benchmarks/compare.py controller|protocol [--reference-python /path/to/reference/bin/python]

Ends with status 1 if a bar of the package's `bars.py` is missed. Without a reference, only the bars that need
none are checked.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def measure(program: Path, python: str, side: str) -> dict[str, float]:
    """One side in a process of its own."""
    command = [python, str(program), side]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=900)
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def best(runs: list[dict[str, float]]) -> dict[str, float]:
    """The smallest of each figure: other work on the machine only ever adds."""
    return {key: min(run[key] for run in runs) for key in runs[0]}


def main() -> int:
    """Measure, compare, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("package", choices=["controller", "protocol"])
    parser.add_argument("--reference-python")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    program = HERE / options.package / "measure.py"
    ours, theirs = [], []
    for _ in range(options.rounds):
        ours.append(measure(program, sys.executable, "ours"))
        if options.reference_python:
            theirs.append(measure(program, options.reference_python, "reference"))
    mine, reference = best(ours), best(theirs) if theirs else None
    missed = 0
    for name, (figure, rule, bar) in (
        importlib.import_module(f"{options.package}.bars").bars(mine, reference).items()
    ):
        good = figure >= bar if rule == "at least" else figure <= bar
        missed += not good
        sys.stdout.write(f"{'ok    ' if good else 'MISSED'} {name}: {figure:.3g} ({rule} {bar:g})\n")
    if options.output:
        options.output.write_text(json.dumps({"ours": mine, "reference": reference}, indent=1) + "\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
