"""Peak memory of one forward and backward of each loss, ours and verl's, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROWS, WIDTH = 1024, 4096


def resident(field: str) -> int:
    """A field of this process's memory status, in kB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1])
    raise LookupError(field)


def measure(side: str, name: str) -> None:
    """Print the peak above what the inputs take, in MB."""
    import torch
    from inputs import make_inputs
    from speed import OPTIONS, loss_pair

    torch.set_num_threads(1)
    warm, x = make_inputs(8, 64), make_inputs(ROWS, WIDTH)
    theirs = "vanilla" if name == "clip_higher" else name
    loss_pair(warm, name, theirs, OPTIONS.get(name, {}))[side == "verl"]()
    run = loss_pair(x, name, theirs, OPTIONS.get(name, {}))[side == "verl"]
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    run()
    print((resident("VmHWM") - before) // 1024)


def main() -> None:
    from speed import LOSSES

    # Without it, freed blocks stay in the process and the peak counts them.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "1048576", "MALLOC_TRIM_THRESHOLD_": "1048576"}
    for name in ("vanilla", *LOSSES):
        peaks = []
        for side in ("ours", "verl"):
            command = [sys.executable, __file__, side, name]
            out = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
            peaks.append(int(out.split()[-1]))
        share = peaks[0] / max(peaks[1], 1)
        mark = "" if share <= 0.5 else "   ABOVE TARGET"
        line = f"{name:12s} ours {peaks[0]:5d} MB   verl {peaks[1]:5d} MB   share {share:.2f} (target 0.50)"
        print(line + mark, flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        measure(sys.argv[1], sys.argv[2])
    else:
        main()
