"""One operation on a dataset of a given size, in a process of its own, with its seconds and its memory.

`probe` runs a command of Tarmac's, whose seconds hold the start of the interpreter, as they do for a user:

    python -m tests.benchmarks.scale_probe WORDS…      the command, and the peak of its memory as its last line

`forked` opens a version with the loader, in a fork of this process, which has the imports; the same is done on a tiny
version first, so that neither seconds nor growth hold what is set up once.
"""

from __future__ import annotations

import multiprocessing
import re
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import psutil

from tests.benchmarks.harness import Failed
from tests.system.foreign_env import ROOT

PEAK = re.compile(r"VmHWM:\s+(\d+) kB")
GLANCE_S, FEWEST = 0.02, 3
"""How often children are looked at, and how many looks pass before one counts."""


TINY = 1000


class Probed(NamedTuple):
    """What one process took. `grown_mb` is by how much the operation itself raised the peak of its process."""

    seconds: float
    peak_mb: float
    grown_mb: float | None


def probe(*words: str) -> Probed:
    """Run `tarmac` with these words; its peak is the sum of those of the process and its children."""
    command = [sys.executable, "-m", "tests.benchmarks.scale_probe", *words]
    children: dict[int, list[float]] = {}
    began = time.perf_counter()
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        while process.poll() is None:
            for child in psutil.Process(process.pid).children(recursive=True):
                children.setdefault(child.pid, []).append(peak_mb(child.pid))
            time.sleep(GLANCE_S)
        outside = time.perf_counter() - began
        assert process.stdout is not None
        printed = process.stdout.read()
    if process.returncode:
        raise Failed(f"tarmac {' '.join(words)}: {printed[-2000:]}")
    # A child that has just been forked, and starts another program next, still shows its parent's peak.
    lasting = sum(max(peaks[FEWEST:]) for peaks in children.values() if len(peaks) > FEWEST)
    return Probed(outside, float(printed.splitlines()[-1]) + lasting, None)


def forked(operation: str, version: Path, tiny: Path, samples: int) -> Probed:
    """Open a version of so many samples."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(
        target=_open, args=(theirs, operation, version, tiny, samples)
    )
    process.start()
    theirs.close()
    try:
        return Probed(*ours.recv())
    except EOFError:
        raise Failed(f"{operation} of {samples:,} samples ended without an answer") from None
    finally:
        process.join()


def _open(answer: Connection, operation: str, version: Path, tiny: Path, samples: int) -> None:
    LOADING[operation](tiny, TINY)
    before, began = peak_mb(), time.perf_counter()
    LOADING[operation](version, samples)
    seconds = time.perf_counter() - began
    answer.send((seconds, peak_mb(), peak_mb() - before))


def peak_mb(pid: int | str = "self") -> float:
    """What the kernel has noted as the most that the process ever had; getrusage would count in its parent's."""
    try:
        found = PEAK.search(Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0.0
    return int(found[1]) * 1024 / 1e6 if found else 0.0


def open_at(version: Path, shuffle: str, step: int | None) -> None:
    """Open the training split as rank 0, and take its batch of a step where one is given."""
    from tests.loader import transforms
    from tests.loader.feeds import feed_of
    from tests.soak.billion import BATCH, RANKS, SEED

    options = {"batch_size": BATCH, "world_size": RANKS, "seed": SEED, "shuffle": shuffle}
    feed = feed_of(version, transforms.plain, **options)
    with feed.train(feed.state(step or 0)) as batches:
        if step is not None:
            assert len(next(batches)["key"]) == BATCH // RANKS


def resume(version: Path, samples: int) -> None:
    """Go on in the middle of the third epoch, at a step whose samples `tests.soak.billion` has written."""
    from tests.soak.billion import steps_of

    open_at(version, "windows", steps_of(samples)[1])


LOADING: dict[str, Callable[[Path, int], None]] = {
    "open": lambda version, samples: open_at(version, "windows", None),
    "first batch, windows": lambda version, samples: open_at(version, "windows", 0),
    "first batch, samples": lambda version, samples: open_at(version, "samples", 0),
    "resume": resume,
}
"""By name: what opens a version of so many samples."""


if __name__ == "__main__":
    from flows.cli import main

    code = main(sys.argv[1:])
    print(peak_mb())
    sys.exit(code)
