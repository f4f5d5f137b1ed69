"""What a producer of a stall is: it starts a real training that stalls for a known cause, or is healthy.

A verdict without a producer proves nothing, so the matrix (`test_matrix.py`) starts every one of them, asks
`tarmac doctor`, and scores the answer: the right code 1, `unknown` 0, a wrong cause -1.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import psutil

PATIENCE_S = 240.0
"""For a training to come to its stall, on a machine that does other things as well."""
INHERITED = dict(os.environ)
"""Read once: pytest changes the variables between two tests, while the matrix starts its rows in threads."""


@dataclass
class Training:
    """A started training. `is_ready` says whether the stall, or the healthy state, has been reached."""

    process: subprocess.Popen[bytes]
    log: Path
    is_ready: Callable[[], bool]
    clean: list[Callable[[], object]] = field(default_factory=list)

    @property
    def pid(self) -> int:
        return self.process.pid

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not self.is_ready():
            assert time.monotonic() < deadline, f"it never came to its stall:\n{self.text()[-3000:]}"
            time.sleep(0.2)

    def end(self) -> None:
        """End it with all that it has started; torchrun gives every rank a session of its own."""
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    child.kill()
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGCONT)
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()
        for undo in self.clean:
            undo()


@dataclass(frozen=True)
class Stall:
    """One row of the matrix. `codes` are the right first answers; a healthy set-up has none.

    `start` gets an empty folder. `missing` gives the reason why this machine cannot produce it, if there is one.
    """

    name: str
    start: Callable[[Path], Training]
    codes: frozenset[str] = frozenset()
    missing: Callable[[], str | None] = lambda: None
    needs_stacks: bool = False
    """Whether /proc alone does not tell; without stacks the answer is then `unknown`."""
    rank: int | None = None
    """The rank that must be named, where there are several."""
    words: str = ""
    """What the verdict must say as well."""

    @property
    def is_healthy(self) -> bool:
        return not self.codes


@cache
def beside(*packages: str) -> tuple[str, str | None]:
    """A folder with these packages alone, which this process keeps for itself; or why they cannot be had."""
    folder = tempfile.mkdtemp(prefix="beside-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    uv = str(Path(sys.executable).with_name("uv"))
    command = [uv, "pip", "install", "--quiet", "--no-deps", "--python", sys.executable, "--target", folder]
    try:
        subprocess.run([*command, *packages], check=True, capture_output=True, text=True, timeout=300)
    except (OSError, subprocess.SubprocessError) as error:
        said = str(getattr(error, "stderr", None) or error).strip().splitlines()[-1]
        return "", f"{packages[0]} cannot be installed: {said}"
    return folder, None


@contextmanager
def started(stall: Stall, folder: Path) -> Iterator[Training]:
    """The training at its stall; ended with all its processes."""
    folder.mkdir(parents=True, exist_ok=True)
    training = stall.start(folder)
    try:
        training.wait_until_ready()
        yield training
    finally:
        training.end()


def launch(
    command: list[str], folder: Path, env: dict[str, str] | None = None, stdin: int = subprocess.DEVNULL
) -> tuple[subprocess.Popen[bytes], Path]:
    """Start a command in a session of its own with its output in `folder/log.txt`."""
    log = folder / "log.txt"
    quiet = {
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "PYTHONUNBUFFERED": "1",
        "WANDB_SILENT": "false",
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=stdin,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**INHERITED, **quiet, **(env or {})},
            start_new_session=True,
        )
    return process, log


def says(log: Path, words: str, settle_s: float = 0.0) -> Callable[[], bool]:
    """Ready when the log holds `words` for `settle_s` seconds."""
    since: list[float] = []

    def is_ready() -> bool:
        if words in log.read_text(errors="replace") and not since:
            since.append(time.monotonic())
        return bool(since) and time.monotonic() - since[0] >= settle_s

    return is_ready
