"""A source that has gone, grown or changed since the build: what it still gives is used, the rest is explained."""

from __future__ import annotations

import json
import os
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tasks.core.errors import DataError, UsageError
from tasks.core.files import read_json
from tasks.core.remote import addresses
from tasks.core.schema import Config
from tasks.dataset.building.conversion.staging import redact_config
from tasks.dataset.repair.result import Failed
from tasks.dataset.repair.run import Repaired, repair
from tasks.dataset.repair.workplace import Workplace
from tasks.dataset.version.tables import ArrowBatches
from tests.dataset import damage, raw, tampering
from tests.dataset.damage import Built
from tests.dataset.raw import chat, shards
from tests.web import web_server


def files_of(built: Built, tar: Path) -> list[str]:
    """The raw files of a shard's samples."""
    name = tar.relative_to(built.version).as_posix()
    rows = pa.concat_tables(ArrowBatches(built.version / "inputs.arrow")).to_pylist()
    return [row["file"] for row in rows if row["tar"] == name]


def failed(done: Repaired) -> Failed:
    assert not done.ok
    (one,) = done.failed
    return one


def test_what_has_grown_or_changed_elsewhere_does_not_matter(built: Built, tmp_path: Path) -> None:
    used = set(files_of(built, built.tar(0)))
    for number in range(40):
        path = tmp_path / f"raw/{number:04d}.png"
        if path.name not in used:
            path.write_bytes(raw.png(1000 + number)) if number % 2 else path.unlink()
    rows = (tmp_path / "raw/captions.csv").read_text().splitlines()
    (tmp_path / "raw/captions.csv").write_text(
        "\n".join([rows[0], "new.png,new,label 0", *rows[:0:-1]]) + "\n"
    )
    (tmp_path / "raw/new.png").write_bytes(raw.png(99))
    built.tar(0).unlink()
    assert built.repair().ok
    built.check([built.tar(0)])


def test_new_times_are_no_change(built: Built, tmp_path: Path) -> None:
    """As after a copy of the source to another disk."""
    for path in (tmp_path / "raw").iterdir():
        os.utime(path, (1e9, 1e9))
    built.tar(0).unlink()
    assert built.repair().ok
    built.check([built.tar(0)])


def test_samples_that_are_gone_are_named(built: Built, tmp_path: Path) -> None:
    names = files_of(built, built.tar(0))
    for name in names[:2]:
        (tmp_path / "raw" / name).unlink()
    built.tar(0).unlink()
    damage.flip(built.tar(1))
    done = built.repair()
    one = failed(done)
    assert one.reason.startswith(f"2 of its {len(names)} samples are gone from the source (")
    assert all(name in one.reason for name in names[:2])
    assert "tarmac build" in one.remedy and "--quarantine" in one.remedy
    assert [done.file for done in done.shards] == ["train/000001.tar"], "the others are repaired"
    rows = (tmp_path / "raw/captions.csv").read_text().splitlines()
    (tmp_path / "raw/captions.csv").write_text(
        "\n".join(row for row in rows if not row.startswith(names[3])) + "\n"
    )
    for number, name in enumerate(names[:2]):
        (tmp_path / "raw" / name).write_bytes(raw.png(number))
    assert (
        f"1 of its {len(names)} samples is gone from the source ({names[3]})" in failed(built.repair()).reason
    )


def test_samples_that_have_changed_are_named(built: Built, tmp_path: Path) -> None:
    names = files_of(built, built.tar(0))
    (tmp_path / "raw" / names[0]).write_bytes(raw.png(77, side=20))
    captions = (tmp_path / "raw/captions.csv").read_text()
    number = int(names[1][:4])
    (tmp_path / "raw/captions.csv").write_text(
        captions.replace(f"{names[1]},picture {number},", f"{names[1]},another {number},")
    )
    built.tar(0).unlink()
    one = failed(built.repair())
    assert f"2 of its {len(names)} samples are changed in the source" in one.reason
    assert f"{names[0]}," in one.reason or f"{names[0]})" in one.reason
    assert f"{names[1]}: with the same size and time" in one.reason


def test_a_sample_that_is_rejected_now_is_reported_with_the_reason(built: Built, tmp_path: Path) -> None:
    names = files_of(built, built.tar(0))
    (tmp_path / "raw" / names[0]).write_text("<html>")
    built.tar(0).unlink()
    assert f"({names[0]}: image.not_an_image, " in failed(built.repair()).reason


