"""Small files that are whole or untouched, whenever the process dies."""

from __future__ import annotations

import json
import os
from pathlib import Path


def write_json(path: Path, value: object) -> None:
    """Write and flush to disk."""
    with path.open("w", encoding="utf-8") as file:
        json.dump(value, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def replace_text(path: Path, text: str) -> None:
    """Replace a small file in one step: readers see the old text or the new one."""
    aside = path.with_name(path.name + ".new")
    with aside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Flush a folder's entries to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
