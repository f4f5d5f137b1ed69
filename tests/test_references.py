"""Code that is named by a text, `module:function`, exists under that name."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
REFERENCE = re.compile(r"(?P<module>(?:tasks|flows)(?:\.\w+)+):(?P<name>\w+)")


def test_what_is_named_by_a_text_exists() -> None:
    named = set()
    for path in (path for place in ("tasks", "flows") for path in (ROOT / place).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                named |= {found.groups() for found in [REFERENCE.fullmatch(node.value)] if found}
    assert len(named) > 20
    for module, name in named:
        file = ROOT / f"{module.replace('.', '/')}.py"
        file = file if file.exists() else file.with_suffix("") / "__init__.py"
        defined = {getattr(node, "name", None) for node in ast.parse(file.read_text()).body}
        assert name in defined, f"{module}:{name}"
