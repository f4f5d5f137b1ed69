"""The lines of Python that a person is given to load a version run as they stand, with other libraries."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from flows.cli import main
from tests.conftest import ROOT
from tests.dataset.building.prepared import published
from tests.dataset.raw import chat
from tests.flows.birds import json_of, make_project, output_of
from tests.flows.birds import published as published_birds


def ran(program: str, folder: Path) -> str:
    """What a program prints that is run in a folder, without a network."""
    (folder / "program.py").write_text(program)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HOME": str(folder / "hub"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "program.py"], cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("shards", ["several", pytest.param("one", marks=pytest.mark.proof)])
def test_a_dataset_is_loaded_by_the_lines_that_are_printed(
    shards: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make_project(tmp_path)
    if shards == "one":
        Path("birds.yaml").write_text(Path("birds.yaml").read_text().replace("samples: 16", "samples: 99"))
    version = published_birds("birds.yaml")
    built = output_of(capsys, "build", "birds.yaml")
    assert "\n  look     tarmac look data/birds, and in Python: tarmac look data/birds --load\n" in built
    printed = output_of(capsys, "look", "data/birds", "--load")
    names = re.findall(r"^# (.*)$", printed, re.M)
    assert names == ["webdataset, in order", "PyTorch, at random by the index", "Hugging Face datasets"]
    of_webdataset, of_torch, of_datasets = (
        ran(part, tmp_path) for part in re.split(r"^# .*\n", printed, flags=re.M)[1:]
    )
    assert re.search(r"^\S+ \['json', 'png', 'txt'\]", of_webdataset)
    samples = sum(1 for _ in (tmp_path / "birds").glob("*.png"))
    assert 40 < int(of_torch.split()[0]) < samples and of_torch.endswith("['json', 'png', 'txt']\n")
    assert "'png'" in of_datasets and "'__key__'" in of_datasets
    assert json_of(capsys, "look", "data/birds", "--load")["version"] == version
    other = output_of(capsys, "look", f"data/birds/versions/{version}", "--load")
    assert f"data/birds/versions/{version}/train" in other


@pytest.mark.proof
def test_conversations_are_loaded_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    published(chat.make(tmp_path / "raw"))
    printed = output_of(capsys, "look", str(tmp_path / "raw/out"), "--load")
    for part in re.split(r"^# .*\n", printed, flags=re.M)[1:]:
        assert "json" in ran(part, tmp_path)


def test_it_stands_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["look", "data/birds", "--load", "--full"]) == 2
    why = "✗ --load: stands alone; leave out --quick, --full and --out"
    assert why in capsys.readouterr().err
