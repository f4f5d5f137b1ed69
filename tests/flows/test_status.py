"""`tarmac status` on datasets: what a killed build has left, and the command that goes on with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.flows.birds import json_of, output_of
from tests.soak import kill_builds


def test_an_interrupted_build_is_listed_with_the_command_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write, config_of = kill_builds.SOURCES["files"]
    write(tmp_path / "raw", 0)
    output = tmp_path / "data/many"
    assert kill_builds.kill_build("files", tmp_path / "raw", output, shards=3)
    monkeypatch.chdir(tmp_path)
    shown = output_of(capsys, "status")
    assert "  ! a build was interrupted" in shown and shown.endswith("goes on by: tarmac build CONFIG\n")
    (tmp_path / "configs").mkdir()
    config = config_of(tmp_path / "raw", output)
    (tmp_path / "configs/many 2.yaml").write_text(json.dumps(config.model_dump(mode="json")))
    assert output_of(capsys, "status").endswith("it goes on by: tarmac build 'configs/many 2.yaml'\n")
    (dataset,) = json_of(capsys, "status")["datasets"]
    assert dataset["left_off"].startswith("a build was interrupted") and dataset["build"] is None
    kill_builds.build_and_publish("files", tmp_path / "raw", output)
    assert "interrupted" not in output_of(capsys, "status")
    assert json_of(capsys, "status")["datasets"][0]["left_off"] == ""
