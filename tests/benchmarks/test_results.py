"""docs/benchmarks.md is made of the kept figures, and of nothing else."""

from __future__ import annotations

from tests.benchmarks.results import FOLDER, PAGE, SECTIONS, page


def test_the_page_shows_the_kept_figures() -> None:
    """`python -m tests.benchmarks.results` writes it again."""
    assert PAGE.read_text(encoding="utf-8") == page()
    assert {path.stem for path in FOLDER.iterdir()} == {*SECTIONS}
