"""The pages for developers name what is there."""

from __future__ import annotations

import re
from graphlib import TopologicalSorter

import grimp
import pytest

from tests.architecture import PICTURE, ROOT, picture

PAGES = ("docs/architecture.md", "CONTRIBUTING.md", "docs/private-parts.md")
CLASSES = re.compile(r"^(?:class|def) (\w+)", re.MULTILINE)


def test_the_picture_is_as_drawn() -> None:
    assert PICTURE.read_text() == picture(), "draw it again: python -m tests.architecture"


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = grimp.build_graph(
        "tasks", "flows", include_external_packages=False, exclude_type_checking_imports=True
    )
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(imports).prepare()  # CycleError names the modules of a circle


@pytest.mark.parametrize("page", PAGES)
def test_each_module_path_and_class_on_the_page_exists(page: str) -> None:
    named = re.findall(r"`([^`\n]+)`", (ROOT / page).read_text())
    defined = {name for path in (ROOT / "tasks").rglob("*.py") for name in CLASSES.findall(path.read_text())}
    for name in named:
        if re.fullmatch(r"(tasks|flows|tests)(\.\w+)+", name):
            place = ROOT / name.replace(".", "/")
            assert place.is_dir() or place.with_suffix(".py").is_file(), name
        elif re.fullmatch(r"(tasks|flows|tests)/[\w/.]+", name):
            assert (ROOT / name).exists(), name
        elif page == PAGES[0] and re.fullmatch(r"([A-Z][a-z]+){1,}s?", name):
            assert name in defined or name.removesuffix("s") in defined, name
