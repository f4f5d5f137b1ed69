"""The command `repair` as a person and a program see it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main
from tests.dataset import damage
from tests.dataset.damage import Built


@pytest.fixture
def birds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Built:
    monkeypatch.chdir(tmp_path)
    return damage.pictures(tmp_path, 40)


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main(["repair", "out", *arguments]) == code
    return capsys.readouterr().out


def told(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(said(capsys, *arguments, "--json", code=code))
    assert value["ok"] is (code == 0)
    return value


def test_a_repair_says_what_it_did(birds: Built, capsys: pytest.CaptureFixture[str]) -> None:
    assert "is sound at level quick: nothing to repair" in said(capsys, "--quick")
    birds.tar(0).unlink()
    damage.flip(birds.tar(1), 600)
    birds.tar(2).rename(birds.tar(2).with_name("000099.tar"))
    shutil.copy(birds.tar(3), birds.version / "mine.tar")
    (birds.version / "index/val.npy").unlink()
    lines = said(capsys).splitlines()
    assert [line.split(maxsplit=1)[0] for line in lines] == [
        "index/val.npy",
        "train/000002.tar",
        "train/000000.tar",
        "train/000001.tar",
        "mine.tar",
        "✓",
    ]
    assert f"moved to out/repair/extra/{birds.version.name}/mine.tar" in lines[-2]
    name = birds.version.name
    assert lines[-1].startswith(
        f"✓ repaired 3 shards and 1 table of version {name}: 1 renamed back, 2 converted again, "
        "1 extra moved away, all byte-identical, "
    )


def test_what_cannot_be_repaired_has_its_reason_and_the_way_on(
    birds: Built, capsys: pytest.CaptureFixture[str]
) -> None:
    birds.tar(0).unlink()
    damage.flip(birds.tar(1), 600)
    damage.without_end(birds.tar(2))
    shutil.move("raw", "away")
    shown = said(capsys, code=1)
    assert "✗ train/000000.tar         needs" in shown and "there is no file" in shown
    assert "tarmac build CONFIG" in shown and "tarmac repair out --quarantine" in shown
    assert "✓ repaired 1 shard" in shown
    assert shown.splitlines()[-1] == f"✗ 2 shards of version {birds.version.name} could not be repaired"
    value = told(capsys, code=1)
    assert [one["shard"] for one in value["failed"]] == ["train/000000.tar", "train/000001.tar"]
    assert value["repaired"] == [] and value["quarantined"] == 0
    assert {"shard.missing", "shard.checksum"} <= {one["code"] for one in value["findings"]}


def test_what_is_set_aside_is_counted(birds: Built, capsys: pytest.CaptureFixture[str]) -> None:
    damage.flip(birds.tar(1), 600)
    shutil.move("raw", "away")
    shown = said(capsys, "--quarantine")
    assert shown.splitlines()[-1] == (
        "✓ training skips 1 sample of this version, set aside in quarantine.jsonl"
    )
    assert told(capsys, "--quarantine")["quarantined"] == 0, "it is there already"
    shutil.move("away", "raw")
    assert "1 sample is sound again and was taken out of quarantine.jsonl" in said(capsys)
    assert told(capsys)["skipped"] == 0


def test_the_first_twenty_shards_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    built = damage.pictures(tmp_path, 100, shard={"samples": 2})
    for tar in built.tars[:30]:
        damage.without_end(tar)
    assert main(["repair", str(built.dataset)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[20] == "  and 10 more repaired" and len(lines) == 22


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["out", "--quick", "--full"], "--quick, --full: choose one"),
        (["nowhere"], "DATASET: nowhere is not there"),
        (["raw"], "DATASET: raw holds no version that Tarmac built"),
        (["out", "--config", "nowhere.yaml"], "nowhere.yaml: cannot be read"),
        (["out", "--config", "other.yaml"], "dataset.shard.samples"),
    ],
)
def test_a_wrong_command_is_one_line(
    birds: Built, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("other.yaml").write_text(
        "name: test\ndataset:\n  output: out\n  modality: image_text\n"
        "  source: {kind: table, path: raw/captions.csv, image: file, caption: caption}\n"
    )
    assert main(["repair", *arguments]) == 2
    shown = capsys.readouterr()
    assert says in shown.err and shown.err.count("\n") == 1 and not shown.out
    assert not (birds.dataset / "repair").exists()
