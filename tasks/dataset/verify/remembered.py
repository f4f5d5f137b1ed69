"""When each version of a dataset was verified, and at which level, so that no pipeline verifies it twice.

`verified.jsonl` lies in the dataset's folder, because a version never changes; verify appends a line for each
version that it has read. A tar counts as verified if it is the same file as one of a version that was found
sound, and was not written since. Damage that leaves size and time of a file alone is for `tarmac verify`,
which always reads. A copy of a dataset has other files, so nothing of it counts as verified.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from tasks.core.files import append_line, digest, read_lines
from tasks.core.findings import Report
from tasks.dataset.verify.findings import Level
from tasks.dataset.version.layout import MANIFEST, VERIFIED, VERSION_NAME, VERSIONS

LEVELS: tuple[Level, ...] = ("quick", "default", "full")
TICK_S = 0.05
"""By at most this much, a file's time is behind the clock."""
_FileId = tuple[int, int]


@dataclass(frozen=True)
class Verification:
    """One look at a version: `at` is when it began, in Unix seconds, `inode` and `files` identify what was
    read, and `unsound` names the shards in which something was found."""

    version: str
    level: Level
    at: float
    inode: int
    files: str
    unsound: Sequence[str] = ()


def remember(version: Path, level: Level, began: float, report: Report) -> None:
    """Record that a version's folder was verified from `began` on, unless it lies in no dataset, only its
    outside was looked at, or the dataset cannot be written. Findings beside the tars leave nothing sound."""
    if level == "quick" or not _is_in_dataset(version):
        return
    unsound = sorted({str(finding.where.get("shard", "")) for finding in report.findings})
    with suppress(OSError):
        files = _files(version)
        seen = Verification(version.name, level, began, _inode(version), _listing(files), unsound)
        append_line(version.parent.parent / VERIFIED, json.dumps(asdict(seen)))


def found_sound(version: Path, level: Level) -> Verification | None:
    """Return the verification at this level or a higher one that found the whole version sound, if it is as
    it was then. This reads the times and sizes of its files, and no content."""
    seen = _last(version, level)
    if seen is None or seen.unsound:
        return None
    try:
        files = _files(version)
    except OSError:
        return None
    is_same = _listing(files) == seen.files and all(_is_older(one, seen) for _, one in files)
    return seen if is_same else None


def known_shards(version: Path, level: Level) -> set[str]:
    """Return the tars of a version, such as `train/000007.tar`, that were found sound at this level or a
    higher one, in this version or another one of the dataset."""
    if not _is_in_dataset(version):
        return set()
    sound, unsound = set[_FileId](), set[_FileId]()
    try:
        for other in version.parent.iterdir():
            seen = _last(other, level) if VERSION_NAME.fullmatch(other.name) else None
            if seen is None or "" in seen.unsound:
                continue
            for name, one in _tars(other):
                if name in seen.unsound:
                    unsound.add((one.st_dev, one.st_ino))
                elif _is_older(one, seen):
                    sound.add((one.st_dev, one.st_ino))
        return {name for name, one in _tars(version) if (one.st_dev, one.st_ino) in sound - unsound}
    except OSError:
        return set()


def _last(version: Path, level: Level) -> Verification | None:
    """Return the newest verification of a version at this level or a higher one. One at a lower level that
    has found something since makes it worthless."""
    if not _is_in_dataset(version):
        return None
    try:
        rows, inode = read_lines(version.parent.parent / VERIFIED)[0], _inode(version)
    except OSError:
        return None
    for row in reversed(rows):
        with suppress(TypeError, ValueError):  # a line of another Tarmac
            seen = Verification(**row)
            if (seen.version, seen.inode) != (version.name, inode):
                continue
            if LEVELS.index(seen.level) >= LEVELS.index(level):
                return seen
            if seen.unsound:
                return None
    return None


def _is_in_dataset(version: Path) -> bool:
    return version.parent.name == VERSIONS and VERSION_NAME.fullmatch(version.name) is not None


def _inode(version: Path) -> int:
    return (version / MANIFEST).stat().st_ino


def _is_older(file: os.stat_result, seen: Verification) -> bool:
    return file.st_mtime + TICK_S <= seen.at


def _tars(version: Path) -> Iterator[tuple[str, os.stat_result]]:
    return (one for one in _files(version) if one[0].endswith(".tar"))


def _files(version: Path) -> list[tuple[str, os.stat_result]]:
    """Return every file of a version by its name in it, sorted; they lie in its folder or right below it."""
    found: list[tuple[str, os.stat_result]] = []
    for entry in os.scandir(version):
        below: Collection[os.DirEntry[str]] = list(os.scandir(entry)) if entry.is_dir() else [entry]
        found += [(os.path.relpath(one.path, version), one.stat()) for one in below]
    return sorted(found, key=lambda one: one[0])


def _listing(files: Sequence[tuple[str, os.stat_result]]) -> str:
    return digest([(name, one.st_size) for name, one in files])
