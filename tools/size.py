"""How large the house is: code of each package, and what has grown past a limit.

usage: python tools/size.py    (exit status 1 if a limit is passed)

A line of code is one that holds something else than blanks, a comment, or a string that stands alone (a
docstring, the documentation under a configuration key).
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from workspace import ROOT, TEST_REQUIREMENTS

MOST_CODE = 20_000  # lines of code in the six packages together
MOST_FILE = 350  # raw lines of a source file
MOST_FUNCTION = 60  # raw lines of a function
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


@dataclass
class Size:
    """Lines of some files, and of the longest file and function among them."""

    files: int = 0
    raw: int = 0
    code: int = 0
    longest_file: int = 0
    longest_function: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(
            self.files + other.files,
            self.raw + other.raw,
            self.code + other.code,
            max(self.longest_file, other.longest_file),
            max(self.longest_function, other.longest_function),
        )


def functions(tree: ast.AST) -> Iterator[tuple[str, int, int]]:
    """Name, first line and number of lines of each function."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.lineno, (node.end_lineno or node.lineno) - node.lineno + 1


def lines_of_code(text: str, tree: ast.AST) -> int:
    """Lines that hold code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def measure(path: Path) -> tuple[Size, list[str]]:
    """A file's size, and the limits of a file that it passes."""
    text = path.read_text(encoding="utf-8")
    tree, raw, place = ast.parse(text, str(path)), text.count("\n"), path.relative_to(ROOT)
    found = list(functions(tree))
    longest = max((lines for _, _, lines in found), default=0)
    problems = [f"{place} has {raw} lines, at most {MOST_FILE}"] if raw > MOST_FILE else []
    problems += [
        f"{place}:{line} {name} has {lines} lines, at most {MOST_FUNCTION}"
        for name, line, lines in found
        if lines > MOST_FUNCTION
    ]
    return Size(1, raw, lines_of_code(text, tree), raw, longest), problems


def main() -> int:
    """Print the table, and what passes a limit."""
    sizes: dict[str, Size] = {}
    problems: list[str] = []
    for package in TEST_REQUIREMENTS:
        measured = [measure(path) for path in sorted((ROOT / "packages" / package / "src").rglob("*.py"))]
        sizes[package] = sum((size for size, _ in measured), Size())
        problems += [problem for _, found in measured for problem in found]
    sizes["all"] = total = sum(sizes.values(), Size())
    if total.code > MOST_CODE:
        problems.append(f"the packages have {total.code} lines of code, at most {MOST_CODE}")
    print(f"{'':12}{'code':>8}{'raw':>8}{'files':>7}{'longest file':>14}{'longest function':>18}")
    for name, size in sizes.items():
        row = f"{name:12}{size.code:8}{size.raw:8}{size.files:7}"
        print(f"{row}{size.longest_file:14}{size.longest_function:18}")
    print(*problems, sep="\n", end="\n" if problems else "")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
