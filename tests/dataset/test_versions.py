import contextlib
import os
import shutil
from pathlib import Path

import pytest

from tasks.core.errors import DataError, UsageError
from tasks.core.lease import Lease
from tasks.dataset import versions
from tasks.dataset.build import build
from tests.dataset import raw
from tests.disks import small_disk


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five versions, built and published one after the other, none pruned."""
    tmp_path = tmp_path_factory.mktemp("five")
    folder = tmp_path / "raw"
    rows = raw.pictures(folder, 8)
    for number in range(5):
        rows[0] = (rows[0][0], f"caption {number}", "")
        raw.write_table(folder, rows)
        result = build(raw.config(folder, tmp_path / "out"))
        versions.publish(tmp_path / "out", result.version, keep=9)
        os.utime(result.version / "build.json", ns=(number, number))
    return tmp_path / "out"


@pytest.fixture
def output(five: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(five, tmp_path / "out", symlinks=True))


def names(output: Path) -> list[str]:
    return [version.name for version in versions.listed(output)]


def test_publish_switches_by_a_relative_link(output: Path) -> None:
    newest, older = versions.listed(output)[:2]
    assert versions.current(output) == newest
    assert os.readlink(output / "current") == f"versions/{newest.name}"
    versions.publish(output, older, keep=9)
    assert versions.current(output) == older
    moved = output.rename(output.with_name("moved"))
    assert versions.current(moved) == moved / "versions" / older.name


def test_prune_keeps_the_newest(output: Path) -> None:
    all_names = names(output)
    versions.publish(output, output / "versions" / all_names[0], keep=3)
    assert names(output) == all_names[:3]
    assert sorted(path.name for path in (output / "versions").iterdir()) == sorted(all_names[:3])


def test_prune_never_takes_the_current_or_a_pinned_version(output: Path) -> None:
    all_names = names(output)
    (output / "pins").mkdir()
    (output / "pins" / "a1b2c3").write_text(all_names[3] + "\n")
    versions.publish(output, output / "versions" / all_names[0], keep=1)
    assert names(output) == [all_names[0], all_names[3]]
    (output / "pins" / "a1b2c3").unlink()
    versions.publish(output, output / "versions" / all_names[0], keep=1)
    assert names(output) == [all_names[0]]


def test_prune_never_takes_a_version_newer_than_the_published_one(output: Path) -> None:
    all_names = names(output)
    versions.publish(output, output / "versions" / all_names[2], keep=1)
    assert names(output) == all_names[:3]


def test_publish_sweeps_what_a_killed_prune_or_build_left(output: Path) -> None:
    newest = versions.listed(output)[0]
    for prefix in (".pruned-", ".damaged-"):
        shutil.copytree(newest, newest.with_name(prefix + newest.name))
    with Lease(output / "lease.json"):
        versions.publish(output, newest, keep=9)
        assert len(list(newest.parent.glob(".*"))) == 2, "a build may be at work on them"
    versions.publish(output, newest, keep=9)
    assert list(newest.parent.glob(".*")) == []


def test_a_version_that_is_gone_is_not_published(output: Path) -> None:
    newest, older = versions.listed(output)[:2]
    shutil.rmtree(older)
    before = names(output)
    with pytest.raises(DataError, match=older.name):
        versions.publish(output, older, keep=1)
    assert versions.current(output) == newest
    assert names(output) == before
    assert not (output / "lease.json").exists()


def test_the_switch_is_made_under_the_lease(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = []

    def link(path: Path, target: str) -> None:
        held.append((output / "lease.json").exists())

    monkeypatch.setattr(versions, "link_atomic", link)
    versions.publish(output, versions.listed(output)[1], keep=9)
    assert held == [True]


def test_nothing_is_pruned_while_somebody_builds(output: Path) -> None:
    all_names = names(output)
    with Lease(output / "lease.json"):
        versions.publish(output, output / "versions" / all_names[0], keep=1)
        assert names(output) == all_names
    versions.publish(output, output / "versions" / all_names[0], keep=1)
    assert names(output) == all_names[:1]


def test_resolve_takes_dataset_link_and_version(output: Path, tmp_path: Path) -> None:
    version = versions.current(output)
    assert version is not None
    for path in (output, output / "current", version):
        assert versions.resolve(path) == version
    elsewhere = version.rename(tmp_path / "elsewhere")
    assert versions.resolve(elsewhere) == elsewhere
    (tmp_path / "empty").mkdir()
    for path in (output, tmp_path / "empty", tmp_path / "nowhere"):
        with pytest.raises(UsageError, match=path.name):
            versions.resolve(path)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": "tarmac/2"}', "\udcff"])
def test_a_manifest_that_cannot_be_read_says_so(output: Path, content: str) -> None:
    version = versions.resolve(output)
    path = version / "manifest.json"
    text = path.read_text()
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(DataError, match=r"manifest\.json"):
        versions.read_manifest(version)
    path.write_text(text.replace("tarmac/1", "tarmac/9"))
    with pytest.raises(DataError, match="newer"):
        versions.read_manifest(version)


@pytest.mark.system
def test_a_full_disk_is_told_by_a_rollback(output: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "2m") as disk:
        dataset = shutil.copytree(output, disk / "out", symlinks=True)
        with (disk / "ballast").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        before = versions.current(dataset)
        with pytest.raises(DataError, match="is full; make room"):
            versions.rollback(dataset, names(dataset)[1])
        assert versions.current(dataset) == before


def test_what_killed_processes_left_is_swept(tmp_path: Path) -> None:
    raw.pictures(tmp_path / "raw", 20)
    result = build(raw.config(tmp_path / "raw", tmp_path / "out"))
    gone, alive = tmp_path / "out/.current.4194399.tmp", tmp_path / f"out/.current.{os.getpid()}.tmp"
    old, young = tmp_path / "out/.lease.json.abc.tmp", tmp_path / "out/.lease.json.xyz.tmp"
    for link in (gone, alive):
        link.symlink_to("nowhere")
    for file in (old, young):
        file.write_text("{")
    os.utime(old, (1, 1))
    versions.publish(tmp_path / "out", result.version, 3)
    left = {path.name for path in (tmp_path / "out").glob(".*")}
    assert left == {young.name}, "the switch itself takes its own name"
