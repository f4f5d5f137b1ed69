"""What verify can judge: datasets, versions, and tars of any origin, on this machine or on a web server."""

import gzip
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tasks.core.errors import UsageError
from tasks.core.findings import Finding
from tasks.core.folders import LocalStore
from tasks.dataset.building.builder import build
from tasks.dataset.repair.run import repair
from tasks.dataset.verify.foreign import NO_MANIFEST
from tasks.dataset.verify.tars import holes
from tasks.dataset.verify.verifier import verify
from tasks.dataset.version import versions
from tests.dataset import raw
from tests.dataset.handmade import MEMBERS, write_shard
from tests.dataset.tampering import flip, make_foreign
from tests.web import web_server

LEVELS = ("quick", "default", "full")


@pytest.fixture
def tars(version: Path) -> Path:
    """Nothing but the tars of a version."""
    make_foreign(version)
    return version


def write_tar(path: Path, *keys: str) -> None:
    write_shard(path, [(key, MEMBERS) for key in keys])


def found(path: Any, level: Any = "default") -> list[Finding]:
    return list(verify(path if isinstance(path, str) else str(path), level).findings)


def reported(path: Any, level: Any = "default") -> list[tuple[str, str]]:
    """Codes and the shards or files they are about."""
    return [(one.code, str(one.where.get("shard") or one.where.get("file"))) for one in found(path, level)]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "pattern",
    ["", "train", "train/{000000..000006}.tar", "{train,val}/{000000..000001}.tar", "{train,val}", "*/*.tar", "train/00000?.tar",
     "train/00000[0-2].tar", "train/{000000,000002}.tar", "train/000003.tar", "**/*.tar"],
)  # fmt: skip
def test_foreign_tars_are_sound_however_they_are_named(tars: Path, pattern: str, level: Any) -> None:
    (tars / "train/000000.parquet").write_bytes(b"what img2dataset writes beside")
    (tars / "train/000000_stats.json").write_text("{}")
    report = verify(f"{tars}/{pattern}".rstrip("/"), level)
    assert report.findings == []
    assert {entry["code"] for entry in report.ruled_out} >= {"shard.missing", "shard.truncated"}


@pytest.mark.parametrize("level", LEVELS)
def test_a_pattern_promises_each_of_its_names(tars: Path, level: Any) -> None:
    last = len(list((tars / "train").glob("*.tar")))
    lacking = [("shard.missing", f"{last:06d}.tar"), ("shard.missing", f"{last + 1:06d}.tar")]
    assert reported(f"{tars}/train/{{000000..{last + 1:06d}}}.tar", level) == lacking
    assert reported(f"{tars}/train/{{000000,{last + 1:06d}}}.tar", level) == lacking[1:]


@pytest.mark.parametrize(
    ("names", "lacking"),
    [
        (["0.tar", "1.tar", "3.tar"], ["2.tar"]),
        (["8.tar", "9.tar", "11.tar"], ["10.tar"]),
        (["a-08.tar", "a-10.tar", "b-08.tar", "b-09.tar"], ["a-09.tar"]),
        (["x-00000-of-00003.tar", "x-00002-of-00003.tar"], ["x-00001-of-00003.tar"]),
        (["train/000000.tar", "train/000002.tar", "val/000000.tar"], ["train/000001.tar"]),
        (["17.tar", "4711.tar", "815.tar"], []),
        (["000001.tar", "000002.tar"], []),
        (["a.tar", "b.tar"], []),
    ],
)
def test_holes(names: list[str], lacking: list[str]) -> None:
    assert holes(names) == lacking


def test_a_sizes_json_that_is_torn_or_of_another_form(tars: Path) -> None:
    (tars / "val" / "sizes.json").write_text('{"000000.tar": ')
    assert reported(tars) == [("manifest.invalid", "val/sizes.json")]
    (tars / "val" / "sizes.json").write_text('{"shards": [1, 2]}')
    report = verify(tars)
    assert report.findings == [] and any("val/sizes.json" in one for one in report.not_seen)


