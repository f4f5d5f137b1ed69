"""Functions that tests call in a child process; the module imports little, as every child imports it."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

from tasks.core import screen
from tasks.core.errors import DataError, NeedsApproval
from tasks.core.process import before_killed
from tasks.core.schema.dataset import Splits
from tasks.core.screen import Progress


class TornTable(DataError):
    """A kind of error that the starter need not know."""


def add(left: int, right: Path, splits: Splits, progress: Progress) -> dict[str, object]:
    print("this is no message")
    progress(1, 2, "sums")
    progress(2, 2, "sums")
    return {"sum": left, "name": right.name, "splits": splits, "session": os.getsid(0)}


def warn() -> None:
    print("by a print")
    screen.warn("shown by the child")
    logging.getLogger("tasks.dataset").warning("logged by %d libraries", 2)
    logging.getLogger("tasks.dataset").info("in passing")
    logging.getLogger("elsewhere").info("not of ours")


def lose() -> None:
    raise NeedsApproval("12 samples are gone", samples=[{"sample": "owl/1.png"}])


def fail(kind: str) -> None:
    if kind == "signal":
        os.kill(os.getpid(), signal.SIGSEGV)
    if kind == "crash":
        print("\n".join(map(str, range(100))))
        raise RuntimeError("a defect")
    raise TornTable("the reason")


def lose_the_network() -> None:
    raise OSError("not to be reached")


def sleep_with_child(path: Path) -> None:
    inner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    with before_killed(lose_the_network), before_killed(path.with_suffix(".last").touch):
        path.write_text(f"{os.getpid()} {inner.pid}")
        inner.wait()
