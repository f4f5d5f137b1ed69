"""A build that is killed goes on where it was and ends as if nothing had happened."""

import errno
import os
import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tasks.core.errors import DataError
from tasks.core.schema import Config
from tasks.dataset.building.builder import build
from tasks.dataset.building.conversion import convert as convert_module
from tasks.dataset.building.conversion.assemble import DRAFT
from tasks.dataset.building.conversion.convert import Conversion, convert
from tasks.dataset.building.conversion.staging import (
    remove_staging,
    require_own,
    sidecar_path,
    tar_path,
    write_rules,
)
from tasks.dataset.building.listed.catalogue import Catalogue
from tasks.dataset.verify.verifier import verify
from tasks.dataset.version import versions
from tests.dataset import raw
from tests.dataset.building.prepared import changed, pictures, planned
from tests.soak import kill_builds


@pytest.mark.parametrize("kind", ["files", pytest.param("containers", marks=pytest.mark.proof)])
def test_sigkill_at_random_moments_leaves_no_trace(kind: str, tmp_path: Path) -> None:
    assert kill_builds.episode(kind, tmp_path, random.Random(7), kills=1) >= 1


def test_what_a_killed_build_left_behind_does_no_harm(tmp_path: Path) -> None:
    """Torn temporaries, a tar without sidecar, a sidecar whose tar is cut, a half assembled version."""
    config, output = pictures(tmp_path), tmp_path / "out"
    whole = build(changed(config, output=tmp_path / "other"))
    started = build(config)
    staging = output / "staging"
    staging.mkdir()
    write_rules(staging, config.dataset)
    os.rename(started.version, staging / DRAFT)
    for name in (".0123.77", "0123.tar", "4567.arrow"):
        (staging / name).write_bytes(b"torn")
    result = build(config)
    assert raw.contents(result.version) == raw.contents(whole.version)
    assert [path.name for path in (output / "versions").iterdir()] == [result.version.name]


def all_staged(config: Config, staging: Path) -> Catalogue:
    """Leave what a build leaves that is killed before it assembles a version; return its catalogue, open."""
    staging.mkdir(parents=True)
    rules = write_rules(staging, config.dataset)
    catalogue = planned(config, staging)
    for shard in catalogue.shards():
        convert(Conversion(staging, rules, (shard.ordinal,)))
    return catalogue


def test_a_removal_of_the_staging_folder_that_is_cut_off_is_taken_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever file was the last one removed, the next build knows the folder as a build's."""
    config, unlink = pictures(tmp_path), os.unlink
    for cut in range(5):
        staging = tmp_path / f"staging-{cut}"
        staging.mkdir()
        write_rules(staging, config.dataset)
        for name in ("0123.tar", "0123.arrow", "4567.tar", "4567.arrow"):
            (staging / name).touch()
        removed = iter(range(cut))

        def cut_off(*path: Any, removed: Iterator[int] = removed, **options: Any) -> None:
            if next(removed, None) is None:
                raise KeyboardInterrupt
            unlink(*path, **options)

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(os, "unlink", cut_off)
            remove_staging(staging)
        require_own(staging)
        remove_staging(staging)
        assert not staging.exists()


def test_a_staged_shard_that_is_damaged_is_made_again(tmp_path: Path) -> None:
    config, staging = pictures(tmp_path), tmp_path / "out/staging"
    sound = raw.contents(build(changed(config, output=tmp_path / "other")).version)
    with closing(all_staged(config, staging)) as catalogue:
        shards = list(catalogue.shards())
    os.truncate(tar_path(staging, shards[0].digest), 100)
    sidecar_path(staging, shards[1].digest).write_bytes(b"torn")
    tar_path(staging, shards[2].digest).unlink()
    assert raw.contents(build(config).version) == sound


def test_all_of_a_version_is_flushed_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash of the machine a name stands for a whole file: tar, sidecar, or version."""
    synced: set[int] = set()
    renamed: list[str] = []
    replace = os.replace

    def record(descriptor: int) -> None:
        synced.add(os.fstat(descriptor).st_ino)

    def watched(source: Path, target: Path) -> None:
        if Path(target).suffix in (".tar", ".arrow"):
            assert os.stat(source).st_ino in synced, f"{target} is named before it is on disk"
            renamed.append(Path(target).suffix)
        replace(source, target)

    monkeypatch.setattr(os, "fsync", record)
    monkeypatch.setattr(os, "replace", watched)
    version = build(pictures(tmp_path)).version
    assert renamed.count(".tar") == renamed.count(".arrow") == len(list(version.glob("*/*.tar")))
    assert {
        path.relative_to(version) for path in version.rglob("*") if path.stat().st_ino not in synced
    } == set()


def test_what_could_not_be_flushed_is_not_taken_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system reports a failed write once; a second flush of the same file seems to succeed."""
    config = pictures(tmp_path)
    fsync = os.fsync
    failed = []

    def fail_once(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        is_half_written = path.name.startswith(".") and not path.name.startswith(".dataset.json")
        if is_half_written and path.parent.name == "staging" and not failed:
            failed.append(path)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail_once)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        build(config)
    assert failed and not list((tmp_path / "out/staging").glob("*.tar"))
    assert versions.current(tmp_path / "out") is None
    assert verify(build(config).version, "full").ok


def test_a_conversion_that_fails_leaves_no_half_of_a_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = pictures(tmp_path)
    with closing(all_staged(config, tmp_path / "out/staging")) as catalogue:
        shard = next(catalogue.shards())
    staging = tmp_path / "out/staging"
    rules = write_rules(staging, config.dataset)
    sidecar_path(staging, shard.digest).unlink()

    def fail(path: Path, table: object) -> None:
        path.write_bytes(b"torn")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(convert_module, "write_batch", fail)
    with pytest.raises(DataError, match="is full"):
        convert(Conversion(staging, rules, (shard.ordinal,)))
    assert not [path for path in staging.iterdir() if path.name.startswith(".")]
