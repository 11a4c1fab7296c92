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
        "no-op on 2 workers / bare Ray calls": (ours["noop_2"] / ours["bare_2"], "at most", 1.3),
        "no-op on 8 workers / bare Ray calls": (ours["noop_8"] / ours["bare_8"], "at most", 1.3),
        "driver bytes of six calls / batch": (ours["chain_driver_bytes"] / (256 << 20), "at most", 0.02),
        "planning for 1,024 workers, ms": (1e3 * ours["plan_1024"], "at most", 20.0),
        "planning 1,024 / 256 workers": (ours["plan_1024"] / ours["plan_256"], "at most", 5.0),
        "planning a future for 1,024 workers, ms": (1e3 * ours["plan_future_1024"], "at most", 20.0),
    }
    if reference is not None:
        for name, key, bar in [
            ("64 MB there and back, read-only", "echo_64", 6.0),
            ("512 MB there and back, read-only", "echo_512", 6.0),
            ("64 MB there and back, written", "write_64", 4.0),
            ("512 MB there and back, written", "write_512", 4.0),
            ("six calls over 256 MB", "chain", 3.0),
        ]:
            found[f"{name}, reference / ours"] = (reference[key] / ours[key], "at least", bar)
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
