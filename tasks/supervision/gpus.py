"""Which training uses which GPU of this machine: a lock per device, so that no two ever train on one.

The lock is the kernel's (flock) on a file named after the device, and the training process inherits it from
its agent. So it lives exactly as long as one of them does, however they end, and nobody has to tidy it up.
The file's text says who holds it; a text without a lock means nothing. The CPU is shared, and evaluations are
not counted: they may run beside a training.

The names are those of CUDA_VISIBLE_DEVICES. One device under two names, a number and a UUID, counts as two;
so do the same numbers in two Slurm allocations, where they are two devices.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tasks.core.errors import TarmacError

PLACE = Path("/tmp")
"""Not TMPDIR or XDG_RUNTIME_DIR, which differ between a terminal, a service and a job of the same user."""


@dataclass(frozen=True)
class HeldGpus:
    """GPUs held until this process, and all that inherited `descriptors`, have released them or ended."""

    names: tuple[str, ...]
    descriptors: tuple[int, ...]

    def release(self) -> None:
        """Let go of them; a child that inherited the descriptors holds them as long as it lives."""
        for descriptor in self.descriptors:
            os.close(descriptor)


@dataclass(frozen=True)
class Busy:
    """There are not enough free ones; `holders` says for each device that is in use who uses it."""

    holders: tuple[str, ...]

    def __str__(self) -> str:
        return f"waiting for a GPU: {'; '.join(self.holders)}"


def take_gpus(visible: Sequence[str], count: int, run: str) -> HeldGpus | Busy:
    """Take the first `count` free ones of `visible` for `run`, all or none.

    TarmacError when so many are not even visible, OSError where no lock can be written.
    """
    if count > len(visible):
        raise TarmacError(f"{count} GPUs are asked for, but there are {len(visible)}: CUDA_VISIBLE_DEVICES")
    folder = _folder()
    got: dict[str, int] = {}
    holders = []
    for name in visible:
        if len(got) == count:
            break
        descriptor = os.open(_lock_of(folder, name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holders.append(f"{name} is used by {_holder(descriptor)}")
            os.close(descriptor)
            continue
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps({"run": run, "pid": os.getpid()}).encode(), 0)
        got[name] = descriptor
    taken = HeldGpus(tuple(got), tuple(got.values()))
    if len(got) == count:
        return taken
    taken.release()
    return Busy(tuple(holders))


def _folder() -> Path:
    """This user's folder of locks; TarmacError where somebody else has made it."""
    folder = PLACE / f"tarmac-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat(follow_symlinks=False).st_uid != os.getuid():
        raise TarmacError(
            f"{folder}: belongs to another user, so it cannot hold the locks of GPUs; remove it"
        )
    folder = folder / os.environ.get("SLURM_JOB_ID", "devices")
    folder.mkdir(exist_ok=True)
    return folder


def _lock_of(folder: Path, name: str) -> Path:
    return folder / f"gpu-{name.replace('/', '_')}"


def _holder(descriptor: int) -> str:
    try:
        text = json.loads(os.pread(descriptor, 1 << 12, 0))
        return f"{text['run']} (process {text['pid']})"
    except (ValueError, KeyError, TypeError):
        return "a training that is just starting"
