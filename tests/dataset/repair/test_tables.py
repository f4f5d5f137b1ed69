"""The files beside the tars are made again and proven, and nothing is invented."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tasks.core.errors import UsageError
from tasks.core.files import read_json
from tasks.dataset.building.builder import is_up_to_date
from tasks.dataset.repair.run import repair
from tasks.dataset.version import versions
from tests.dataset import damage, raw
from tests.dataset.damage import Built

TABLES = (
    "manifest.json",
    "shards.parquet",
    "rejects.parquet",
    "inputs.arrow",
    "index/train.npy",
    "samples/val.parquet",
    "train/sizes.json",
)
SPOILT = ("flipped", "gone", "a folder")


def rejecting(root: Path) -> Built:
    raw.pictures(root / "raw", 40)
    (root / "raw/0003.png").write_text("<html>")
    (root / "raw/0017.png").unlink()
    config = raw.config(
        root / "raw",
        root / "out",
        shard={"samples": 4},
        reject_budget=0.5,
        filter={"label": ["label 0", "label 1"]},
    )
    return damage.publish(config)


@pytest.fixture
def with_rejects(tmp_path: Path) -> Built:
    return rejecting(tmp_path)


@pytest.fixture(scope="module")
def mended(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """For tests that leave it as it was."""
    return rejecting(tmp_path_factory.mktemp("mended"))


@pytest.mark.parametrize(
    ("name", "how"),
    [
        pytest.param(name, how, marks=[] if number % len(SPOILT) == place else pytest.mark.proof)
        for number, name in enumerate(TABLES)
        for place, how in enumerate(SPOILT)
    ],
)
def test_a_table_is_made_again(mended: Built, name: str, how: str) -> None:
    damage.DAMAGES[how](mended.version / name)
    done = mended.repair()
    assert done.ok and [one.file for one in done.tables] == [name]
    mended.check()
    assert is_up_to_date(mended.config) == mended.version


@pytest.mark.parametrize("name", [name for name in TABLES if name not in ("inputs.arrow", "rejects.parquet")])
def test_what_follows_from_the_other_tables_needs_no_source(
    with_rejects: Built, tmp_path: Path, name: str
) -> None:
    damage.flip(with_rejects.version / name)
    shutil.rmtree(tmp_path / "raw")
    assert with_rejects.repair().ok
    with_rejects.check()


def test_all_tables_at_once(with_rejects: Built) -> None:
    for name in TABLES:
        (with_rejects.version / name).unlink()
    damage.flip(with_rejects.tar(0))
    with_rejects.tar(1).unlink()
    done = with_rejects.repair()
    assert done.ok and len(done.tables) == len(TABLES)
    with_rejects.check(with_rejects.tars[:2])


def test_what_only_the_source_holds_is_not_invented(with_rejects: Built, tmp_path: Path) -> None:
    name = "inputs.arrow"
    (with_rejects.version / name).unlink()
    shutil.move(tmp_path / "raw", tmp_path / "away")
    done = with_rejects.repair()
    assert not done.ok and not done.tables
    (failed,) = done.failed
    assert failed.file == name and "captions.csv" in failed.reason and "tarmac build" in failed.remedy
    assert not (with_rejects.version / name).exists()
    shutil.move(tmp_path / "away", tmp_path / "raw")
    (tmp_path / "raw/0021.png").write_bytes(raw.png(2121))
    (failed,) = with_rejects.repair().failed
    assert "the source is not what it was" in failed.reason


def test_shards_are_repaired_without_inputs_and_source_of_the_rest(built: Built, tmp_path: Path) -> None:
    """Index and samples give the keys by which the samples of a shard are looked for."""
    (built.version / "inputs.arrow").unlink()
    (tmp_path / "raw/new.png").write_bytes(raw.png(99))
    with (tmp_path / "raw/captions.csv").open("a") as file:
        file.write("new.png,a new one,label 1\n")
    damage.flip(built.tar(0))
    built.tar(1).unlink()
    done = built.repair()
    assert [one.file for one in done.failed] == ["inputs.arrow"] and not done.ok
    assert [one.way for one in done.shards] == ["converted", "converted"]
    contents = raw.contents(built.version, without=("build.json",))
    assert contents == {name: blake3 for name, blake3 in built.whole.items() if name != "inputs.arrow"}


def test_a_table_of_another_version_is_copied(built: Built, tmp_path: Path) -> None:
    rows = read_json(built.version / "build.json")["files"]
    other = built.another()
    shared = [
        name
        for name, stated in read_json(other / "build.json")["files"].items()
        if stated == rows[name] and name.startswith(("index/", "samples/", "rejects"))
    ]
    (built.version / shared[0]).unlink()
    shutil.rmtree(tmp_path / "raw")
    done = repair(built.version)
    assert [(one.file, one.how) for one in done.tables] == [(shared[0], f"copied from version {other.name}")]
    assert not (built.version / shared[0]).samefile(other / shared[0])


WHY = {"cut": "is torn", "gone": "is missing", "emptied": "is torn", "garbled": "is torn"}


@pytest.mark.parametrize("name", WHY)
def test_a_lost_build_json_is_written_again_with_the_config(built: Built, name: str) -> None:
    build = built.version / "build.json"
    before = read_json(build)
    damage.DAMAGES[name](build)
    done = built.repair()
    assert not done.ok and "--config" in done.failed[0].remedy and done.failed[0].file == "build.json"
    assert done.failed[0].reason.startswith("its config is lost: ") and WHY[name] in done.failed[0].reason
    assert built.repair(config=built.config).ok
    after = read_json(build)
    for key in ("files", "dataset", "name", "private", "filtered"):
        assert after[key] == before[key]
    assert is_up_to_date(built.config) == built.version
    damage.flip(built.tar(0))
    assert built.repair().ok, "the config is kept again"
    built.check([built.tar(0)])


def test_a_lost_build_json_is_made_from_that_of_another_version(built: Built) -> None:
    built.another()
    (built.version / "build.json").unlink()
    assert repair(built.version).ok
    assert read_json(built.version / "build.json")["dataset"]["output"] == str(built.dataset)


def test_a_repair_leaves_the_order_of_versions(built: Built) -> None:
    other = built.another()
    listed = versions.list_versions(built.dataset)
    os.truncate(built.version / "index/val.npy", 100)
    build = built.version / "build.json"
    time_ns = build.stat().st_mtime_ns
    build.write_text("{")
    os.utime(build, ns=(time_ns, time_ns))
    assert repair(built.version).ok
    assert versions.list_versions(built.dataset) == listed and listed[0] == other


def test_a_forged_table_is_not_believed(built: Built) -> None:
    """Tables that agree with each other but not with the version's name are all made again."""
    other = built.another()
    for name in ("manifest.json", "shards.parquet", "build.json"):
        shutil.copy(other / name, built.version / name)
    assert not repair(built.version).ok
    assert repair(built.version, config=built.config).ok
    built.check()


@pytest.mark.parametrize("key", ["config_digest", "name", "filtered"])
def test_a_manifest_is_not_believed_because_it_can_be_read(with_rejects: Built, key: str) -> None:
    path = with_rejects.version / "manifest.json"
    value = read_json(path)
    path.write_text(json.dumps({**value, key: 7 if key == "filtered" else "0" * 64}))
    assert with_rejects.repair().ok
    with_rejects.check()


def test_a_config_of_other_rules_is_refused(built: Built) -> None:
    image = built.config.dataset.image.model_copy(update={"max_side": 8})
    dataset = built.config.dataset.model_copy(update={"image": image})
    with pytest.raises(UsageError, match=r"--config: .*dataset\.image\.max_side"):
        built.repair(config=built.config.model_copy(update={"dataset": dataset}))


def test_a_version_that_nothing_names_is_not_invented(built: Built, tmp_path: Path) -> None:
    alone = shutil.copytree(built.version, tmp_path / "alone")
    (alone / "manifest.json").unlink()
    (alone / "build.json").unlink()
    done = repair(alone, config=built.config)
    assert not done.ok and not done.tables
    assert "nothing says which version it was" in done.failed[0].reason
