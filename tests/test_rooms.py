"""The house stands as docs/architecture.md draws it: no circles, and every room says what belongs there."""

from __future__ import annotations

import ast
import graphlib
import re

import grimp
import pytest
from upstream import guards
from workspace import ROOT, TEST_REQUIREMENTS

PACKAGES = list(TEST_REQUIREMENTS)
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
UPSTREAM = (ROOT / "docs" / "upstream.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_imports_itself_by_a_detour(package: str) -> None:
    """Counting imports that serve types only, and those inside functions."""
    graph = grimp.build_graph(f"rl_{package}", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    graphlib.TopologicalSorter(imports).prepare()  # raises a CycleError that holds the circle


def rooms(package: str) -> list[str]:
    source = ROOT / "packages" / package / "src" / f"rl_{package}"
    return sorted(str(path.parent.relative_to(source)) for path in source.glob("*/**/__init__.py"))


@pytest.mark.parametrize("package", PACKAGES)
def test_every_room_says_what_belongs_there_and_is_on_the_page(package: str) -> None:
    source = ROOT / "packages" / package / "src" / f"rl_{package}"
    for room in rooms(package):
        tree = ast.parse((source / room / "__init__.py").read_text(encoding="utf-8"))
        docstring = ast.get_docstring(tree)
        assert docstring and len(docstring) > 40, f"rl_{package}/{room} does not say what belongs there"
        assert "/" in room or f"{room}/" in PAGE or package == "algos", f"{room} is not on the page"


def test_the_way_of_a_batch_names_files_and_functions_that_exist() -> None:
    section = PAGE.partition("## The way of a batch")[2].partition("\n## ")[0]
    rows = re.findall(
        r"^\|[^|]+\| `(rl_(\w+?)/[\w/.]+)`(?:, `(\w+\.py)`)? \|([^|]+)\|$", section, re.MULTILINE
    )
    assert len(rows) > 10
    for path, package, beside, names in rows:
        file = ROOT / "packages" / package / "src" / path
        files = [file, *([file.with_name(beside)] if beside else [])]
        code = "\n".join(each.read_text(encoding="utf-8") for each in files)
        for name in (name.rpartition(".")[2] for name in re.findall(r"`([\w.]+)`", names)):
            assert re.search(rf"^\s*(?:def|class) {name}\b", code, re.MULTILINE), f"{path} has no {name}"


def test_every_reach_into_another_library_stands_in_a_file_and_has_guards_that_exist() -> None:
    rows = [line.split(" | ") for line in UPSTREAM.splitlines() if line.startswith("| ") and "tests/" in line]
    assert len(rows) > 10
    for row in rows:
        for path in re.findall(r"`(rl_(\w+?)/[\w/.]+)`", row[1]):
            assert (ROOT / "packages" / path[1] / "src" / path[0]).is_file(), path[0]
    tests = {*guards(UPSTREAM, engine=False), *guards(UPSTREAM, engine=True)}
    assert len(tests) > 10 and all((ROOT / test).is_file() for test in tests)
