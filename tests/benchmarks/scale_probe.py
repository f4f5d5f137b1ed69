"""One operation on a dataset of a given size, in a process of its own that reports its seconds and its memory.

    python -m tests.benchmarks.scale_probe FOLDER OPERATION [WORDS…]

The last line that it prints is JSON. `command` runs `tarmac` with these words, and its seconds are counted outside,
with the start of the interpreter. The others open a version with the loader, after the same on a tiny version, so that
their seconds and their growth hold no import.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil

from tests.system.foreign_env import ROOT

PEAK = re.compile(r"VmHWM:\s+(\d+) kB")
GLANCE_S, FEWEST = 0.02, 3
"""How often children are looked at, and how many looks pass before one counts."""


class Probed(NamedTuple):
    """What one process took. `grown_mb` is by how much the operation itself raised the peak of its process."""

    seconds: float
    peak_mb: float
    grown_mb: float | None


def probe(folder: Path, operation: str, *words: str) -> Probed:
    """Run an operation in a process of its own; its peak is the sum of those of the process and its children."""
    command = [sys.executable, "-m", "tests.benchmarks.scale_probe", str(folder), operation, *words]
    children: dict[int, list[float]] = {}
    began = time.perf_counter()
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            for child in psutil.Process(process.pid).children(recursive=True):
                children.setdefault(child.pid, []).append(peak_mb(child.pid))
            time.sleep(GLANCE_S)
        outside = time.perf_counter() - began
        assert process.stdout is not None
        printed = process.stdout.read()
    assert process.returncode == 0, f"{command}: {printed[-2000:]}"
    found = json.loads(printed.splitlines()[-1])
    # A child that has just been forked, and starts another program next, still shows its parent's peak.
    lasting = sum(max(peaks[FEWEST:]) for peaks in children.values() if len(peaks) > FEWEST)
    return Probed(found["seconds"] or outside, found["peak_mb"] + lasting, found["grown_mb"])


def peak_mb(pid: int | str = "self") -> float:
    """What the kernel has noted as the most that the process ever had; getrusage would count in its parent's."""
    try:
        found = PEAK.search(Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0.0
    return int(found[1]) * 1024 / 1e6 if found else 0.0


def run_command(*words: str) -> None:
    from flows.cli import main

    code = main(words)
    assert code == 0, f"tarmac {' '.join(words)}: exit code {code}"


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


def main(folder: Path, operation: str, *words: str) -> None:
    if operation == "command":
        run_command(*words)
        print(json.dumps({"seconds": None, "peak_mb": peak_mb(), "grown_mb": None}))
        return
    tiny, samples = Path(words[0]), int(words[1])
    LOADING[operation](tiny, 1000)
    before, began = peak_mb(), time.perf_counter()
    LOADING[operation](folder, samples)
    seconds = time.perf_counter() - began
    print(json.dumps({"seconds": seconds, "peak_mb": peak_mb(), "grown_mb": peak_mb() - before}), flush=True)


if __name__ == "__main__":
    _, place, name, *rest = sys.argv
    main(Path(place), name, *rest)
