"""Runs `measure.py` on both sides in turns and compares: ratios of one run, never absolute times.

    python compare.py --reference-python /path/to/reference/bin/python [--output results.json]

Ends with status 1 if a bar is missed. Without a reference, only the bars that need none are checked.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def measure(python: str, side: str) -> dict[str, float]:
    """One side in a process of its own."""
    done = subprocess.run(
        [python, str(HERE / "measure.py"), side], capture_output=True, text=True, check=True, timeout=900
    )
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def merged(runs: list[dict[str, float]]) -> dict[str, float]:
    """The best of each figure."""
    return {key: min(run[key] for run in runs) for key in runs[0]}


def bars(ours: dict[str, float], reference: dict[str, float] | None) -> dict[str, tuple[float, str, float]]:
    """Name -> (figure, "at least" or "at most", bar)."""
    found = {
        "concat against bare torch.cat": (ours["concat"] / ours["bare_cat"], "at most", 1.3),
        "chunk, select, slice, union of 256 MB, ms": (
            1e3 * max(ours[key] for key in ("chunk", "select", "slice", "union")),
            "at most",
            5.0,
        ),
        "reader's memory per byte of batch": (ours["growth"], "at most", 0.1),
        "import after torch and tensordict, ms": (1e3 * ours["import"], "at most", 300.0),
    }
    if reference is not None:
        theirs, mine = reference["put"] + reference["get"], ours["put"] + ours["get"]
        found["put and get of 512 MB, reference / ours"] = (theirs / mine, "at least", 8.0)
    return found


def main() -> int:
    """Measure, compare, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--reference-python")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    ours, theirs = [], []
    for _ in range(options.rounds):
        ours.append(measure(sys.executable, "ours"))
        if options.reference_python:
            theirs.append(measure(options.reference_python, "reference"))
    mine, reference = merged(ours), merged(theirs) if theirs else None
    missed = 0
    for name, (figure, rule, bar) in bars(mine, reference).items():
        good = figure >= bar if rule == "at least" else figure <= bar
        missed += not good
        sys.stdout.write(f"{'ok    ' if good else 'MISSED'} {name}: {figure:.3g} ({rule} {bar:g})\n")
    if options.output:
        options.output.write_text(json.dumps({"ours": mine, "reference": reference}, indent=1) + "\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
