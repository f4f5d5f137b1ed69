"""One word per thing: a class, a module and a public function can be found by its name."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
MODULES = [path for place in ("tasks", "flows") for path in (ROOT / place).rglob("*.py")]
ENTRY = "main"
"""What a module that is run by `python -m` calls its function; it stands for no thing."""


def test_a_name_stands_for_one_thing() -> None:
    """A class name stands once, a module's at most twice, a public function's in at most three modules."""
    classes, files, functions = defaultdict(set), defaultdict(set), defaultdict(set)
    for path in MODULES:
        tree = ast.parse(path.read_text())
        files[path.name].add(path)
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                classes[node.name.lstrip("_")].add((path, node.lineno))
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
                functions[node.name].add(path)
    del files["__init__.py"], functions[ENTRY]
    assert {name for name, places in classes.items() if len(places) > 1} == set()
    assert {name for name, places in files.items() if len(places) > 2} == set()
    assert {name for name, places in functions.items() if len(places) > 3} == set()
