"""The command: what it writes, prints and keeps, what it refuses, and what is left of an export that is not equal."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from flows import cli
from tasks.core.errors import DataError, UsageError
from tasks.core.files import read_json
from tasks.export import run as exports
from tasks.runs.folder import RunFolder
from tests.export.runs import STEP, run_of


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Nobody may change it."""
    return run_of(tmp_path_factory.mktemp("runs"), "clip")


def stand_in(folder: Path, script: str) -> str:
    """An interpreter that answers as the script has it; its arguments are the program, export and proof."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_it_prints_its_proof_and_is_there_the_second_time(
    run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ["export", str(run.best), "--to", "open_clip", "--out", str(out)]
    assert cli.main(words) == 0
    said = capsys.readouterr()
    assert f"{run.name}, step {STEP}: image and text towers" in said.err
    assert "Equal in open_clip 3" in said.out
    assert re.search(r"image features   (none|\d\.\de-1\d)\n", said.out)
    assert f"open_clip.create_model_and_transforms('local-dir:{out}')" in said.out
    record = read_json(out / "export.json")
    names = ["open_clip_config.json", "open_clip_model.safetensors"]
    assert record["step"] == STEP and list(record["files"]) == names
    assert [path.name for path in tmp_path.iterdir()] == ["out"], "no draft is left"

    assert cli.main([*words, "--python", "/nowhere", "--json"]) == 0, "nothing is proven again"
    again = json.loads(capsys.readouterr().out)
    assert again["up_to_date"] and again["proof"] == record["proof"]
    (out / names[0]).write_text("{}")
    assert cli.main(words) == 2
    assert f"--out: {out} holds something else; move it away" in capsys.readouterr().err


def test_what_does_not_load_or_is_not_equal_leaves_nothing(run: RunFolder, tmp_path: Path) -> None:
    out = tmp_path / "out"
    given = (str(run.path), run.path.parent, "open_clip", out)
    with pytest.raises(DataError, match=r"does not load in open_clip: no such module"):
        exports.export(*given, python=stand_in(tmp_path, "echo no such module >&2; exit 1"))
    with pytest.raises(DataError, match="does not load in open_clip: it says nothing"):
        exports.export(*given, python=stand_in(tmp_path, "echo it says nothing"))
    answers = {"image features": torch.zeros(4, 64), "text features": torch.zeros(4, 64)}
    others = {name: value.double() for name, value in answers.items()}
    save_file({**others, "temperature": torch.zeros(1)}, tmp_path / "answers", {"library": "another 1.0"})
    liar = stand_in(tmp_path, f'cp {tmp_path}/answers "$3/answers.safetensors"')
    with pytest.raises(DataError, match=r"another 1.0 differs from Tarmac: image features by 1, "):
        exports.export(*given, python=liar)
    assert {path.name for path in tmp_path.iterdir()} == {"python", "answers"}


def test_wrong_words_name_their_fix(run: RunFolder, tmp_path: Path) -> None:
    runs = run.path.parent
    with pytest.raises(
        UsageError, match=r"--source: is not given; .* git clone https://github.com/huggingface"
    ):
        exports.export(run.id, runs, "nanovlm")
    with pytest.raises(UsageError, match=r"--source: .* holds no models/vision_language_model.py"):
        exports.export(run.id, runs, "nanovlm", source=tmp_path)
    with pytest.raises(UsageError, match="--source: has no effect with --to hf"):
        exports.export(run.id, runs, "hf", source=tmp_path)
    with pytest.raises(UsageError, match=r"RUN: no run in .* starts with 'ffff'"):
        exports.export("ffff", runs, "hf")
    with pytest.raises(UsageError, match="--python: /nowhere/python cannot be started: No such file"):
        exports.export(run.id, runs, "open_clip", tmp_path / "out", python="/nowhere/python")


def test_a_run_means_its_best_checkpoint_and_a_torn_one_is_refused(tmp_path: Path) -> None:
    run = run_of(tmp_path, "clip")
    later = run.checkpoint(STEP + 5)
    shutil.copytree(run.checkpoint(STEP), later)
    assert exports.locate(run.id, tmp_path)[1].path == run.checkpoint(STEP)
    run.best.unlink()
    assert exports.locate(str(run.path), tmp_path)[1].step == STEP, "the newest that is whole"
    assert exports.locate(str(later), tmp_path)[1].step == STEP + 5
    with pytest.raises(DataError, match="missing or torn"):
        exports.export(str(later), tmp_path, "open_clip", tmp_path / "out")
    with pytest.raises(UsageError, match="CHECKPOINT: there is no"):
        exports.locate(str(run.checkpoint(STEP + 1)), tmp_path)
