"""Which runs use which versions of a dataset: a small text a run, in the dataset's folder `pins`.

Its lines are the version's name, the run's folder and the host that the folder is on. A pin holds as long as
the run's folder is there, which only its own host can tell; one that tells neither, as older ones do, holds
until somebody removes it.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from tasks.core.files import write_atomic

PINS = "pins"


def pin(dataset: Path, run: str, version: str, folder: Path) -> None:
    """Keep the version from being pruned while the run's folder is there; OSError."""
    path = dataset / PINS / run
    content = os.fsencode(f"{version}\n{folder}\n{socket.gethostname()}\n")
    if not path.exists() or path.read_bytes() != content:
        write_atomic(path, content)


def pinned(dataset: Path) -> dict[str, list[str]]:
    """The runs that have pinned each version, by its name; without those whose folder is gone."""
    runs: dict[str, list[str]] = {}
    for path, version, is_gone in _pins(dataset):
        if not is_gone:
            runs.setdefault(version, []).append(path.name)
    return runs


def drop_gone(dataset: Path) -> None:
    """Remove the pins of runs whose folder is gone, as far as they can be removed."""
    for path, _, is_gone in _pins(dataset):
        if is_gone:
            with contextlib.suppress(OSError):
                path.unlink()


def _pins(dataset: Path) -> Iterator[tuple[Path, str, bool]]:
    """Each pin's file, the version that it names, and whether its run is gone."""
    for path in sorted((dataset / PINS).glob("*")):
        if path.name.startswith("."):
            continue  # it is being written
        try:
            version, *rest = os.fsdecode(path.read_bytes()).splitlines()
        except (OSError, ValueError):
            yield path, "", False
            continue
        yield path, version.strip(), len(rest) == 2 and _is_gone(Path(rest[0]), rest[1])


def _is_gone(folder: Path, host: str) -> bool:
    """Whether the run's folder was removed: its parent is still there, so it is no disk that is missing."""
    if host != socket.gethostname():
        return False
    try:
        folder.lstat()
    except FileNotFoundError:
        return folder.parent.is_dir()
    except (OSError, ValueError):  # the latter where it is no path
        return False
    return False
