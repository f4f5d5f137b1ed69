import contextlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tasks.core import lock
from tasks.core.errors import DataError, UsageError
from tasks.core.lock import Lease
from tasks.dataset.building.builder import build
from tasks.dataset.version import versions
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
        result = build(raw.config(folder, tmp_path / "out"), accept_loss=True)
        versions.publish(tmp_path / "out", result.version, keep=9)
        os.utime(result.version / "build.json", ns=(9 - number, 9 - number))  # as a copy may leave it
    return tmp_path / "out"


@pytest.fixture
def output(five: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(five, tmp_path / "out", symlinks=True))


def names(output: Path) -> list[str]:
    return [version.name for version in versions.list_versions(output)]


def test_publish_switches_by_a_relative_link(output: Path) -> None:
    newest, older = versions.list_versions(output)[:2]
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


def test_publish_sweeps_what_a_killed_prune_left(output: Path) -> None:
    newest = versions.list_versions(output)[0]
    shutil.copytree(newest, newest.with_name(".pruned-" + newest.name))
    with Lease(output / "lease.json"):
        versions.publish(output, newest, keep=9)
        assert len(list(newest.parent.glob(".*"))) == 1, "a build may be using them"
    versions.publish(output, newest, keep=9)
    assert list(newest.parent.glob(".*")) == []


def test_a_version_that_is_gone_is_not_published(output: Path) -> None:
    newest, older = versions.list_versions(output)[:2]
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
    versions.publish(output, versions.list_versions(output)[1], keep=9)
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
def test_a_manifest_that_cannot_be_read_is_named(output: Path, content: str) -> None:
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
def test_a_rollback_reports_a_full_disk(output: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "2m") as disk:
        dataset = shutil.copytree(output, disk / "out", symlinks=True)
        with (disk / "ballast").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        before = versions.current(dataset)
        with pytest.raises(DataError, match="is full; make room"):
            versions.rollback(dataset, names(dataset)[1])
        assert versions.current(dataset) == before


def aged(path: Path) -> None:
    path.write_text("x")
    os.utime(path, (1, 1))


@pytest.mark.parametrize("made", [False, True])
def test_a_folder_without_versions_is_left_alone(tmp_path: Path, made: bool) -> None:
    home = tmp_path / "home"
    if made:
        home.mkdir()
        aged(home / ".lease.json.12.34")
    for change in (lambda: versions.prune(home, 1), lambda: versions.rollback(home, "9c41")):
        with pytest.raises(UsageError, match="no version"):
            change()
    assert home.exists() == made
    assert not made or [path.name for path in home.iterdir()] == [".lease.json.12.34"]


def test_a_copy_has_the_order_of_the_original(output: Path) -> None:
    before = names(output)
    built = [json.loads((output / "versions" / name / "build.json").read_text())["built"] for name in before]
    assert built == sorted(built, reverse=True)
    for number, name in enumerate(before):
        os.utime(output / "versions" / name / "build.json", (number, number))
    assert names(output) == before
    (output / "versions" / before[1] / "build.json").write_text('{"built": NaN}')
    assert names(output)[0] == before[1], "its file is the newest, and holds no other time"


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_a_current_that_is_no_link_is_refused_before_any_change(output: Path, kind: str) -> None:
    newest = versions.list_versions(output)[0]
    (output / "current").unlink()
    if kind == "folder":
        shutil.copytree(newest, output / "current")
    else:
        (output / "current").write_text("somebody's work")
    before = sorted(path.name for path in output.iterdir())
    for change in (
        lambda: versions.publish(output, newest, 1),
        lambda: versions.rollback(output, newest.name),
        lambda: versions.prune(output, 1),
    ):
        with pytest.raises(UsageError, match=rf"current is a {kind} where a link belongs.*; move it away"):
            change()
    with pytest.raises(UsageError, match="move it away"):
        build(raw.config(output.parent / "raw", output))
    assert sorted(path.name for path in output.iterdir()) == before
    assert len(names(output)) == 5


def test_a_version_that_lacks_a_tar_is_not_rolled_back_to(output: Path) -> None:
    newest, older = versions.list_versions(output)[:2]
    (older / "train/000000.tar").unlink()
    with pytest.raises(DataError, match=rf"lacks tars.*: tarmac repair .*{older.name}$"):
        versions.rollback(output, older.name)
    assert versions.current(output) == newest


def test_a_pin_ends_with_its_run(output: Path, tmp_path: Path) -> None:
    all_names, runs = names(output), tmp_path / "runs"
    (runs / "kept").mkdir(parents=True)
    for number, run in enumerate((runs / "gone", runs / "kept", tmp_path / "unmounted/runs/x"), 1):
        lock.pin(output, run.name, all_names[number], run)
    (output / "pins/elsewhere").write_text(f"{all_names[2]}\n{runs}/gone\nanother host\n")
    (output / "pins/older").write_text(f"{all_names[4]}\n")
    (output / "pins/.kept.abcd_123.tmp").write_text(f"{all_names[1]}\n")
    kept = {all_names[2]: ["elsewhere", "kept"], all_names[3]: ["x"], all_names[4]: ["older"]}
    assert versions.pinned(output) == kept
    assert versions.prune(output, keep=1) == [all_names[1]]
    assert versions.pinned(output) == kept and not (output / "pins/gone").exists()


def test_a_version_pinned_during_a_prune_stays(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    all_names, rmtree = names(output), shutil.rmtree

    def pin_the_last(folder: Path, **options: Any) -> None:
        (output / "pins").mkdir(exist_ok=True)
        (output / "pins/late").write_text(all_names[4])
        rmtree(folder, **options)

    monkeypatch.setattr(shutil, "rmtree", pin_the_last)
    assert versions.prune(output, keep=1) == sorted(all_names[1:4])
