"""Files that are proven take their place: by a hard link and one rename, durably, whatever lay there."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from uuid import uuid4

from tasks.core.files import fsync_path
from tasks.dataset.repair.place import Place


def link(place: Place, good: Path, target: Path) -> None:
    """Let `target` be `good`, which keeps its own name; nothing happens where it is that already."""
    if is_same(good, target):
        return
    temporary = _temporary(place)
    os.link(good, temporary)
    _put(place, temporary, target)


def move(place: Place, good: Path, target: Path) -> None:
    """Let `target` be `good`, whose name goes."""
    _put(place, good, target)


def set_aside(place: Place, path: Path, name: str) -> Path:
    """Move a file or folder of the version to where what is extra stays and note it; returns its new path."""
    kept = place.extra / name
    number = 0
    while os.path.lexists(kept):
        number += 1
        kept = place.extra / f"{name}.{number}"
    kept.parent.mkdir(parents=True, exist_ok=True)
    os.rename(path, kept)
    fsync_path(kept.parent)
    fsync_path(path.parent)
    place.moved[name] = kept
    return kept


def is_same(one: Path, other: Path) -> bool:
    try:
        return os.path.samestat(os.lstat(one), os.lstat(other))
    except OSError:
        return False


def inode(path: Path) -> tuple[int, int]:
    """What names a file under all its names; OSError."""
    found = path.stat()
    return found.st_dev, found.st_ino


def is_file(path: Path) -> bool:
    """Whether there is a file by itself: no link, folder or pipe."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def _put(place: Place, file: Path, target: Path) -> None:
    for path, is_wrong in ((target.parent, not target.parent.is_dir()), (target, target.is_dir())):
        if is_wrong and os.path.lexists(path) and not path.is_symlink():
            try:
                path.rmdir()
            except OSError:  # it holds something, or is a file
                set_aside(place, path, path.relative_to(target.parents[1]).as_posix())
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(file, target)
    fsync_path(target.parent)


def _temporary(place: Place) -> Path:
    place.good.mkdir(parents=True, exist_ok=True)
    return place.good / f".{uuid4().hex}"
