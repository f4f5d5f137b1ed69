"""The tables of the docs are those of the recorded verdicts, and no row is missing."""

from __future__ import annotations

from tests.sanity.planted import CASES
from tests.soak.verdicts import PAGE, kept, render
from tests.stalls import test_slow
from tests.stalls.test_matrix import ROWS


def test_the_docs_show_what_was_measured() -> None:
    page = PAGE.read_text()
    assert render(kept(), page) == page, "python -m tests.soak.verdicts render"


def test_every_training_was_asked_about() -> None:
    names = {row.name.partition(", seed")[0] for row in kept()}
    slow = {kind.replace("_", " ") for kind in (*test_slow.SLOW, *test_slow.HEALTHY)}
    assert {*CASES, *slow} <= names
    assert len({row.name for row in ROWS} - names) <= 8, "rows that this machine cannot produce"
