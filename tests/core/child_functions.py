"""Functions that tests call in a child process; the module imports little, as every child imports it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tasks.core.errors import DataError
from tasks.core.schema.dataset import Splits
from tasks.core.screen import Progress


class TornTable(DataError):
    """A kind of error that the starter need not know."""


def add(left: int, right: Path, splits: Splits, progress: Progress) -> dict[str, object]:
    print("this is no message")
    progress(1, 2, "sums")
    progress(2, 2, "sums")
    return {"sum": left, "name": right.name, "splits": splits, "session": os.getsid(0)}


def fail(kind: str) -> None:
    if kind == "signal":
        os.kill(os.getpid(), signal.SIGSEGV)
    if kind == "crash":
        raise RuntimeError("a defect")
    raise TornTable("the reason")


def sleep_with_child(path: Path) -> None:
    inner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    path.write_text(f"{os.getpid()} {inner.pid}")
    inner.wait()
