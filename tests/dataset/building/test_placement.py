"""How a version gets its tars and its place: from which version, by link or copy, beside foreign files."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.core.errors import UsageError
from tasks.core.schema import Config
from tasks.dataset.building.builder import build, is_up_to_date
from tasks.dataset.verify.verifier import verify
from tasks.dataset.version import versions
from tests.dataset import raw
from tests.dataset.building.prepared import pictures, published


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return pictures(tmp_path)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """A folder on another file system."""
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK) or shared.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no other file system here")
    with tempfile.TemporaryDirectory(dir=shared) as folder:
        yield Path(folder)


def moved(path: Path, folder: Path) -> None:
    """Move it into a folder elsewhere and leave a link."""
    path.symlink_to(shutil.move(path, folder / path.name))


@pytest.mark.parametrize("rehash", [False, True])
def test_a_tar_that_was_renamed_is_made_again(config: Config, rehash: bool) -> None:
    version = published(config).version
    sound = raw.contents(version)
    inode = version.stat().st_ino
    os.rename(version / "train/000001.tar", version / "train/000099.tar")
    assert is_up_to_date(config) is None
    assert published(config, rehash=rehash).version == version
    assert raw.contents(version) == sound
    assert version.stat().st_ino == inode, "it was never away while a run may read it"


def test_what_others_put_beside_the_tars_stays(config: Config) -> None:
    version = published(config).version
    for name in ("train/._000000.tar", "train/notes.txt"):
        (version / name).write_text("foreign")
    assert is_up_to_date(config) == version
    inode = version.stat().st_ino
    assert published(config, rehash=True).version == version
    assert version.stat().st_ino == inode
    assert (version / "train/._000000.tar").exists() and (version / "train/notes.txt").exists()


def test_what_cannot_be_linked_is_copied(config: Config, tmp_path: Path, elsewhere: Path) -> None:
    old = published(config).version
    moved(old, elsewhere)
    (tmp_path / "raw/0007.png").write_bytes(raw.png(7007))
    result = build(config)
    assert result.version != old and 0 < result.shards_rewritten < result.shards
    assert verify(result.version).ok
    assert raw.contents(result.version) == raw.contents(
        build(raw.config(tmp_path / "raw", tmp_path / "calm")).version
    )


def test_versions_on_another_file_system_are_reported(config: Config, elsewhere: Path) -> None:
    version = published(config).version
    moved(config.dataset.output / "versions", elsewhere)
    (version / "train/000001.tar").unlink()
    with pytest.raises(UsageError, match=r"^dataset\.output: .*versions lies on another file system"):
        build(config)
    assert (version / "train/000000.tar").exists(), "what was damaged is back in its place"


def test_shards_are_taken_from_the_current_version_first(config: Config, tmp_path: Path) -> None:
    """The second one was built with --rehash from files of the same size and time, so both have the same plan."""
    first = published(config).version
    image = tmp_path / "raw/0042.png"
    before = image.stat()
    image.write_bytes(raw.png(4242).ljust(before.st_size, b"\0"))
    os.utime(image, ns=(before.st_atime_ns, before.st_mtime_ns))
    second = published(config, rehash=True).version
    private = raw.config(tmp_path / "raw", tmp_path / "out", private=True)
    assert first != second and build(private).version == second
    versions.rollback(tmp_path / "out", first.name)
    assert build(private).version == first
