"""Looking single samples up: the rejects of a build, and where a sample comes from and what became of it."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from flows.cli import main
from tests.dataset import raw
from tests.flows.birds import json_of, output_of, published

REJECTS = [("gone.png", "a picture", "x"), ("empty.png", "a picture", "x"), ("lost.png", "a picture", "x")]


@pytest.fixture
def rejected(birds: Path) -> Path:
    """The project with two missing pictures and one without bytes; returns the dataset."""
    raw.write_table(birds / "birds", [*raw.pictures(birds / "birds", 60), *REJECTS])
    (birds / "birds" / "empty.png").touch()
    published("birds.yaml")
    return birds / "data" / "birds"


def test_rejects_are_a_table_for_people(rejected: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert output_of(capsys, "rejects", "data/birds") == (
        "3 rejects: 2 member.missing, 1 image.empty\n"
        "REASON          SOURCE           ORIGINAL KEY  DETAIL\n"
        "member.missing  captions.csv:62  gone.png      no such file: 'gone.png'\n"
        "image.empty     captions.csv:63  empty.png     0 bytes\n"
        "member.missing  captions.csv:64  lost.png      no such file: 'lost.png'\n"
    )
    only = output_of(capsys, "rejects", "data/birds", "--reason", "image.empty").splitlines()
    assert only[0] == "1 reject: 1 image.empty" and len(only) == 3


def test_rejects_are_csv_or_json_for_programs(rejected: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = output_of(capsys, "rejects", "data/birds", "--csv", "--reason", "member.missing")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["source"] for row in rows] == ["captions.csv:62", "captions.csv:64"]
    assert json_of(capsys, "rejects", "data/birds", "--reason", "member.missing")["rejects"] == rows
    assert len(json_of(capsys, "rejects", "data/birds")["rejects"]) == 3


def test_an_unknown_reason_lists_those_that_are_there(
    rejected: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rejects", "data/birds", "--reason", "image.gone"]) == 2
    assert capsys.readouterr().err == (
        "✗ --reason: no sample was rejected as 'image.gone'; there are: member.missing (2), image.empty (1)\n"
    )
    assert main(["rejects", "data/birds", "--csv", "--json"]) == 2
    assert capsys.readouterr().out.startswith('{"ok": false')


def test_no_rejects_is_said_so(birds: Path, capsys: pytest.CaptureFixture[str]) -> None:
    published("birds.yaml")
    assert output_of(capsys, "rejects", "data/birds") == "no sample was rejected\n"
    assert output_of(capsys, "rejects", "data/birds", "--csv") == "reason,source,original_key,detail\n"