@pytest.mark.parametrize("sign", ["manifest.json", "shards.parquet", "build.json", "samples", "index"])
def test_a_folder_is_tarmacs_by_any_of_its_files(dataset: Path, tmp_path: Path, sign: str) -> None:
    version = versions.resolve(dataset).rename(tmp_path / "version")
    for path in version.iterdir():
        if path.name not in (sign, "train", "val"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert {code for code, _ in reported(version)} >= {"manifest.invalid"}
    shutil.rmtree(version / sign) if (version / sign).is_dir() else (version / sign).unlink()
    assert found(version, "full") == []


def test_a_dataset_whose_current_version_is_gone(dataset: Path) -> None:
    version = versions.resolve(dataset)
    name = version.name
    assert found(dataset) == []
    (dataset / "current").unlink()
    assert reported(dataset) == [("manifest.invalid", "current")]
    (dataset / "current").write_text(f"{name}\n")
    assert found(dataset) == [], "as in a bucket, or a copy of one"
    (dataset / "current").write_text("0123456789ab")
    assert reported(dataset) == [("manifest.invalid", "current")]
    (dataset / "current").unlink()
    (dataset / "current").symlink_to("versions/0123456789ab")
    assert reported(dataset) == [("manifest.invalid", "current")]


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, str, str]:
    """A dataset, and the names of its older and its current version."""
    raw.pictures(tmp_path / "raw", 30)
    names = []
    for samples in (10, 20):
        result = build(raw.config(tmp_path / "raw", tmp_path / "data", shard={"samples": samples}))
        versions.publish(tmp_path / "data", result.version, 3)
        names.append(result.version.name)
    return tmp_path / "data", *names  # type: ignore[return-value]


def commands(path: Path | str) -> list[str | None]:
    return [one.command for one in found(path)]


