"""`about.json`: what a run ran on and with, so that its numbers can be judged elsewhere."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Sequence
from pathlib import Path

from ..config.tree import PPOConfig
from ..config.versions import versions
from .doctor import cuda_devices


def about(config: PPOConfig) -> dict[str, str]:
    """Versions, processor, memory, devices, and a fingerprint of the data, each as text."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return {
        "processor": f"{processor()}, {os.cpu_count()} cores, {memory:.0f} GB",
        "devices": ", ".join(cuda_devices()) or "none",
        "system": platform.platform(),
        "training data": fingerprint(config.data.train_files),
        "validation data": fingerprint(config.data.val_files),
        **versions(),
    }


def processor() -> str:
    """The processor's name, as far as the system tells."""
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.is_file() else []:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def fingerprint(sources: Sequence[str]) -> str:
    """Each source with the first digits of its content's SHA-256, where it is a file."""
    told = []
    for source in sources:
        path = Path(source)
        digest = ""
        if path.is_file():
            with path.open("rb") as file:
                digest = " " + hashlib.file_digest(file, "sha256").hexdigest()[:12]
        told.append(path.name + digest if digest else source)
    return ", ".join(told) or "none"
