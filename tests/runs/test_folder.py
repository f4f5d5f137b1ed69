"""Finding a run by what a person types."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.core.errors import UsageError
from tasks.runs.folder import find, list_runs


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for name in (
        "digits-3f9a00000001",
        "digits-3f9b00000002",
        "ct-clip-a41c00000003",
        "archive/old-3f9a00000009",
    ):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "run.json").write_text("{}")
    (tmp_path / "no-run").mkdir()
    return tmp_path


@pytest.mark.parametrize("prefix", ["a41c", "ct", "ct-clip-a41c00000003", "a41c00000003"])
def test_a_unique_prefix_of_id_or_name_finds_the_run(runs: Path, prefix: str) -> None:
    run = find(runs, prefix)
    assert (run.id, run.name) == ("a41c00000003", "ct-clip-a41c00000003")


def test_a_path_finds_the_run(runs: Path) -> None:
    assert find(Path("elsewhere"), str(runs / "digits-3f9a00000001")).id == "3f9a00000001"


@pytest.mark.parametrize(
    ("prefix", "says"),
    [
        ("3f9", "fits 2 runs in .*digits-3f9a.*digits-3f9b"),
        ("", "RUN: is empty"),
        ("zzz", "no run in .* starts with 'zzz'; there are: ct"),
    ],
)
def test_none_or_several_is_a_usage_error_that_lists_them(runs: Path, prefix: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        find(runs, prefix)


def test_archived_runs_are_not_listed(runs: Path) -> None:
    assert len(list_runs(runs)) == 3


def test_a_renamed_run_keeps_its_id(runs: Path) -> None:
    renamed = (runs / "ct-clip-a41c00000003").rename(runs / "ct-clip-a41c00000003-20261122-060000")
    (renamed / "run.json").write_text('{"id": "a41c00000003"}')
    assert find(runs, "a41c").id == "a41c00000003"
    assert find(runs, "ct-clip-a41c00000003-2026").id == "a41c00000003"
