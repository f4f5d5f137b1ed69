"""How much code there is, by package: `make size`.

Code lines are lines without blanks, comments, docstrings and imports. A name stands double when a second class,
a third module or a public function of a fourth module bears it; `tests/test_names.py` keeps that at none.
"""

from __future__ import annotations

import ast
import io
import subprocess
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SPLIT = "dataset"
"""The package whose own packages get a row each, as it holds a third of all code."""
LAYOUT = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)


class Size(NamedTuple):
    """Files, their lines, and those of them that are code."""

    files: int
    lines: int
    code: int


def size_of(paths: Sequence[Path]) -> Size:
    """The size of some files."""
    texts = [path.read_text() for path in paths]
    return Size(len(paths), sum(text.count("\n") for text in texts), sum(map(code_lines, texts)))


def code_lines(text: str) -> int:
    """The lines of a module that hold code."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    held = {
        line
        for token in tokens
        if token.type not in (*LAYOUT, tokenize.ENDMARKER)
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(held - {line for node in _left_out(text) for line in range(node.lineno, node.end_lineno + 1)})


def _left_out(text: str) -> Iterator[ast.Expr | ast.Import | ast.ImportFrom]:
    """Imports, and strings that stand alone: docstrings of modules, classes, functions and constants."""
    for node in ast.walk(ast.parse(text)):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_text or isinstance(node, ast.Import | ast.ImportFrom):
            yield node


def packages() -> dict[str, list[Path]]:
    """The Python files that git knows, by package."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    found: dict[str, list[Path]] = {}
    for name in listed.stdout.splitlines():
        place, *inner = Path(name).parts[:-1]
        depth = 0 if place != "tasks" else 2 if inner[:1] == [SPLIT] else 1
        found.setdefault("/".join([place, *inner[:depth]]), []).append(ROOT / name)
    return found


def main() -> None:
    """Print a row per package, and the sum of what is shipped."""
    found = packages()
    shipped = [
        path
        for name, paths in found.items()
        if name.partition("/")[0] in ("tasks", "flows")
        for path in paths
    ]
    print(f"{'package':<28}{'files':>7}{'lines':>9}{'code':>9}")
    for name, paths in [*sorted(found.items()), ("tasks and flows", shipped)]:
        print(f"{name:<28}" + "".join(f"{n:>{w},}" for n, w in zip(size_of(paths), (7, 9, 9), strict=True)))


if __name__ == "__main__":
    main()
