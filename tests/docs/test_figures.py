"""A figure that a page states is the one that was kept, and no page states a measured one that nobody kept."""

from __future__ import annotations

import pytest

from tests.docs.figures import LIMITS, STATED, unaccounted, written
from tests.docs.pages import PAGES, text_of

MADE = {
    "docs/benchmarks.md",
    "docs/claims.md",
    "docs/scale.md",
    "docs/matrices/faults.md",
    "docs/matrices/stalls.md",
}
"""Pages that are made of kept figures as a whole, with tests of their own."""


@pytest.mark.parametrize("page", STATED)
def test_a_page_states_the_kept_figures(page: str) -> None:
    """`python -m tests.docs.figures` writes them again."""
    assert written(text_of(page), STATED[page], page) == text_of(page)


@pytest.mark.parametrize("page", [page for page in PAGES if page not in MADE and page != "CHANGELOG.md"])
def test_a_page_states_no_measured_figure_that_is_not_kept(page: str) -> None:
    found = set(unaccounted(text_of(page), STATED.get(page, ())))
    assert found == LIMITS.get(page, set())


def test_a_wrong_figure_and_a_bare_one_are_noticed() -> None:
    text = text_of("README.md")
    wrong = text.replace("| open_clip's trainer | ", "| open_clip's trainer | 9")
    assert written(wrong, STATED["README.md"], "README.md") == text != wrong
    with pytest.raises(ValueError, match=r"README\.md has 0 times"):
        written(text.replace("open_clip's trainer", "another"), STATED["README.md"], "README.md")
    assert list(unaccounted("It is 3 x as fast, for 224 x 224 pixels: 1,200\nimages/s.", ())) == [
        "3 x",
        "1,200 images/s",
    ]
