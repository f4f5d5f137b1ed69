"""Whole builds beside other writers of the same files, and beside bare decoding; and re-encoding beside Pillow.

Twenty thousand JPEGs and a table of captions; each measurement is a process of its own, all take turns, the
page cache is warm. Tarmac lists, plans, checks, hashes, indexes and flushes to disk; the peers only write, so
a ratio of 1 is not a tie. Seconds are those of the work; imports do not count, our workers' start does. Run it
on an idle machine.

    .venv/bin/python -m tests.benchmarks.bench_build [FOLDER [SAMPLES [ROUNDS [PHOTOGRAPHS]]]]

The corpus is made once in FOLDER (default: below the system's temporary folder). With 0 SAMPLES only re-encoding is
measured, by CPU time, on one core: what a build does to a picture with `max_side` or `encode`, beside a plain loop
(open, convert, thumbnail by Lanczos, save with quality 92). The pictures are the JPEGs in the folder PHOTOGRAPHS,
or mosaics of scikit-image's photographs at their own resolution.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle, islice, product
from pathlib import Path

import PIL
from PIL import Image

from tasks.core.schema import ImageRules
from tasks.dataset.formats import images as formats
from tests.benchmarks import build_corpus, results
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


SIDE_OF_MOSAIC, REPEATS = 2048, 3
SMALLER = (1, 1.5, 2.5, 4, 6, 8, 12, 16, 32)
"""How many times larger than `max_side` a picture's longer side is; 1: only its format changes."""
REENCODING = {"jpg": 1.5, "png": 0.9}
"""The least that is promised over Pillow, by the sources' format; of JPEG from four times `max_side` on, where a
smaller one is decoded. Nearly all of the time of a PNG goes into inflating and unfiltering it."""
NO_SLOWER = 0.9


def photographs(folder: str, kind: str) -> list[bytes]:
    """Pictures in memory, as JPEG of quality 92 unless they are files, or as PNG."""
    files = [path.read_bytes() for path in sorted(Path(folder).glob("*.jp*g"))] if folder else []
    if files and kind == "jpg":
        return files
    opened = [Image.open(io.BytesIO(file)).convert("RGB") for file in files] or mosaics()
    kept = []
    for picture in opened:
        file = io.BytesIO()
        picture.save(file, *(("JPEG",) if kind == "jpg" else ("PNG",)), quality=92)
        kept.append(file.getvalue())
    return kept


def mosaics() -> list[Image.Image]:
    from skimage import data

    photos = [Image.fromarray(photo()) for photo in (data.astronaut, data.coffee, data.chelsea, data.rocket)]
    found = []
    for first in range(len(photos)):
        mosaic = Image.new("RGB", (SIDE_OF_MOSAIC, SIDE_OF_MOSAIC * 3 // 4))
        tiles = cycle(photos[first:] + photos[:first])
        top = 0
        while top < mosaic.height:
            left = 0
            while left < mosaic.width:
                tile = next(tiles)
                mosaic.paste(tile, (left, top))
                left += tile.width
            top += 300  # the lowest of them
        found.append(mosaic)
    return found


def reencode(who: str, kind: str, smaller: str, folder: str) -> None:
    """Print the milliseconds of CPU per picture: the least of REPEATS, as what others on this machine add is not
    the work's."""
    took = []
    for data in photographs(folder, kind):
        side = int(max(Image.open(io.BytesIO(data)).size) / float(smaller))
        rules = ImageRules(max_side=side, encode="jpg" if kind == "png" else "keep")
        each = []
        for _ in range(REPEATS):
            began = time.process_time()
            if who == "tarmac":
                formats.store(data, rules)
            else:
                by_pillow(data, side)
            each.append(time.process_time() - began)
        took.append(min(each))
    print(json.dumps([1e3 * sum(took) / len(took), len(took)]))


def by_pillow(data: bytes, side: int) -> bytes:
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=92)
    return file.getvalue()


def reencoding(rounds: int, folder: str) -> None:
    call = "import sys; from tests.benchmarks.bench_build import reencode; reencode(*sys.argv[1:])"
    cases = [(kind, times) for kind in REENCODING for times in SMALLER if (kind, times) != ("jpg", 1)]
    taken: dict[tuple[str, float, str], list[float]] = {}
    loads = []
    for _ in range(rounds):
        for (kind, times), who in product(cases, ("tarmac", "Pillow")):
            command = [sys.executable, "-c", call, who, kind, str(times), folder]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            taken.setdefault((kind, times, who), []).append(json.loads(done.stdout)[0])
            loads.append(os.getloadavg()[0])
    busy = f"load average {min(loads):.1f} to {max(loads):.1f}"
    print(f"re-encoding, CPU time per picture, median of {rounds}, Pillow {PIL.__version__}, {busy}")
    rows: dict[str, dict[str, dict[str, float]]] = {kind: {} for kind in REENCODING}
    for kind, times in cases:
        ours, theirs = (statistics.median(taken[kind, times, who]) for who in ("tarmac", "Pillow"))
        promised = REENCODING[kind] if times >= 4 else NO_SLOWER
        verdict = "kept" if theirs / ours >= promised else "NOT KEPT"
        sides = f"{kind}, {times:g} times max_side"
        print(
            f"{sides:24} {ours:7.1f} ms, Pillow {theirs:7.1f} ms: {theirs / ours:.2f}, {promised}: {verdict}"
        )
        rows[kind][f"{times:g} x"] = {"tarmac_ms": ours, "pillow_ms": theirs, "times": theirs / ours}
    for kind, sized in rows.items():
        results.save("reencoding", kind, sized, rounds, loads)


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


def main(corpus: Path, samples: int, rounds: int, folder: str) -> None:
    reencoding(rounds, folder)
    if not samples:
        return
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
    results.save(
        "build",
        f"{samples:,} JPEGs",
        {name: {"samples_per_s": rate} for name, rate in rates.items()},
        rounds,
        loads,
    )
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
        given.get(3, ""),
    )
