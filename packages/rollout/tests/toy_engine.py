"""The toy engine of the documentation, taken from its page so that the page is what runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = next(
    page
    for folder in Path(__file__).resolve().parents
    if (page := folder / "docs/rollout/add-an-engine.md").exists()
)
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)

_namespace: dict[str, Any] = {"__name__": "toy_engine_page"}
exec(compile(BLOCKS[0], str(PAGE), "exec"), _namespace)
ToyRollout: Any = _namespace["ToyRollout"]
