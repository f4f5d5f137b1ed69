"""A real slow disk: the kernel holds back the reads of a process and its children (cgroup v1, blkio)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

BLKIO = Path("/sys/fs/cgroup/blkio")


def missing() -> str | None:
    """Why this machine has no such disk, if it has none."""
    limit = BLKIO / "blkio.throttle.read_bps_device"
    return (
        None if limit.exists() and os.access(limit, os.W_OK) else "throttling a disk takes blkio of cgroup v1"
    )


class Disk:
    """The disk that `folder` lies on, for those whom it holds."""

    def __init__(self, folder: Path, bytes_per_s: int) -> None:
        device = os.stat(folder).st_dev
        self._group = BLKIO / f"stall-{os.getpid()}-{folder.name}"
        self._group.mkdir()
        number = f"{os.major(device)}:{os.minor(device)}"
        limit, self._unlimited = f"{number} {bytes_per_s}", f"{number} 0"
        (self._group / "blkio.throttle.read_bps_device").write_text(limit)

    def hold(self, pid: int) -> None:
        """Let a process, and all that it has started, feel the limit."""
        for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
            with suppress(ProcessLookupError):
                (self._group / "cgroup.procs").write_text(str(process.pid))

    def close(self) -> None:
        (self._group / "blkio.throttle.read_bps_device").write_text(self._unlimited)
        deadline = time.monotonic() + 60
        while (self._group / "cgroup.procs").read_text() and time.monotonic() < deadline:
            time.sleep(0.1)  # who has been killed leaves when its last read is done
        self._group.rmdir()


def forget(files: Iterable[Path]) -> None:
    """Drop the files from the page cache, so that they are read from the disk."""
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