def test_the_version_that_was_judged_is_the_one_to_repair(
    two: tuple[Path, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, old, new = two
    for name in (old, new):
        (dataset / "versions" / name / "train" / "000000.tar").unlink()
    copy = shutil.copytree(dataset / "versions" / old, tmp_path / "my copy")
    monkeypatch.chdir(tmp_path)
    for given, repaired in (
        ("data", "data"),
        ("data/current", str(dataset)),
        (f"data/versions/{new}", str(dataset)),
        (f"data/versions/{old}", f"data/versions/{old}"),
        (f"{dataset}/versions/{old}", f"{dataset}/versions/{old}"),
        ("my copy", "'my copy'"),
    ):
        assert commands(given) == [f"tarmac repair {repaired}"]
    assert repair(copy).ok and repair(f"data/versions/{old}").ok
    assert found(copy) == found(f"data/versions/{old}") == []


def test_a_current_that_leads_nowhere_goes_to_the_newest_version(two: tuple[Path, str, str]) -> None:
    dataset, old, new = two
    back = f"tarmac versions {dataset} rollback"
    for target in (None, "versions/abc", new[::-1]):
        (dataset / "current").unlink()
        if target is not None:
            (dataset / "current").symlink_to(target)
        (finding,) = found(dataset)
        assert finding.command == f"{back} {new}" and new in finding.remedy
        versions.rollback(dataset, new)
        assert found(dataset) == []
    (dataset / "current").unlink()
    assert "none of 2 versions is current" in found(dataset)[0].evidence["problem"]
    (dataset / "versions" / new / "manifest.json").unlink()
    assert commands(dataset) == [f"{back} {old}"], "what cannot be rolled back to is not advised"
    for name in (old, new):
        shutil.rmtree(dataset / "versions" / name)
    (dataset / "current").symlink_to(f"versions/{new}")
    assert commands(dataset) == [None] and "tarmac build CONFIG" in found(dataset)[0].remedy


def test_a_version_that_was_renamed_is_to_be_renamed_back(two: tuple[Path, str, str]) -> None:
    dataset, old, new = two
    backup = (dataset / "versions" / new).rename(dataset / "versions" / "backup")
    (finding,) = found(backup)
    assert finding.where == {"file": "manifest.json"} and f"rename the folder to {new}" in finding.remedy
    assert commands(dataset) == [f"tarmac versions {dataset} rollback {old}"]


def test_an_unfinished_build_is_no_dataset(two: tuple[Path, str, str]) -> None:
    """However sound each of its tars is, it may lack most of them."""
    dataset, _, new = two
    staging = dataset / "staging"
    shutil.move(dataset / "versions" / new / "train", staging)
    (staging / "dataset.json").write_text("{}")
    shutil.rmtree(dataset / "versions")
    (dataset / "current").unlink()
    for given in (dataset, staging, f"{staging}/*.tar", staging / "000000.tar"):
        for level in LEVELS:
            with pytest.raises(UsageError, match=r"a build was interrupted.*tarmac build CONFIG goes on"):
                found(given, level)


def test_a_folder_that_holds_nothing_to_judge(two: tuple[Path, str, str], tmp_path: Path) -> None:
    dataset, *names = two
    (tmp_path / "empty").mkdir()
    for folder, below in (
        (tmp_path / "empty", []),
        (tmp_path / "raw", []),
        (tmp_path, [dataset]),
        (dataset / "versions", [dataset / "versions" / name for name in sorted(names)]),
    ):
        with pytest.raises(UsageError) as caught:
            verify(folder)
        hint = f"; give one of those below it: {', '.join(map(str, below))}" if below else ""
        assert str(caught.value) == f"DATASET: {folder} holds no dataset and no tar{hint}"
    for number in range(5):
        (tmp_path / "many" / f"{number}" / "versions").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"many/0, .*many/1, .*many/2, …$"):
        verify(tmp_path / "many")


def test_parts_of_a_version_are_not_compared_and_the_report_notes_it(two: tuple[Path, str, str]) -> None:
    dataset, old, new = two
    for given, names, command in (
        (f"{dataset}/current/train", [new], f"tarmac verify {dataset} compares"),
        (f"{dataset}/current/train/000000.tar", [new], f"tarmac verify {dataset} compares"),
        (f"{dataset}/versions/{old}/*/*.tar", [old], f"tarmac verify {dataset}/versions/{old} compares"),
        (f"{dataset}/versions/{{{old},{new}}}/train/*.tar", [old, new], f"tarmac verify {dataset} compares"),
    ):
        for level in LEVELS:
            unseen = verify(given, level).not_seen
            assert NO_MANIFEST in unseen and any(command in one for one in unseen)
            assert [
                name for name in (old, new) if f"these lie in version {name}" in "; ".join(unseen)
            ] == names


@pytest.mark.parametrize("level", LEVELS)
def test_without_a_manifest_changed_bytes_are_not_seen(tars: Path, level: Any) -> None:
    unseen = verify(tars, level).not_seen
    assert unseen[-1] == NO_MANIFEST and not any("version" in one for one in unseen)


def test_the_manifest_of_another_dataset_accuses_no_sample(two: tuple[Path, str, str]) -> None:
    dataset, _, new = two
    version = dataset / "versions" / new
    other = replace(versions.read_manifest(version), modality="chat")
    (version / "manifest.json").write_bytes(other.to_bytes())
    lone = shutil.copytree(version, dataset.parent / "lone")
    (lone / "manifest.json").write_bytes(replace(other, digest="0" * 64).to_bytes())
    for folder in (version, lone):
        for level in LEVELS:
            assert {one.code for one in found(folder, level)} == {"manifest.invalid"}
        (folder / "build.json").unlink()
        assert {one.code for one in found(folder, "full")} == {"manifest.invalid"}


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("pipe:cat x.tar", "no command is run"),
        ("pipe:curl https://h/{0..3}.tar", "no command is run"),
        ("hf://datasets/x", "an address of the hub is hf://datasets/OWNER/NAME"),
        ("nowhere", "there is no nowhere"),
        ("nowhere/{000000..000003}.tar", "there is no nowhere"),
        ("nowhere/*.tar", "there is no"),
        ("cat x.tar |", "there is no cat x.tar"),
        ("table.csv", "none of .tar"),
        ("{table,list}.csv", "none of .tar"),
        ("https://127.0.0.1:9/x.tar?a={0..3}", "query"),
        ("s3:///x", "not a valid address"),
    ],
)
def test_what_cannot_be_judged_is_a_usage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("table.csv", "list.csv"):
        (tmp_path / name).write_text("file,caption\n")
    with pytest.raises(UsageError, match=r"^DATASET: ") as caught:
        verify(place)
    assert message in str(caught.value)


