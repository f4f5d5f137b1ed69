"""Whole builds beside other writers of the same files, and beside bare decoding.

Twenty thousand JPEGs and a table of captions; each measurement is a process of its own, all take turns, the
page cache is warm. Tarmac lists, plans, checks, hashes, indexes and flushes to disk; the peers only write, so
a ratio of 1 is not a tie. Seconds are those of the work; imports do not count, our workers' start does. Run it
on an idle machine.

    .venv/bin/python -m tests.benchmarks.bench_build [FOLDER [SAMPLES [ROUNDS]]]

The corpus is made once in FOLDER (default: below the system's temporary folder).
"""

from __future__ import annotations

import io
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle, islice
from pathlib import Path

from PIL import Image

from tests.benchmarks import build_corpus
from tests.system.foreign_env import foreign_env

HERE = Path(__file__).parent
SAMPLES, ROUNDS = 20_000, 5
DECODED = 3000
WORKERS = 2
PROMISES = (
    ("tarmac, header, 1 worker", "webdataset ShardWriter", 1.5),
    ("tarmac, header, 1 worker", "ArrayRecordWriter", 1.2),
    ("tarmac, header, 1 worker", "MDSWriter", 1.2),
    ("tarmac, decode, 2 workers", "Pillow alone, on as many cores", 0.9),
)
"""What is promised: the one's samples a second over the other's."""


def ours(workers: int, check: str, corpus: Path, out: Path) -> float:
    return seconds_of(sys.executable, "-m", "tests.benchmarks.build_ours", corpus, out, workers, check)


def peer(name: str, corpus: Path, out: Path) -> float:
    return seconds_of(foreign_env("writers") / "python", HERE / "build_peers.py", name, corpus, out)


def seconds_of(*command: object) -> float:
    """The seconds that a process prints last."""
    done = subprocess.run([str(part) for part in command], check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout.split()[-1])


def decoding(corpus: Path, out: Path) -> float:
    """A bare loop over files in memory, scaled to the whole corpus and as if every core ran one."""
    total = sum(1 for _ in images(corpus))
    loop = f"from tests.benchmarks.bench_build import decode; decode({str(corpus)!r})"
    return seconds_of(sys.executable, "-c", loop) * total / DECODED / min(WORKERS, os.cpu_count() or 1)


def decode(corpus: str) -> None:
    """Print the seconds that Pillow takes for DECODED images."""
    files = [path.read_bytes() for path in islice(cycle(images(Path(corpus))), DECODED)]
    began = time.perf_counter()
    for file in files:
        Image.open(io.BytesIO(file)).load()
    print(time.perf_counter() - began)


def images(corpus: Path) -> Iterator[Path]:
    for folder in sorted((corpus / "images").iterdir()):
        yield from sorted(folder.iterdir())


MEASURED: dict[str, Callable[[Path, Path], float]] = {
    "tarmac, header, 1 worker": partial(ours, 1, "header"),
    "webdataset ShardWriter": partial(peer, "shard_writer"),
    "ArrayRecordWriter": partial(peer, "array_record"),
    "MDSWriter": partial(peer, "mds"),
    "tarmac, header, 2 workers": partial(ours, WORKERS, "header"),
    "tarmac, decode, 2 workers": partial(ours, WORKERS, "decode"),
    "Pillow alone, on as many cores": decoding,
}


def main(corpus: Path, samples: int, rounds: int) -> None:
    build_corpus.make(corpus, samples)
    foreign_env("writers")
    seconds: dict[str, list[float]] = {name: [] for name in MEASURED}
    loads = []
    for number in range(rounds + 1):
        for name, measure in MEASURED.items():
            out = Path(tempfile.mkdtemp(prefix="out-", dir=corpus.parent))
            try:
                took = measure(corpus, out)
            finally:
                shutil.rmtree(out)
            os.sync()  # what one has left to be written must not burden the next
            if number:  # the first round warms the page cache
                seconds[name].append(took)
                loads.append(os.getloadavg()[0])
    report(samples, rounds, seconds, loads)


def report(samples: int, rounds: int, seconds: dict[str, list[float]], loads: list[float]) -> None:
    machine = f"{os.cpu_count()} cores"
    busy = f"load average {min(loads):.1f} to {max(loads):.1f}"
    print(f"{samples:,} samples, median of {rounds}, {machine}, {busy}")
    rates = {name: samples / statistics.median(took) for name, took in seconds.items()}
    for name, took in seconds.items():
        print(f"{name:31} {rates[name]:7,.0f} samples/s   {min(took):.2f} to {max(took):.2f} s")
    for name, other, promised in PROMISES:
        ratio = rates[name] / rates[other]
        verdict = "kept" if ratio >= promised else "NOT KEPT"
        print(f"{name} / {other}: {ratio:.2f}, promised {promised}: {verdict}")


if __name__ == "__main__":
    given = dict(enumerate(sys.argv[1:]))
    main(
        Path(given.get(0, Path(tempfile.gettempdir()) / "tarmac-bench-corpus")),
        int(given.get(1, SAMPLES)),
        int(given.get(2, ROUNDS)),
    )