def test_other_packages_are_named(tmp_path: Path) -> None:
    """The source is as it was, but the version remembers what another encoder made of it."""
    image = {"encode": "jpg"}
    built = damage.pictures(tmp_path, image=image)
    alone = shutil.copytree(built.version, tmp_path / "alone")
    with tampering.taken_apart(alone / "train/000000.tar") as samples:
        name = samples[0][0].key
        samples[0][0].content = raw.png(5, kind="JPEG")
    tampering.forge(alone)
    build = read_json(alone / "build.json")
    build["versions"]["pillow"] = "1.0.0"
    tampering.reseal(alone / "build.json", versions=build["versions"])
    damage.flip(alone / "train/000000.tar", 600)
    reason = failed(repair(alone)).reason
    assert (
        f"1 of its {len(samples)} samples is converted to other bytes though the source is the same" in reason
    )
    assert f"pillow {version('pillow')}, was 1.0.0 ({name}" in reason


def test_a_source_that_is_gone_is_reported_for_each_shard(built: Built, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "raw")
    built.tar(0).unlink()
    damage.flip(built.tar(1))
    done = built.repair()
    assert not done.ok and len(done.failed) == 2 and len(done.findings) >= 2
    assert all("which cannot be read" in one.reason and "captions.csv" in one.reason for one in done.failed)
    assert "needs 1 of its" in done.failed[1].reason


@pytest.mark.parametrize("source", ["shards", "chat"])
def test_a_container_that_is_gone(source: str, tmp_path: Path) -> None:
    if source == "shards":
        made = shards.make(tmp_path / "raw")
        made = shards.config(tmp_path / "raw", output=tmp_path / "out")
        containers = sorted((tmp_path / "raw").glob("*.tar"))
    else:
        made = chat.make(tmp_path / "raw")
        containers = sorted((tmp_path / "raw").glob("*.parquet"))
        dataset = made.dataset.model_copy(update={"output": tmp_path / "out"})
        made = made.model_copy(update={"dataset": dataset})
    built = damage.publish(damage.small(made))
    for tar in built.tars:
        tar.unlink()
    containers[0].unlink()
    done = built.repair()
    assert len(done.shards) == 3 and len(done.failed) == 3
    assert all("1 of its 1 sample is gone from the source" in one.reason for one in done.failed)


def test_only_the_remembered_containers_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tasks.dataset.sources.shards import Shards

    for number in range(4):
        (tmp_path / "raw").mkdir(exist_ok=True)
        (tmp_path / f"raw/{number:05d}.tar").write_bytes(shards.tar_bytes(shards.pairs(3 * number, 3)))
    built = damage.publish(damage.small(shards.config(tmp_path / "raw", output=tmp_path / "out")))
    built.tar(0).unlink()
    read = []
    items = Shards.items
    monkeypatch.setattr(Shards, "items", lambda self, one: read.append(one.name) or items(self, one))
    assert built.repair().ok
    assert read == files_of(built, built.tar(0))
    built.check([built.tar(0)])


def test_private_samples_are_counted_and_not_named(tmp_path: Path) -> None:
    built = damage.pictures(tmp_path, private=True)
    name = files_of(built, built.tar(0))[0]
    (tmp_path / "raw" / name).unlink()
    built.tar(0).unlink()
    reason = failed(built.repair()).reason
    assert name not in reason and reason.startswith("1 of its")


def with_source(config: Config, **changes: Any) -> Config:
    source = config.dataset.all_sources[0].model_copy(update=changes)
    return config.model_copy(update={"dataset": config.dataset.model_copy(update={"source": source})})


def test_relative_paths_are_kept_as_absolute_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    built = damage.pictures(Path())
    built.tar(0).unlink()
    monkeypatch.chdir("/")
    assert repair(tmp_path / "out").ok
    monkeypatch.chdir(tmp_path)
    built.check([built.tar(0)])


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("https://user:s3cr3t@host/x/{000..041}.tar", "https://host/x/{000..041}.tar"),
        ("https://host/x.tar?X-Amz-Signature=cafe42", "https://host/x.tar"),
        ("s3://bucket/x/*.tar", None),
    ],
)
def test_no_password_or_signature_is_kept(path: str, shown: str | None, tmp_path: Path) -> None:
    config = shards.config(path, output=tmp_path / "out", source={"join": [{"path": path}]})
    block, cut = redact_config(config.dataset)
    if shown is None:
        assert (block["source"]["path"], cut) == (path, [])
        return
    assert block["source"]["path"] == block["source"]["join"][0]["path"] == shown
    assert cut == ["dataset.source.path", "dataset.source.join[0].path"]
    assert "s3cr3t" not in json.dumps(block) and "cafe42" not in json.dumps(block)


