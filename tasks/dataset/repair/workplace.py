"""Which version is repaired, what its files should be, and how a proven file takes its place.

The version's name seals `manifest.json`, the manifest seals what `shards.parquet` records of the tars, and
`build.json` seals every other file and itself. A file that no seal proves is not trusted, however sound it
looks.

The work folder is `DATASET/repair`, or `VERSION.repair` beside a version that lies alone. It is on the same
file system, so that a proven file takes its place by one rename, whatever lay there.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from tasks.core.errors import DataError, UsageError
from tasks.core.files import FULL, blake3_file, fsync_path, unreadable_as_error
from tasks.core.lock import Held, Lease
from tasks.core.stores import is_remote, redact
from tasks.dataset.version import layout, versions
from tasks.dataset.version.build_info import BuildInfo, FileSeal, read_build_info
from tasks.dataset.version.layout import BUILD, LEASE, MANIFEST, SHARDS, VERSION_NAME, VERSIONS
from tasks.dataset.version.manifest import Manifest, content_digest, version_name
from tasks.dataset.version.records import InvalidRecord, parse_record
from tasks.dataset.version.tables import ShardRecord, read_shards


@dataclass(frozen=True)
class Workplace:
    """A version's folder, its dataset's folder unless the version lies alone, and the folder of the work.
    `moved` records where files that belong to no version were moved to, by their names in the version."""

    version: Path
    dataset: Path | None
    work: Path
    moved: dict[str, Path] = field(default_factory=dict, compare=False)

    @property
    def good(self) -> Path:
        """Tars that wait for their place, named by the BLAKE3 that they should have."""
        return self.work / "good"

    @property
    def staging(self) -> Path:
        """The staging folder of the samples that are converted again."""
        return self.work / "staging"

    @property
    def tables(self) -> Path:
        """The folder for the tables that follow from `inputs.arrow`."""
        return self.work / "tables"

    @property
    def again(self) -> Path:
        """A dataset of its own, for a build of the version's tables from the source."""
        return self.work / "again"

    @property
    def extra(self) -> Path:
        """The folder that files which belong to no version are moved to; a repair never removes it."""
        return self.work / "extra" / self.version.name

    @property
    def has_its_name(self) -> bool:
        """Whether the folder's name is a version's, which seals the manifest."""
        return VERSION_NAME.fullmatch(self.version.name) is not None

    @property
    def others(self) -> list[Path]:
        """The dataset's other versions."""
        listed = [] if self.dataset is None else versions.list_versions(self.dataset)
        return [version for version in listed if version.name != self.version.name]

    @contextlib.contextmanager
    def leased(self) -> Iterator[None]:
        """Hold the dataset while the block runs; afterwards only `extra` is left of the work folder.

        DataError that names who else holds the dataset, UsageError where nothing can be written.
        """
        where = self.dataset or self.work
        lease = Lease(where / LEASE)
        try:
            lease.acquire()
        except Held as held:
            raise DataError(f"{held}; repair when it is done") from None
        except OSError as error:
            if error.errno in FULL:
                raise
            raise UsageError(
                f"DATASET: {where} cannot be written ({error.strerror}); check its permissions"
            ) from None
        try:
            yield
            for folder in (self.good, self.staging, self.again, self.tables):
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            lease.release()
            with contextlib.suppress(OSError):  # where something extra is left, or work that was broken off
                self.work.rmdir()

    def require_readable(self) -> None:
        """DataError for a folder or file that this user may not read: it may be sound, so nothing may be
        replaced."""

        def refuse(error: OSError) -> None:
            if isinstance(error, PermissionError):
                command = f"chmod -R u+rX {shlex.quote(str(self.version))}"
                raise DataError(
                    f"{error.filename} cannot be read: {error.strerror}; let its owner give you the right, "
                    f"then repair again: {command}"
                ) from None

        for folder, _, names in os.walk(self.version, onerror=refuse):
            for name in names:
                try:
                    os.close(os.open(Path(folder, name), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
                except OSError as error:
                    refuse(error)

    def temporary(self) -> Path:
        """A new file name, beside the files that wait for their place."""
        self.good.mkdir(parents=True, exist_ok=True)
        return self.good / f".{uuid4().hex}"

    def link(self, good: Path, target: Path) -> None:
        """Make `target` a hard link to `good`; nothing happens where it is one already."""
        with contextlib.suppress(OSError):
            if os.path.samestat(os.lstat(good), os.lstat(target)):
                return
        temporary = self.temporary()
        os.link(good, temporary)
        self.move(temporary, target)

    def copy(self, good: Path, target: Path) -> None:
        """Make `target` a copy of `good`, so that damage to one spares the other."""
        temporary = self.temporary()
        shutil.copyfile(good, temporary)
        fsync_path(temporary)
        self.move(temporary, target)

    def move(self, good: Path, target: Path) -> None:
        """Rename `good` to `target`. A folder that lies there is moved away, or removed where it is empty."""
        for path, is_wrong in ((target.parent, not target.parent.is_dir()), (target, target.is_dir())):
            if is_wrong and os.path.lexists(path) and not path.is_symlink():
                try:
                    path.rmdir()
                except OSError:  # it holds something, or is a file
                    self.move_away(path.relative_to(self.version).as_posix())
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(good, target)
        fsync_path(target.parent)

    def move_away(self, name: str) -> None:
        """Move a file or folder of the version to `extra`, and record that in `moved`."""
        path, kept, number = self.version / name, self.extra / name, 0
        while os.path.lexists(kept):
            number += 1
            kept = self.extra / f"{name}.{number}"
        kept.parent.mkdir(parents=True, exist_ok=True)
        os.rename(path, kept)
        fsync_path(kept.parent)
        fsync_path(path.parent)
        self.moved[name] = kept


def find(path: str | Path) -> Workplace:
    """The workplace of a dataset's current version, or of a version; UsageError for what is neither."""
    if is_remote(str(path)):
        raise UsageError(f"DATASET: {redact(str(path))} is remote; repair it on the machine that built it")
    target = Path(path).resolve()
    with unreadable_as_error():
        if not layout.looks_like_version(target):
            target = _current(target, path)
    dataset = target.parent.parent if target.parent.name == VERSIONS else None
    work = target.with_name(f"{target.name}.repair") if dataset is None else dataset / "repair"
    return Workplace(target, dataset, work)


def _current(dataset: Path, given: str | Path) -> Path:
    version = layout.linked(dataset)
    if version is not None:
        return version.resolve()
    if not dataset.is_dir():
        problem = "is no folder" if dataset.exists() else "is not there"
        raise UsageError(f"DATASET: {given} {problem}; give a dataset's folder or a version's")
    names = [version.name for version in versions.list_versions(dataset)]
    if names:
        raise UsageError(
            f"DATASET: {given} has no current version; give one of DATASET/versions/: {', '.join(names)}"
        )
    raise UsageError(
        f"DATASET: {given} holds no version that Tarmac built, so nothing says what its tars should be; make "
        "a dataset of what is sound in them: tarmac build with dataset.source: {kind: shards, path: …}"
    )


def inode(path: Path) -> tuple[int, int]:
    """Device and inode, which a file has in common under all its names; OSError."""
    found = path.stat()
    return found.st_dev, found.st_ino


def is_file(path: Path) -> bool:
    """Whether a regular file has this name: no link, folder or pipe."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


@dataclass(frozen=True)
class Seals:
    """What is proven of a version. `manifest` is None where it is not proven, `shards` (by name) where
    nothing proves them. `info` is None where build.json is lost, and `lost` is the reason then."""

    manifest: Manifest | None
    shards: Mapping[str, ShardRecord] | None
    info: BuildInfo | None
    lost: str = ""

    @property
    def files(self) -> Mapping[str, FileSeal]:
        """The seal of each file beside the tars; empty where build.json is lost."""
        return {} if self.info is None else self.info.files


def read_seals(place: Workplace) -> Seals:
    """Read what is proven in the version's folder; the problem of a lost build.json is kept in `lost`."""
    version = place.version
    info, lost = None, ""
    try:
        info = read_build_info(version)
        manifest_seal = info.files[MANIFEST].blake3 if MANIFEST in info.files else ""
        if place.has_its_name and not manifest_seal.startswith(version.name):
            info, lost = None, f"{version / BUILD} belongs to another version"
    except DataError as error:
        lost = str(error)
    files = {} if info is None else info.files
    manifest = _manifest(place, files)
    shards = None
    with contextlib.suppress(DataError):
        listed = read_shards(version)
        is_proven = manifest is not None and manifest.digest == content_digest(
            (shard.name, shard.blake3) for shard in listed
        )
        if is_proven or (SHARDS in files and is_sealed(version / SHARDS, files[SHARDS])):
            shards = {shard.name: shard for shard in listed}
    return Seals(manifest, shards, info, lost)


def is_sealed(path: Path, seal: FileSeal) -> bool:
    """Whether the file has the size and the BLAKE3 that it was built with."""
    try:
        return is_file(path) and path.stat().st_size == seal.bytes and blake3_file(path) == seal.blake3
    except OSError:
        return False


def _manifest(place: Workplace, files: Mapping[str, FileSeal]) -> Manifest | None:
    path = place.version / MANIFEST
    try:
        content = path.read_bytes()
        manifest = parse_record(Manifest, content)
    except (OSError, InvalidRecord):
        return None
    if place.has_its_name:
        return manifest if version_name(content) == place.version.name else None
    return manifest if MANIFEST in files and is_sealed(path, files[MANIFEST]) else None
