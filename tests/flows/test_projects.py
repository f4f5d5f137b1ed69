"""The commands that begin a project: what `init` writes, what `plan` says, what `example` leaves alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flows.cli import main
from tests.flows.birds import COUNT, json_of, output_of, published


def test_the_example_is_left_alone_when_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "1,797 samples in data/raw/digits" in output_of(capsys, "example", "digits")
    assert "left alone" in output_of(capsys, "example", "digits")
    assert json_of(capsys, "example", "digits")["samples"] == 0


def test_the_schema_names_every_block(capsys: pytest.CaptureFixture[str]) -> None:
    schema = json.loads(output_of(capsys, "schema"))
    assert set(schema["properties"]) >= {"name", "dataset", "loader", "train", "evaluate", "track", "engine"}
    assert "decoded" in schema["$defs"]["ImageRules"]["properties"]["max_pixels"]["description"]
    for block, key in (
        ("ClipOptions", "patch_dropout"),
        ("VlmOptions", "upscale"),
        ("LinearProbe", "samples"),
    ):
        assert schema["$defs"][block]["properties"][key]["description"]


def test_from_raw_files_to_a_dataset(birds: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "✓ configs/birds.yaml: " in output_of(capsys, "init", "birds")
    assert main(["init", "birds"]) == 2
    assert "configs/birds.yaml exists and stays as it is; give another path" in capsys.readouterr().err
    published("configs/birds.yaml")
    assert f"{COUNT} samples" in output_of(capsys, "versions", "data/birds")