def test_an_address_that_is_not_kept_has_to_be_given(built: Built) -> None:
    tampering.reseal(built.version / "build.json", cut=["dataset.source.path"])
    (built.version / "index/train.npy").unlink()
    built.tar(0).unlink()
    damage.without_end(built.tar(1))
    done = built.repair()
    one = failed(done)
    assert one.file == "train/000000.tar" and "dataset.source.path" in one.reason and "--config" in one.remedy
    assert [one.file for one in (*done.tables, *done.shards)] == ["index/train.npy", "train/000001.tar"]
    assert built.repair(config=built.config).ok
    built.check(built.tars[:2])


def test_a_config_may_give_the_new_path_of_the_source(built: Built, tmp_path: Path) -> None:
    shutil.move(tmp_path / "raw", tmp_path / "moved")
    built.tar(0).unlink()
    assert not built.repair().ok
    assert built.repair(config=with_source(built.config, path=str(tmp_path / "moved/captions.csv"))).ok
    built.check([built.tar(0)])


def test_one_of_two_sources_is_gone(tmp_path: Path) -> None:
    rows = []
    for name in ("a", "b"):
        raw.pictures(tmp_path / name, 8)
        for path in (tmp_path / name).glob("*.png"):
            path.rename(path.with_name(f"{name}{path.name}"))
        rows = [(f"{name}{row:04d}.png", f"picture {row}", "x") for row in range(8)]
        raw.write_table(tmp_path / name, rows)
    tables = [
        {
            "kind": "table",
            "path": str(tmp_path / name / "captions.csv"),
            "image": "file",
            "caption": "caption",
        }
        for name in ("a", "b")
    ]
    config = raw.config(Path("unused"), tmp_path / "out", source=None, sources=tables)
    built = damage.publish(damage.small(config))
    shutil.move(tmp_path / "b", tmp_path / "away")
    for tar in built.tars:
        tar.unlink()
    done = built.repair()
    assert len(done.shards) == 8 and len(done.failed) == 8
    assert all("needs 1 of its 1 sample" in one.reason and "sources[1]" in one.reason for one in done.failed)
    shutil.move(tmp_path / "away", tmp_path / "b")
    assert built.repair().ok
    built.check(built.tars)


def test_a_folder_that_may_not_be_written_is_one_line(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied", str(built.tar(0)))

    damage.without_end(built.tar(0))
    monkeypatch.setattr(Workplace, "link", refused)
    with pytest.raises(DataError, match=r"000000\.tar: Permission denied; check its permissions"):
        built.repair()
    monkeypatch.undo()
    assert built.repair().ok
    built.check([built.tar(0)])


def urls(tmp_path: Path, address: str) -> Built:
    """Images that lie on a server, four to a shard."""
    rows = [(f"{address}/{number:04d}.png", f"picture {number}", "x") for number in range(8)]
    raw.write_table(tmp_path / "table", rows)
    config = raw.config(tmp_path / "table", tmp_path / "out", shard={"samples": 4}, splits={})
    return damage.publish(config)


def test_a_server_that_is_down_costs_no_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "PAUSE_S", 0.01)
    raw.pictures(tmp_path / "raw", 8)
    with web_server(tmp_path / "raw", gives_parts=False) as (address, _):
        built = urls(tmp_path, address)
    built.tar(0).unlink()
    done = built.repair(quarantines=True)
    one = failed(done)
    assert one.is_environment and address in one.reason and "gone" not in one.reason
    assert "server" in one.remedy and not (built.dataset / "quarantine.jsonl").exists()


def test_what_a_server_no_longer_has_is_gone(tmp_path: Path) -> None:
    raw.pictures(tmp_path / "raw", 8)
    with web_server(tmp_path / "raw", gives_parts=False) as (address, _):
        built = urls(tmp_path, address)
        for path in (tmp_path / "raw").glob("000[0-3].png"):
            path.unlink()
        for tar in built.tars:
            tar.unlink()
        done = built.repair()
    assert done.failed and all("gone from the source" in one.reason for one in done.failed)
    assert not any(one.is_environment for one in done.failed)


def test_a_named_shard_is_converted_again(built: Built) -> None:
    before = built.tar(1).stat().st_ino
    done = built.repair(shards=["1"])
    assert done.ok and [(one.file, one.way) for one in done.shards] == [("train/000001.tar", "converted")]
    assert built.tar(1).stat().st_ino != before
    built.check([built.tar(1)])


def test_a_named_shard_of_another_source_stays(built: Built, tmp_path: Path) -> None:
    (tmp_path / "raw" / files_of(built, built.tar(1))[0]).write_bytes(raw.png(77))
    assert "is changed in the source" in failed(built.repair(shards=["train/000001"])).reason
    built.check()


@pytest.mark.parametrize(("shard", "message"), [("99", "has no train/000099.tar"), ("a/b/c", "is no shard")])
def test_a_shard_that_is_not_there_is_refused(built: Built, shard: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        built.repair(shards=[shard])
