"""The import rules that import-linter cannot express: lazy imports, submodules, side effects."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name
from workspace import ROOT, TEST_REQUIREMENTS, module_owners, requirements

PACKAGES = list(TEST_REQUIREMENTS)
# What `import rl_x` may not load, even where it is installed: what is not declared, or only as an extra.
NOT_LOADED = {
    "algos": ["hypothesis", "pytest", "ray", "tensordict", "transformers", "vllm"],
    "protocol": ["ray", "transformers", "vllm"],
    "controller": ["transformers", "vllm"],
    "rollout": ["ray", "vllm"],
    "workers": ["peft", "vllm"],
    "trainer": ["gguf", "math_verify", "peft", "plotly", "vllm"],
}
# Environment variables that the imports of tensordict and of Ray set.
SET_BY_DEPENDENCIES = ["TORCHINDUCTOR_CACHE_DIR", "RAY_CLIENT_MODE"]


def imports(path: Path) -> Iterator[tuple[str, int, bool]]:
    """Absolute name, line, and whether it runs on import of the module, of each import in a source file."""

    def visit(node: ast.AST, eager: bool) -> Iterator[tuple[str, int, bool]]:
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno, eager) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from ((f"{node.module}.{alias.name}", node.lineno, eager) for alias in node.names)
        typing_only = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        lazy = typing_only or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, eager and not lazy)

    yield from visit(ast.parse(path.read_text(encoding="utf-8"), str(path)), eager=True)


def source_imports(package: str) -> Iterator[tuple[str, str, bool]]:
    """Imported name, place, and eagerness of every import below packages/x/src."""
    for path in sorted((ROOT / "packages" / package / "src").rglob("*.py")):
        for name, line, eager in imports(path):
            yield name, f"{path.relative_to(ROOT)}:{line}", eager


def test_imports_are_told_apart(tmp_path: Path) -> None:
    source = tmp_path / "module.py"
    source.write_text(
        "import a.b\nfrom c import d\nfrom . import e\n"
        "if TYPE_CHECKING:\n    import f\nclass G:\n    import g\ndef h():\n    from i.j import k\n"
    )
    assert [(name, eager) for name, _, eager in imports(source)] == [
        ("a.b", True),
        ("c.d", True),
        ("f", False),
        ("g", True),
        ("i.j.k", False),
    ]


@pytest.mark.parametrize("package", PACKAGES)
def test_package_imports_only_what_it_declares_itself(package: str) -> None:
    owners = module_owners()
    allowed = {f"rl-{package}", *(canonicalize_name(r.name) for r in requirements(package))}
    offences = [
        f"{place} imports {name}"
        for name, place, _ in source_imports(package)
        if (module := name.partition(".")[0]) not in sys.stdlib_module_names
        and not owners.get(module, {canonicalize_name(module)}) & allowed
    ]
    assert not offences, f"not declared in packages/{package}/pyproject.toml:\n" + "\n".join(offences)


@pytest.mark.parametrize(
    ("package", "banned"),
    [
        ("algos", "torch.distributed"),
        ("protocol", "transformers"),
        ("controller", "transformers"),
        ("rollout", "ray"),
        *((package, "vllm") for package in PACKAGES if package != "rollout"),
        *((package, "omegaconf") for package in PACKAGES if package != "trainer"),
    ],
)
def test_package_never_imports(package: str, banned: str) -> None:
    places = [place for name, place, _ in source_imports(package) if f"{name}.".startswith(f"{banned}.")]
    assert not places, f"rl-{package} must not import {banned}, even lazily: {places}"


def test_algorithms_do_not_reach_torch_distributed_by_attribute() -> None:
    for path in (ROOT / "packages/algos/src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            assert not (isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.distributed"), path


def test_protocol_imports_ray_lazily() -> None:
    eager = [
        place for name, place, eager in source_imports("protocol") if eager and f"{name}.".startswith("ray.")
    ]
    assert not eager


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
def test_import_has_no_side_effects(package: str) -> None:
    """Importing a package sets no environment variable, loads no extra and changes no default of torch."""
    program = (
        "import json, os, sys, torch\n"
        "def state():\n"
        "    environment = {k: v for k, v in os.environ.items() if k not in sys.argv}\n"
        "    return environment, torch.get_default_dtype(), torch.get_num_threads()\n"
        f"before = state(); import rl_{package}; after = state()\n"
        "print(json.dumps({'same': before == after, 'modules': [m for m in sys.modules if '.' not in m]}))"
    )
    command = [sys.executable, "-c", program, *SET_BY_DEPENDENCIES]
    eager = os.environ | {"EAGER_IMPORT": "1"}  # all names at once, where they are loaded on first use
    done = subprocess.run(command, capture_output=True, text=True, env=eager)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["same"], "the import changed the environment or torch's defaults"
    assert not set(result["modules"]) & set(NOT_LOADED[package])
