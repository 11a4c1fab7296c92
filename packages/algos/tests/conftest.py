"""Makes the tests' own modules importable and prints what the golden vectors covered."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    golden = sys.modules.get("golden_vectors")
    if golden is None or not golden.COMPARED:
        return
    terminalreporter.section("golden vectors")
    terminalreporter.write_line(f"compared: {sum(golden.COMPARED.values())} {dict(golden.COMPARED)}")
    terminalreporter.write_line(f"left out: {sum(golden.LEFT_OUT.values())}")
    for reason, number in sorted(golden.LEFT_OUT.items()):
        terminalreporter.write_line(f"  {number:4d}  {reason}")
    terminalreporter.write_line(f"not looked at by the tests of this run: {dict(golden.never_checked())}")
