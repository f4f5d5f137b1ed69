"""The command `repair` as a person and a program see it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main
from tests.dataset import damage, raw
from tests.dataset.damage import Built
from tests.disks import small_disk
from tests.flows.birds import output_of
from tests.flows.test_cli import AS_ANYBODY, needs_rights, tarmac


@pytest.fixture
def birds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Built:
    monkeypatch.chdir(tmp_path)
    return damage.pictures(tmp_path, 40)


def repaired(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    return output_of(capsys, "repair", "out", *arguments, code=code)


def repaired_json(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(repaired(capsys, *arguments, "--json", code=code))
    assert value["ok"] is (code == 0) is not any(one["severity"] == "error" for one in value["findings"])
    return value


def test_a_repair_lists_what_it_did(birds: Built, capsys: pytest.CaptureFixture[str]) -> None:
    sound, unseen = repaired(capsys, "--quick").splitlines()
    assert "is sound at level quick: nothing to repair" in sound
    assert unseen == "  not looked at: the bytes within the shards; whether members decode"
    birds.tar(0).unlink()
    damage.flip(birds.tar(1), 600)
    birds.tar(2).rename(birds.tar(2).with_name("000099.tar"))
    shutil.copy(birds.tar(3), birds.version / "mine.tar")
    (birds.version / "index/val.npy").unlink()
    lines = repaired(capsys).splitlines()
    assert {line.split(maxsplit=1)[0] for line in lines[:-2]} == {
        "index/val.npy",
        "train/000000.tar",
        "train/000001.tar",
        "train/000002.tar",
    }
    name = birds.version.name
    assert f"moved to out/repair/extra/{name}/mine.tar" in lines[-2]
    assert lines[-1].startswith(f"✓ repaired 3 shards and 1 table of version {name}: ")
    assert "1 extra moved away, all byte-identical, " in lines[-1]


def test_what_cannot_be_repaired_has_its_reason_and_the_way_on(
    birds: Built, capsys: pytest.CaptureFixture[str]
) -> None:
    birds.tar(0).unlink()
    damage.flip(birds.tar(1), 600)
    damage.without_end(birds.tar(2))
    shutil.move("raw", "away")
    shown = repaired(capsys, code=1)
    assert "✗ train/000000.tar         needs" in shown and "there is no file" in shown
    assert "tarmac build CONFIG" in shown and "tarmac repair out --quarantine" in shown
    assert "✓ repaired 1 shard" in shown
    assert shown.splitlines()[-1] == f"✗ 2 shards of version {birds.version.name} could not be repaired"
    value = repaired_json(capsys, code=1)
    assert [one["shard"] for one in value["failed"]] == ["train/000000.tar", "train/000001.tar"]
    assert value["repaired"] == [] and value["quarantined"] == 0
    assert {"shard.missing", "shard.checksum"} <= {one["code"] for one in value["findings"]}


def test_a_sound_shard_is_converted_again_on_request(
    birds: Built, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = repaired(capsys, "--shard", "1", "--shard", "val/0").splitlines()
    assert {line.split(maxsplit=1)[0] for line in lines[:-1]} == {"train/000001.tar", "val/000000.tar"}
    assert "2 converted again, all byte-identical" in lines[-1]


def test_a_source_that_has_moved_has_its_way_on(birds: Built, capsys: pytest.CaptureFixture[str]) -> None:
    birds.tar(0).unlink()
    shutil.move("raw", "away")
    shown = repaired(capsys, code=1)
    assert f"there is no file {Path('raw/captions.csv').resolve()}\n" in shown, "which starts at the root"
    assert "with its new path: tarmac repair out --config CONFIG" in shown


def test_a_folder_in_a_shards_place_is_moved_and_listed(
    birds: Built, capsys: pytest.CaptureFixture[str]
) -> None:
    damage.folder(birds.tar(0))
    (birds.tar(0) / "mine.txt").write_text("mine")
    name = birds.version.name
    assert f"train/000000.tar         moved to out/repair/extra/{name}/train/000000.tar" in repaired(capsys)


@needs_rights
@pytest.mark.parametrize("what", ["images", "table"])
def test_what_only_this_machine_cannot_read_is_left_and_not_set_aside(birds: Built, what: str) -> None:
    damage.without_end(birds.tar(2))
    birds.tar(0).unlink()
    closed = [Path("raw/captions.csv")] if what == "table" else list(Path("raw").glob("*.png"))
    before = {path: path.stat().st_ino for path in closed}
    for path in closed:
        path.chmod(0)
    found = tarmac("repair", "out", "--quarantine", cwd=Path(), before=AS_ANYBODY)
    for path in closed:
        path.chmod(0o644)
    assert found.returncode == 1 and "✗ train/000000.tar" in found.stdout, found
    assert "Permission denied" in found.stdout and "no sample was set aside" in found.stdout
    assert "bring these" not in found.stdout
    assert not (birds.dataset / "quarantine.jsonl").exists()
    assert {path: path.stat().st_ino for path in closed} == before
    assert birds.repair().ok
    birds.check([birds.tar(2), birds.tar(0)])


@needs_rights
@pytest.mark.parametrize("name", ["build.json", "train", "train/000000.tar"])
def test_what_may_not_be_read_is_not_replaced(birds: Built, name: str) -> None:
    path = birds.version / name
    inode, mode = path.stat().st_ino, path.stat().st_mode
    path.chmod(0)
    found = tarmac("repair", "out", cwd=Path(), before=AS_ANYBODY)
    path.chmod(mode)
    assert found.returncode == 1 and found.stderr.count("\n") == 1, found
    assert f"{name} cannot be read: Permission denied" in found.stderr and "chmod -R u+rX" in found.stderr
    assert path.stat().st_ino == inode
    birds.check()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "12m") as folder:
        yield folder


@pytest.mark.system
@pytest.mark.parametrize("arguments", [[], ["--quarantine"]])
def test_a_full_disk_is_no_bad_data(tmp_path: Path, disk: Path, arguments: list[str]) -> None:
    """There is room for the work itself, and for one of the shards that are lost."""
    raw.pictures(tmp_path / "raw", 40, side=200)
    built = damage.publish(raw.config(tmp_path / "raw", tmp_path / "out", shard={"samples": 8}))
    dataset = shutil.copytree(built.dataset, disk / "out", symlinks=True)
    for tar in list(dataset.glob("versions/*/train/*.tar"))[:4]:
        tar.unlink()
    with (disk / "ballast").open("wb", buffering=0) as file:
        while shutil.disk_usage(disk).free > 1_200_000:
            file.write(bytes(4096))
    found = tarmac("repair", dataset, *arguments, cwd=disk)
    assert found.returncode == 1 and found.stderr.count("is full; make room and run again") == 1, found
    assert not found.stdout and not (dataset / "quarantine.jsonl").exists()
    assert not list(dataset.rglob(".*")), "what was half written does not keep the disk full"
    (disk / "ballast").unlink()
    assert tarmac("repair", dataset, cwd=disk).returncode == 0


def test_what_is_set_aside_is_counted(birds: Built, capsys: pytest.CaptureFixture[str]) -> None:
    damage.flip(birds.tar(1), 600)
    shutil.move("raw", "away")
    shown = repaired(capsys, "--quarantine")
    assert shown.splitlines()[-1] == (
        "✓ training skips 1 sample of this version, set aside in quarantine.jsonl"
    )
    assert repaired_json(capsys, "--quarantine")["quarantined"] == 0, "it is there already"
    shutil.move("away", "raw")
    assert "1 sample is sound again and was taken out of quarantine.jsonl" in repaired(capsys)
    assert repaired_json(capsys)["skipped"] == 0


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
        (["out", "--shard", "99"], "has no train/000099.tar"),
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
