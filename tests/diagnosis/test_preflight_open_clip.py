"""From somebody's hanging command to the mended one that trains, in three commands, with open_clip itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flows.cli import main
from tasks.diagnosis.preflight import preflight_command
from tests.conftest import ROOT
from tests.diagnosis.tars import open_clip, write_tars
from tests.stalls.open_clip import webdataset_1

pytestmark = pytest.mark.system

BIN = Path(sys.executable).parent
MODEL = {
    "model_cfg": {
        "embed_dim": 16,
        "vision_cfg": {"image_size": 32, "layers": 1, "width": 32, "head_width": 32, "patch_size": 16},
        "text_cfg": {"context_length": 8, "vocab_size": 49408, "width": 32, "heads": 1, "layers": 1},
    },
    "preprocess_cfg": {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]},
}
PATTERN = "train/{000000..000003}.tar"
OPTIONS = (
    "--model local-dir:tiny --precision fp32 --device cpu --workers 2 --batch-size 4 --epochs 1 --logs logs"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a tiny model for open_clip's trainer."""
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny/open_clip_config.json").write_text(json.dumps(MODEL))
    return tmp_path


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    env |= {"CUDA_VISIBLE_DEVICES": "", "PREFECT_HOME": str(folder / "prefect")}
    return subprocess.run(
        command, shell=True, cwd=folder, env=env, capture_output=True, text=True, timeout=900, check=False
    )


def test_three_commands_lead_from_the_hang_to_a_training(folder: Path) -> None:
    write_tars(folder / "train", ("jpg", "json", "paug.json"), tars=4, each=16, side=40)
    first = shell(
        f"tarmac preflight --json -- python -m open_clip_train.main --train-data '{PATTERN}' {OPTIONS} "
        "--train-num-samples 64",
        folder,
    )
    assert first.returncode == 1, first.stderr
    printed = json.loads(first.stdout)
    finding = printed["findings"][0]
    assert finding["code"] == "keys.mismatch"
    assert finding["evidence"]["dropped"] == 64
    assert finding["where"]["rule"].startswith("open_clip_train/data.py:")
    assert finding["where"]["rule"].endswith("filter_no_caption_or_no_image")
    second = shell(finding["command"], folder)
    assert second.returncode == 0, second.stderr
    third = shell(printed["mended"]["command"], folder)
    assert third.returncode == 0, third.stderr
    assert "Train Epoch: 0 [64/64 (100%)]" in third.stderr, third.stderr
    assert list(folder.glob("logs/*/checkpoints/epoch_1.pt"))


def test_a_deep_look_finds_the_one_image_that_does_not_decode(folder: Path) -> None:
    write_tars(folder / "train", ("jpg", "txt"), tars=3, each=20)
    tar = folder / "train/000001.tar"
    content = bytearray(tar.read_bytes())
    start = content.index(b"\xff\xd8", len(content) // 2)
    content[start : start + 2] = b"xx"
    tar.write_bytes(content)
    words = open_clip(
        "train/{000000..000002}.tar", f"{OPTIONS} --train-num-samples 60 --warmup 1", sys.executable
    )
    shallow = preflight_command(words, folder)
    assert any("--deep decodes all" in one for one in shallow.report.not_seen)
    deep = preflight_command(words, folder, is_deep=True)
    (finding,) = [one for one in deep.report.findings if one.code == "member.undecodable"]
    assert finding.severity == "warning"
    assert finding.evidence["problem"] == "`jpg` does not decode, so the whole sample is dropped: 1 of 60"
    assert deep.report.ok


def test_a_config_that_open_clip_trains_is_judged_by_its_own_pipeline(
    digits_dataset: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The dataset is sound; then the config's own command names other tars, without captions."""
    write_tars(folder / "train", ("jpg", "json"), tars=2, each=40)
    config = ROOT / "configs/open-clip-external.yaml"
    changes = ["--set", f"dataset.output={digits_dataset}", "--set", f"runs={folder}/runs"]
    assert main(["preflight", str(config), *changes, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["trainer"], found["findings"]) == ("open_clip", []) and found["samples"] > 1000
    words = f"python, -m, open_clip_train.main, --train-data, '{folder}/train/{{000000..000001}}.tar'"
    command = f"train.model={{name: tarmac/digits, command: [{words}]}}"
    assert main(["preflight", str(config), *changes, "--set", command, "--json"]) == 1
    finding = json.loads(capsys.readouterr().out)["findings"][0]
    assert finding["code"] == "keys.mismatch"
    assert finding["where"]["rule"].startswith("open_clip_train/data.py:"), "the installed trainer's own line"


def test_webdataset_1_is_named_with_the_command_that_mends_it(folder: Path) -> None:
    python, reason = webdataset_1()
    if reason is not None:
        pytest.skip(reason)
    write_tars(folder / "train", ("jpg", "txt"), tars=4, each=16)
    found = preflight_command(open_clip(PATTERN, f"{OPTIONS} --train-num-samples 64", python), folder)
    finding = found.report.findings[0]
    assert finding.code == "version.webdataset"
    assert finding.evidence["problem"].startswith("webdataset 1.")
    assert finding.command == f"{python} -m pip install 'webdataset>=0.2.5,<1'"


def test_rules_are_those_that_the_installed_pipeline_carries_out(folder: Path) -> None:
    """Undecodable JSON, one image of an unknown kind, and a worker without a batch, all by execution."""
    write_tars(folder / "train", ("jpg", "txt", "json"), tars=3, each=6, json=b"{torn")
    write_tars(folder / "mixed", ("jpg", "txt"), tars=3, each=6)
    python = sys.executable
    torn = preflight_command(open_clip("train/{000000..000002}.tar", OPTIONS, python), folder)
    codes = {one.code: one for one in torn.report.findings}
    assert codes["json.conflict"].severity == "error"
    assert "`json` does not decode" in codes["json.conflict"].evidence["problem"]
    assert codes["count.mismatch"].evidence["problem"].startswith("the trainer ends at once")
    starved = preflight_command(
        open_clip("mixed/{000000..000002}.tar", f"{OPTIONS} --batch-size 8 --train-num-samples 18", python),
        folder,
    )
    found = {one.code: one for one in starved.report.findings}
    assert "1 of 2 workers" in found["worker.starved"].evidence["problem"]
    assert found["schedule.warmup"].severity == "warning"
    assert not starved.report.ok
