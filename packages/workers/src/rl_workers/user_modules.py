"""Modules of a user's own, imported so that what they register is found by name."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path

from rl_workers.errors import WorkerConfigError


def import_modules(names: Iterable[str], key: str = "algorithm.modules") -> None:
    """Import modules (`package.module`) and files (`path/to/file.py`), each once in a process.

    Raises:
        WorkerConfigError: one can't be imported; the message says why.
    """
    for name in names:
        try:
            _import_file(Path(name)) if name.endswith(".py") else importlib.import_module(name)
        except Exception as error:  # the boundary to a user's code
            raise WorkerConfigError(
                f"{key}: {name!r} can't be imported: {type(error).__name__}: {error}; "
                "write package.module or path/to/file.py"
            ) from error


def _import_file(path: Path) -> None:
    """Files of one name stay apart; one file is imported once, or it would register its names twice."""
    where = str(path.resolve())
    name = f"rl_user_{path.stem}_{hashlib.sha256(where.encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, where)
    if spec is None or spec.loader is None:
        raise ImportError("it is no Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
