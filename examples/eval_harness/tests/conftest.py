"""Worker processes find the harness beside its tests where it is not installed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

SOURCE = str(Path(__file__).parent.parent / "src")
sys.path.insert(0, SOURCE)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [SOURCE, os.environ.get("PYTHONPATH")]))
