from __future__ import annotations

import subprocess
import sys


def test_torch_is_not_imported_before_a_tensor_is_needed() -> None:
    code = "import sys, rl_controller; print([m for m in ('torch', 'rl_protocol') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
