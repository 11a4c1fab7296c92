"""Hides distributions from every Python process that starts with this folder on PYTHONPATH.

`tools/run_tests.py` runs the tests of a package with it, as if only what that declares were installed: in the
pytest process, and in the Ray actors and other processes that the tests start. It is cheaper than an
environment for each package, and stricter than a check of the imports in the sources.
"""

from __future__ import annotations

import os
import re
import site
import sys
from importlib.machinery import ModuleSpec, PathFinder
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # every process that starts pays for what is imported here
    from collections.abc import Iterator, Sequence
    from importlib.metadata import Distribution, DistributionFinder
    from types import ModuleType

INSTALLED = frozenset(site.getsitepackages())
HIDDEN_MODULES = frozenset(os.environ.get("RL_HIDDEN_MODULES", "").split())
HIDDEN_DISTRIBUTIONS = frozenset(os.environ.get("RL_HIDDEN_DISTRIBUTIONS", "").split())


class DeclaredFinder(PathFinder):
    """The standard finder, blind to what is hidden: modules, metadata and plug-ins alike."""

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A module's spec; None, as for one that is not installed, where it is hidden."""
        if path is None and fullname in HIDDEN_MODULES:
            # Not hidden: the copies of distributions that others carry in folders of their own, as Ray does.
            path = [p for p in sys.path if p not in INSTALLED and not p.endswith(f"{os.sep}src")]
        return PathFinder.find_spec(fullname, path, target)

    @classmethod
    def find_distributions(cls, *args: DistributionFinder.Context) -> Iterator[Distribution]:  # type: ignore[override]
        """The installed distributions that are not hidden."""
        for distribution in PathFinder.find_distributions(*args):
            if re.sub(r"[-_.]+", "-", distribution.name).lower() not in HIDDEN_DISTRIBUTIONS:
                yield distribution


sys.meta_path[:] = [DeclaredFinder if finder is PathFinder else finder for finder in sys.meta_path]