def test_gzip_is_read_as_other_loaders_read_it(tmp_path: Path) -> None:
    write_tar(tmp_path / "plain" / "0.tar", *map(str, range(20)))
    data = (tmp_path / "plain" / "0.tar").read_bytes()
    folder = tmp_path / "zipped"
    folder.mkdir()
    for name in ("0.tar.gz", "1.tgz"):
        (folder / name).write_bytes(gzip.compress(data))
    assert set(reported(folder)) == {("sample.duplicate_key", "1.tgz")}
    (folder / "1.tgz").unlink()
    for level in LEVELS:
        assert found(folder, level) == []
    (unseen,) = (one for one in verify(folder, "quick").not_seen if "gzip" in one)
    assert unseen == "whether 1 gzip file can be unpacked whole"
    assert not any("gzip" in one for one in verify(folder).not_seen)
    for wrong in (b"a text\n", data, b"\x1f"):
        (folder / "0.tar.gz").write_bytes(wrong)
        for level in LEVELS:
            assert reported(folder, level) == [("shard.checksum", "0.tar.gz")]
    zipped = gzip.compress(data)
    for cut in (0, 5, len(zipped) // 2, len(zipped) - 400):
        (folder / "0.tar.gz").write_bytes(zipped[:cut])
        assert {code for code, _ in reported(folder)} <= {
            "shard.truncated",
            "sample.missing_member",
        } and reported(folder)
    (folder / "0.tar.gz").write_bytes(zipped[:-4])
    assert reported(folder) == [("shard.checksum", "0.tar.gz")]
    flip(folder / "0.tar.gz", len(zipped) // 2)
    assert ("shard.checksum", "0.tar.gz") in reported(folder)


@pytest.mark.parametrize("level", LEVELS)
def test_a_tar_that_cannot_be_decompressed_is_not_called_sound(tmp_path: Path, level: Any) -> None:
    write_tar(tmp_path / "0.tar", "a")
    (tmp_path / "1.tar.zst").write_bytes(b"\x28\xb5\x2f\xfd" + bytes(100))
    assert reported(tmp_path, level) == [("shard.checksum", "1.tar.zst")]
    assert "zstd" in found(tmp_path, level)[0].evidence["problem"]


def test_a_tar_without_samples(tmp_path: Path) -> None:
    write_tar(tmp_path / "0.tar", "a")
    write_tar(tmp_path / "1.tar")
    assert reported(tmp_path) == [("shard.count", "1.tar")]


def test_keys_in_foreign_tars_cannot_act_on_the_terminal(tmp_path: Path) -> None:
    key = "a\x1b[2Jb"
    write_tar(tmp_path / "0.tar", key)
    write_tar(tmp_path / "1.tar", key)
    (finding,) = found(tmp_path)
    assert finding.where["key"] == "a\\x1b[2Jb"
    assert all(line.isprintable() for line in finding.lines())


@pytest.mark.parametrize("gives_parts", [True, False])
def test_tars_on_a_web_server(tars: Path, gives_parts: bool) -> None:
    flip(tars / "train" / "000001.tar", 0)
    count = len(list((tars / "train").glob("*.tar")))
    with web_server(tars, gives_parts) as (address, _):
        place = f"{address}/train/{{000000..{count:06d}}}.tar?signature=secret"
        for level in LEVELS:
            report = verify(place, level)
            assert "secret" not in json.dumps(report.to_json())
            shards = {(one.code, one.where["shard"]) for one in report.findings}
            assert shards >= {("shard.missing", f"{count:06d}.tar")}
            assert (("shard.checksum", "000001.tar") in shards) is (level != "quick")
        with pytest.raises(UsageError, match="gives no list"):
            verify(f"{address}/train")


@pytest.mark.parametrize("level", LEVELS)
def test_a_version_on_a_web_server(dataset: Path, level: Any) -> None:
    version = versions.resolve(dataset)
    with web_server(version, True) as (address, _):
        report = verify(address, level)
        assert report.findings == [] and any("web server" in one for one in report.not_seen)
        (version / "val" / "000001.tar").unlink()
        flip(version / "samples" / "val.parquet", 200)
        assert reported(address, level) == [
            ("manifest.invalid", "samples/val.parquet"),
            ("shard.missing", "val/000001.tar"),
        ]


def test_a_folder_that_cannot_be_listed(tars: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = LocalStore.entries

    def entries(store: LocalStore, folder: str = "") -> tuple[list[str], list[str]]:
        if folder == "val":
            raise PermissionError(13, "Permission denied", folder)
        return listed(store, folder)

    monkeypatch.setattr(LocalStore, "entries", entries)
    assert {code for code, place in reported(dataset) if place.startswith("val/")} == {"shard.missing"}
    with pytest.raises(UsageError, match=r"^DATASET: .*/val cannot be listed: Permission denied"):
        verify(tars)
