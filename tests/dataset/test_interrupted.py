"""A build that is killed goes on where it was and ends as if nothing had happened."""

import errno
import os
import random
from contextlib import closing
from pathlib import Path

import pytest

from tasks.core.errors import DataError
from tasks.core.process import boot_id
from tasks.core.schema import Config
from tasks.dataset import versions
from tasks.dataset.build import convert as convert_module
from tasks.dataset.build.assemble import DRAFT
from tasks.dataset.build.catalogue import Catalogue
from tasks.dataset.build.convert import Conversion, convert, sidecar_path, tar_path, write_rules
from tasks.dataset.build.flushing import NAME, flushed, trust
from tasks.dataset.build.leaves import plan_leaves
from tasks.dataset.build.listing import list_samples
from tasks.dataset.build.run import build
from tasks.dataset.verify.run import verify
from tests.dataset import raw
from tests.soak import kill_builds


@pytest.mark.parametrize("kind", kill_builds.SOURCES)
def test_sigkill_at_random_moments_leaves_no_trace(kind: str, tmp_path: Path) -> None:
    assert kill_builds.episode(kind, tmp_path, random.Random(7), kills=2) >= 2


def test_what_a_killed_build_left_behind_does_no_harm(tmp_path: Path) -> None:
    """Torn temporaries, a tar without sidecar, a sidecar whose tar is cut, a half assembled version."""
    folder, output = tmp_path / "raw", tmp_path / "out"
    raw.pictures(folder, 60)
    whole = build(raw.config(folder, tmp_path / "other"))
    started = build(raw.config(folder, output))
    staging = output / "staging"
    staging.mkdir()
    write_rules(staging, raw.config(folder, output).dataset)
    os.rename(started.version, staging / DRAFT)
    for name in (".0123.77", "0123.tar", "4567.arrow"):
        (staging / name).write_bytes(b"torn")
    result = build(raw.config(folder, output))
    assert raw.contents(result.version) == raw.contents(whole.version)
    assert [path.name for path in (output / "versions").iterdir()] == [result.version.name]


def all_staged(config: Config, staging: Path) -> Catalogue:
    """What a build leaves that was killed before it flushed a shard; its catalogue, open."""
    staging.mkdir(parents=True)
    trust(staging)
    rules = write_rules(staging, config.dataset)
    catalogue = list_samples(config, staging)
    plan_leaves(catalogue, config.dataset)
    for leaf in catalogue.leaves():
        convert(Conversion(staging, rules, leaf.ordinal))
    return catalogue


def test_a_staged_shard_that_is_damaged_is_made_again(tmp_path: Path) -> None:
    folder, output = tmp_path / "raw", tmp_path / "out"
    raw.pictures(folder, 60)
    config = raw.config(folder, output)
    sound = raw.contents(build(raw.config(folder, tmp_path / "other")).version)
    staging = output / "staging"
    with closing(all_staged(config, staging)) as catalogue:
        leaves = list(catalogue.leaves())
    os.truncate(tar_path(staging, leaves[0].digest), 100)
    sidecar_path(staging, leaves[1].digest).write_bytes(b"torn")
    tar_path(staging, leaves[2].digest).unlink()
    assert raw.contents(build(config).version) == sound


def test_after_a_crash_of_the_machine_only_flushed_shards_are_trusted(tmp_path: Path) -> None:
    folder, output = tmp_path / "raw", tmp_path / "out"
    raw.pictures(folder, 60)
    config = raw.config(folder, output)
    sound = raw.contents(build(raw.config(folder, tmp_path / "other")).version)
    staging = output / "staging"
    with closing(all_staged(config, staging)) as catalogue:
        leaves = list(catalogue.leaves())
        assert list(flushed(catalogue, staging, iter([0]))) == [0]
    for leaf in leaves[1:]:
        tar = tar_path(staging, leaf.digest)
        tar.write_bytes(bytes(tar.stat().st_size))
    notes = staging / NAME
    notes.write_text(notes.read_text().replace(boot_id(), "another-boot"))
    trust(staging)
    assert [path.stem for path in staging.glob("*.tar")] == [leaves[0].digest]
    assert raw.contents(build(config).version) == sound


@pytest.mark.parametrize("notes", ["", "torn", "\0" * 40])
def test_a_torn_note_of_what_is_flushed_vouches_for_nothing(tmp_path: Path, notes: str) -> None:
    (tmp_path / NAME).write_text(notes)
    (tmp_path / "0123.tar").touch()
    (tmp_path / "catalogue.sqlite").touch()
    trust(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {NAME, "catalogue.sqlite"}
    (tmp_path / "4567.tar").touch()
    trust(tmp_path)
    assert (tmp_path / "4567.tar").exists(), "this boot's own work"


def test_all_of_a_version_is_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = set()

    def record(descriptor: int) -> None:
        synced.add(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(os, "fsync", record)
    raw.pictures(tmp_path / "raw", 60)
    version = build(raw.config(tmp_path / "raw", tmp_path / "out")).version
    assert {
        path.relative_to(version) for path in version.rglob("*") if path.stat().st_ino not in synced
    } == set()


def test_a_disk_that_fails_while_shards_are_flushed_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith(".tar"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    raw.pictures(tmp_path / "raw", 60)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        build(raw.config(tmp_path / "raw", tmp_path / "out"))
    assert versions.current(tmp_path / "out") is None


def test_a_file_that_took_the_name_of_a_flushed_one_is_not_taken_for_it(tmp_path: Path) -> None:
    trust(tmp_path)
    tar = tmp_path / "0123.tar"
    tar.write_bytes(b"old")
    (tmp_path / NAME).write_text(f"another-boot\n{tar.name}:{tar.stat().st_mtime_ns}\n")
    tar.unlink()
    tar.write_bytes(b"new")
    os.utime(tar, ns=(0, 1_700_000_000_000_000_001))
    trust(tmp_path)
    assert not tar.exists()


def test_what_could_not_be_flushed_is_not_taken_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system tells a write that failed once; asked again it calls the same file flushed."""
    raw.pictures(tmp_path / "raw", 60)
    fsync = os.fsync
    failed = []

    def fail_once(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if path.endswith(".tar") and not failed:
            failed.append(path)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail_once)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        build(raw.config(tmp_path / "raw", tmp_path / "out"))
    assert not Path(failed[0]).exists()
    assert verify(build(raw.config(tmp_path / "raw", tmp_path / "out")).version, "full").ok


def test_a_conversion_that_fails_leaves_no_half_of_a_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw.pictures(tmp_path / "raw", 60)
    config = raw.config(tmp_path / "raw", tmp_path / "out")
    with closing(all_staged(config, tmp_path / "out/staging")) as catalogue:
        leaf = next(catalogue.leaves())
    staging = tmp_path / "out/staging"
    rules = write_rules(staging, config.dataset)
    sidecar_path(staging, leaf.digest).unlink()

    def fail(path: Path, table: object) -> None:
        path.write_bytes(b"torn")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(convert_module, "write_batch", fail)
    with pytest.raises(DataError, match="is full"):
        convert(Conversion(staging, rules, leaf.ordinal))
    assert not [path for path in staging.iterdir() if path.name.startswith(".")]
