"""Finds who holds the file locks that a training waits for, or may wait for (proc_locks(5)).

A process that waits in flock(2) or fcntl(2) stands in /proc/locks below the lock's holder. One that tries
again and again, as the `filelock` package does for the caches of Hugging Face, does not; so all held files
whose name says that they are locks are recorded too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass

from tasks.diagnosis.observation import procfs
from tasks.diagnosis.observation.redaction import redacted, redacted_words

MOST_LOCKS = 16
LOCK_SUFFIX = ".lock"
SEARCH_S = 1.0
"""How long to look for the paths of locked files. A machine with thousands of descriptors and locks would
otherwise hold up the examination; a lock whose path was not found in time is recorded without it."""


@dataclass(frozen=True)
class FileLock:
    """A lock on a file. `path` is "" where the holder's files may not be read; `waiters` are the observed
    processes that wait for it in a system call."""

    path: str
    holder: int
    command: Sequence[str]
    waiters: Sequence[int]


def file_locks(observed: Collection[int]) -> list[FileLock]:
    """Return the locks that one of these processes waits for, then the held files whose name ends in
    `.lock`."""
    holders: dict[str, tuple[int, str]] = {}
    waiters: dict[str, list[int]] = {}
    with suppress(OSError):
        for line in (procfs.PROC / "locks").read_text().splitlines():
            number, *words = line.split()
            is_waiting = words[:1] == ["->"]
            pid, file = words[3 + is_waiting : 5 + is_waiting]
            if is_waiting:
                waiters.setdefault(number, []).append(int(pid))
            else:
                holders[number] = int(pid), file.rpartition(":")[2]
    found = []
    deadline = time.monotonic() + SEARCH_S
    for number, (holder, inode) in holders.items():
        waiting = [pid for pid in waiters.get(number, []) if pid in observed]
        path = next(filter(None, (_path(pid, inode, deadline) for pid in (holder, *waiting))), "")
        if waiting or path.endswith(LOCK_SUFFIX):
            found.append(FileLock(redacted(path), holder, redacted_words(procfs.argv(holder)), waiting))
    return sorted(found, key=lambda lock: not lock.waiters)[:MOST_LOCKS]


def _path(pid: int, inode: str, deadline: float) -> str:
    """Return the path of the file with this inode that the process has open; "" if it is not found before the
    deadline."""
    folder = procfs.PROC / str(pid) / "fd"
    with suppress(OSError):
        for descriptor in os.listdir(folder):
            if time.monotonic() > deadline:
                break
            if f"ino:\t{inode}" in procfs.lines(pid, f"fdinfo/{descriptor}"):
                return os.readlink(folder / descriptor)
    return ""
