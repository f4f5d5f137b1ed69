"""Small idempotent functions for engines to map; each leaves its traces in a folder, as a build would."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from tasks.core.errors import DataError


@dataclass(frozen=True)
class Job:
    """One item: its number, where it leaves its traces, and how long it takes."""

    number: int
    folder: Path
    seconds: float = 0.0


@dataclass(frozen=True)
class Done:
    number: int
    path: Path
    pid: int


def work(job: Job) -> Done:
    """Leaves a mark each time it is begun, and takes its time."""
    path = job.folder / f"{job.number}.begun"
    with path.open("a") as file:
        file.write(".")
    time.sleep(job.seconds)
    return Done(job.number, path, os.getpid())


def note(number: int, folder: Path) -> int:
    """For partial: counts how often each number was done."""
    with (folder / f"{number}.txt").open("a") as file:
        file.write(".")
    return number * number


def refuse(job: Job) -> int:
    raise DataError(f"{job.number} is wrong")


def stumble(number: int) -> int:
    return 1 // (number - 3)


def die_once(job: Job) -> int:
    """Kills its process the first time it is done."""
    if _is_first(job):
        os.kill(os.getpid(), signal.SIGKILL)
    return job.number


def die(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


def hang_once(job: Job) -> int:
    """Never ends the first time it is done."""
    if _is_first(job):
        time.sleep(600)
    return job.number


def environment(name: str) -> str | None:
    return os.environ.get(name)


def _is_first(job: Job) -> bool:
    try:
        (job.folder / f"{job.number}.first").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
