"""docs/claims.md states what was measured, and the complaints that lead to docs/symptoms.md lead to its headings."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tasks.diagnosis.verdicts import CAUSES
from tests.docs.claims import PAGE, TABLE, bare_figures, kept_cases, written
from tests.docs.pages import ROOT, anchors, text_of

TEXT = PAGE.read_text(encoding="utf-8")
SYMPTOMS = "docs/symptoms.md"
COMPLAINTS = json.loads(Path(__file__).with_name("complaints.json").read_text(encoding="utf-8"))


def test_the_page_states_the_kept_figures() -> None:
    """`python -m tests.docs.claims` writes it again."""
    assert written(TEXT) == TEXT
    assert {found["case"] for found in TABLE.finditer(TEXT)} == {*kept_cases()}
    assert [*bare_figures(TEXT)] == []


def test_another_figure_and_a_sentence_that_is_gone_are_noticed() -> None:
    wrong = TEXT.replace("A call with `commit=True` takes ", "A call with `commit=True` takes 9")
    assert written(wrong) == TEXT != wrong
    with pytest.raises(ValueError, match="0 times: 256 files end"):
        written(TEXT.replace("256 files end after", "256 files last for"))
    assert [*bare_figures("It gives 12,345 samples/s.")] == ["12,345 samples/s"]


def test_no_line_of_a_paragraph_begins_as_a_heading_does() -> None:
    """A reference to an issue, as in `#1016`, that a line begins with is a heading on the site."""
    assert re.findall(r"^#+[^# ].*", TEXT, re.MULTILINE) == []


def test_what_the_page_concludes_follows_from_the_figures() -> None:
    cases = kept_cases()

    def span(case: str, row: str, key: str) -> tuple[float, float]:
        low, high = cases[case]["ranges"][row][key]
        return low, high

    def row(case: str, name: str, key: str) -> float:
        return float(cases[case]["rows"][name][key])

    assert all(one["batches"] == 0 for one in cases["No sample has a caption"]["rows"].values())
    far = "Shuffle buffer, 4 MB/s"
    assert row(far, "5,000, starts at 100", "rate") == pytest.approx(row(far, "100", "rate") / 2, rel=0.05)
    lock = {name: one["batches"] for name, one in cases["A lock that was held at the fork"]["rows"].items()}
    assert lock == {"2 workers by fork": 0, "no workers": 1, "2 workers by forkserver": 1}
    pins = [span("pin_memory without a GPU", name, "rate") for name in ("False", "True")]
    assert max(low for low, _ in pins) < min(high for _, high in pins)
    decoding = {name: one["rate"] for name, one in cases["Workers, decoding on two cores"]["rows"].items()}
    assert (
        max(decoding, key=decoding.__getitem__) == "2 workers"
        and decoding["1 worker"] < decoding["0 workers"]
    )
    calls = cases["wandb's calls"]["rows"]
    assert all(one["call_us"] < 200 for name, one in calls.items() if name.startswith("log, "))
    assert all(
        calls[f"{name}, server hangs"]["longest_ms"] >= 2000 for name in ("finish()", "log of a table")
    )
    assert "error_s" in cases["Size of /dev/shm"]["rows"]["64 MB, batch of 128"]


@pytest.mark.parametrize("complaint", COMPLAINTS, ids=lambda one: one["section"])
def test_a_complaint_leads_to_a_section_with_its_command(complaint: dict[str, str]) -> None:
    assert complaint["section"] in anchors(SYMPTOMS)
    assert f"$ {complaint['command']}" in text_of(SYMPTOMS)
    assert complaint["log"].count("\n") >= 2


def test_the_picture_has_each_cause_that_stops_a_training() -> None:
    picture = (ROOT / "docs" / "anatomy-of-a-stall.svg").read_text(encoding="utf-8")
    drawn = set(re.findall(r"\b[a-z]+\.[a-z_0-9]+\b", picture.partition("</style>")[2]))
    assert {cause.code for cause in CAUSES if cause.severity == "error"} <= drawn
