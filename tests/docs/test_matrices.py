"""The pages of docs/matrices are what was kept, and what was kept is of the faults, readers, tests and verdicts of today."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from blake3 import blake3

from tests.conftest import ROOT
from tests.soak import faults, matrices, verdicts


@pytest.mark.parametrize("name", matrices.BLOCKS)
def test_a_page_shows_what_was_kept(name: str) -> None:
    """`python -m tests.soak.matrices render` writes it again."""
    written = (matrices.PAGES / name).read_text(encoding="utf-8")
    assert written == matrices.page(name, written)


def test_every_reader_and_checker_was_asked_about_every_fault() -> None:
    asked = {(one.fault, one.reader) for one in matrices.answers()}
    assert asked == {(fault, who) for fault in faults.FAULTS for who in (*faults.READERS, *faults.CHECKERS)}


UNSEEN = {"another shard's bytes in its place", "a flipped bit in a caption"}
"""What the streaming reader lets pass, because it compares no checksum; the page says so."""


def test_sound_shards_arrive_whole_and_tarmac_lets_no_damage_pass() -> None:
    for one in matrices.answers():
        if one.fault == "nothing":
            assert not one.is_stopped and not (one.lost or one.wrong or one.twice), one
        elif one.reader.startswith("tarmac,"):
            is_unseen = one.reader == "tarmac, streaming" and one.fault in UNSEEN
            assert one.verdict == ("silent" if is_unseen else "named"), one


def test_each_test_of_a_fault_exists_and_outcomes_are_of_all_or_none() -> None:
    kept = json.loads(matrices.KEPT.read_text())["tests"]
    assert [*kept] in ([], [one.test for one in matrices.TESTS])
    for one in matrices.TESTS:
        path, _, name = one.test.partition("::")
        assert f"\ndef {name}(" in (ROOT / path).read_text(encoding="utf-8"), one.test


def test_the_verdicts_are_those_that_the_page_dates() -> None:
    kept = json.loads(matrices.KEPT.read_text())["verdicts"]
    assert kept["blake3"] == blake3(verdicts.RESULTS.read_bytes()).hexdigest()


def test_a_report_of_pytest_is_read_as_it_is(tmp_path: Path) -> None:
    first, second, third = (one.test for one in matrices.TESTS[:3])

    def case(test: str, inside: str = "", which: str = "") -> str:
        path, _, name = test.partition("::")
        place = path.removesuffix(".py").replace("/", ".")
        return f'<testcase classname="{place}" name="{name}{which}" time="1.5">{inside}</testcase>'

    skipped = '<skipped message="no Slurm"/>'
    cases = [case(first, which="[a]"), case(first, "<failure/>", "[b]"), case(second), case(third, skipped)]
    (tmp_path / "report.xml").write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")
    found = matrices.read_report(tmp_path / "report.xml")
    shown = [matrices.outcome_of(found[test]) for test in (first, second, third, matrices.TESTS[3].test)]
    assert shown == ["**failed** in 1 of 2", "kept", "skipped: no Slurm", "**not run**"]
    assert found[first]["seconds"] == 3.0
