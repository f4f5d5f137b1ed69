"""Staged shards on their way to the disk: what a crash of the machine may tear, and what it cannot.

Killing a process loses nothing that it has written, so workers do not wait for the disk. The build flushes
their shards while they go on, notes which are there, and makes a version only of flushed ones. A build that
goes on after a crash trusts those alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from tasks.core.files import append_line, fsync_path, write_atomic
from tasks.core.process import boot_id
from tasks.dataset.build.catalogue import Catalogue
from tasks.dataset.build.convert import sidecar_path, tar_path
from tasks.dataset.build.staging import sweep

NAME = "flushed"
"""Below the staging folder: the id of the machine's boot, then each file that is on disk, with its time, as
another may take its name."""


def trust(staging: Path) -> None:
    """Begin to note what is flushed. After a boot, shards that no note is of are removed."""
    notes = staging / NAME
    noted = notes.read_text(errors="replace").split() if notes.exists() else []
    if noted[:1] != [boot_id()]:
        files = set(noted[1:])
        sweep(staging, lambda path: _note(path) in files)
        write_atomic(notes, "\n".join([boot_id(), *sorted(files), ""]))


def flushed(catalogue: Catalogue, staging: Path, converted: Iterator[int]) -> Generator[int, None, None]:
    """Pass on the leaves that are converted and flush their shards behind them; once there are no more, all
    are on disk. OSError.

    What could not be flushed is removed: the system tells it once, and asked again would call it flushed.
    """
    thread = ThreadPoolExecutor(1)
    pending: deque[Future[None]] = deque()
    failed: list[Path] = []
    try:
        for ordinal in converted:
            pending.append(thread.submit(_flush, staging, catalogue.leaf(ordinal).digest, failed))
            while pending and pending[0].done():
                pending.popleft().result()
            yield ordinal
        for one in pending:
            one.result()
    finally:
        thread.shutdown(cancel_futures=True)
        for path in failed:
            path.unlink(missing_ok=True)


def _flush(staging: Path, leaf: str, failed: list[Path]) -> None:
    """Files that cannot be flushed are added to `failed`."""
    for path in (tar_path(staging, leaf), sidecar_path(staging, leaf)):
        if path.exists():  # there is no tar where all samples were rejected
            try:
                fsync_path(path)
            except OSError:
                failed.append(path)
                raise
            append_line(staging / NAME, _note(path))


def _note(path: Path) -> str:
    return f"{path.name}:{path.stat().st_mtime_ns}"
