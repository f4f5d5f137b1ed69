"""Whole builds beside other writers of the same files, and beside bare decoding; and re-encoding beside Pillow.

Twenty thousand JPEGs and a table of captions. Tarmac lists, plans, checks, hashes, indexes and flushes to disk; the
peers only write, so a ratio of 1 is not a tie. Seconds are those of the work; imports do not count, our workers' start
does.

Re-encoding is what a build does to a picture with `max_side` or `encode`, beside a plain loop (open, convert, thumbnail
by Lanczos, save with quality 92), by CPU time, on one core. The pictures are the JPEGs in the folder that PHOTOGRAPHS
in the environment names, or mosaics of scikit-image's photographs at their own resolution.
"""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle, islice
from pathlib import Path

from PIL import Image

from tasks.core.schema import ImageRules
from tasks.dataset.formats import images as formats
from tests.benchmarks import build_corpus
from tests.benchmarks.harness import (
    Benchmark,
    Case,
    Column,
    Command,
    Contestant,
    Figures,
    Promise,
    Row,
    Setup,
    call,
    quicker,
    times,
)

DECODED = 3000
WORKERS = 2


def decode(corpus: str) -> Row:
    """The seconds that Pillow takes for DECODED images in memory."""
    files = [path.read_bytes() for path in islice(cycle(images(Path(corpus))), DECODED)]
    began = time.perf_counter()
    for file in files:
        Image.open(io.BytesIO(file)).load()
    return {"s": time.perf_counter() - began}


def images(corpus: Path) -> Iterator[Path]:
    for folder in sorted((corpus / "images").iterdir()):
        yield from sorted(folder.iterdir())


def builds(setup: Setup) -> Iterator[Case]:
    corpus, samples = build_corpus.lasting(setup)

    def rate(row: Row) -> Row:
        return {"samples_per_s": samples / row["s"]}

    def scaled(row: Row) -> Row:
        """As if every core ran such a loop."""
        return {"samples_per_s": DECODED / row["s"] * min(WORKERS, os.cpu_count() or 1)}

    def ours(workers: int, check: str) -> Row:
        command = [
            sys.executable,
            "-m",
            "tests.benchmarks.build_ours",
            corpus,
            setup.new_folder(),
            workers,
            check,
        ]
        return rate(Command(command, ("s",))())

    def peer(name: str) -> Row:
        return rate(setup.peer("writers", "build_peers", name, corpus, setup.new_folder(), keys=("s",))())

    contestants: dict[str, Contestant] = {
        "tarmac, header, 1 worker": partial(ours, 1, "header"),
        "webdataset ShardWriter": partial(peer, "shard_writer"),
        "ArrayRecordWriter": partial(peer, "array_record"),
        "MDSWriter": partial(peer, "mds"),
        "tarmac, header, 2 workers": partial(ours, WORKERS, "header"),
        "tarmac, decode, 2 workers": partial(ours, WORKERS, "decode"),
        "Pillow alone, on as many cores": call(decode, corpus).then(scaled),
    }
    yield Case(f"{samples:,} JPEGs", contestants)


SIDE_OF_MOSAIC, REPEATS = 2048, 3
SMALLER = (1, 1.5, 2.5, 4, 6, 8, 12, 16, 32)
"""How many times larger than `max_side` a picture's longer side is; 1: only its format changes."""


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


def reencode(who: str, kind: str, sizes: list[float], folder: str) -> Row:
    """Milliseconds of CPU per picture by size: the least of REPEATS, as what others on this machine add is not the
    work's."""
    found = {}
    pictures = photographs(folder, kind)
    for times_smaller in sizes:
        taken = 0.0
        for data in pictures:
            side = int(max(Image.open(io.BytesIO(data)).size) / times_smaller)
            rules = ImageRules(max_side=side, encode="jpg" if kind == "png" else "keep")
            each = []
            for _ in range(REPEATS):
                began = time.process_time()
                if who == "tarmac":
                    formats.store(data, rules)
                else:
                    by_pillow(data, side)
                each.append(time.process_time() - began)
            taken += min(each)
        found[f"{times_smaller:g} x"] = 1e3 * taken / len(pictures)
    return found


def by_pillow(data: bytes, side: int) -> bytes:
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=92)
    return file.getvalue()


def least(smallest: float, below: float = 1e9) -> Callable[[Figures], float]:
    """The least that Pillow's CPU time is over ours, of pictures so many times larger than `max_side`. Nearly all of the
    time of a PNG goes into inflating and unfiltering it."""

    def figure(figures: Figures) -> float:
        sizes = [key for key in figures.medians["tarmac"] if smallest <= float(key.split()[0]) < below]
        if not sizes:
            raise KeyError(smallest)
        return min(quicker(key, "tarmac", "Pillow")(figures) for key in sizes)

    return figure


def reencoding(setup: Setup) -> Iterator[Case]:
    folder = os.environ.get("PHOTOGRAPHS", "")
    for kind in ("jpg", "png"):
        sizes = [size for size in setup.sized(SMALLER, SMALLER[:4]) if (kind, size) != ("jpg", 1)]
        yield Case(kind, {who: call(reencode, who, kind, sizes, folder) for who in ("tarmac", "Pillow")})


ONE, TWO = "tarmac, header, 1 worker", "tarmac, decode, 2 workers"
WRITERS = (("webdataset ShardWriter", 1.5), ("ArrayRecordWriter", 1.2), ("MDSWriter", 1.2))
BENCHMARKS = (
    Benchmark(
        "reencoding",
        "Making pictures smaller in a build",
        "What `max_side` and `encode` do to a picture, beside open, convert, thumbnail by Lanczos and save of the same "
        "quality, on one core; by how many times the picture is larger than `max_side`.",
        reencoding,
        (Column("", "ms of CPU", ".1f"),),
        promises=(
            Promise(
                "least times quicker than Pillow, 4 x and more", least(4), "at least", 1.5, cases=("jpg",)
            ),
            Promise(
                "least times quicker than Pillow, below 4 x", least(0, 4), "at least", 0.9, cases=("jpg",)
            ),
            Promise("least times quicker than Pillow", least(0), "at least", 0.9, cases=("png",)),
        ),
        packages=("pillow",),
        is_time=True,
        is_transposed=True,
    ),
    Benchmark(
        "build",
        "Writing shards",
        "Twenty thousand JPEGs and a table of captions. Tarmac lists, plans, checks headers or decodes, hashes, indexes "
        "and flushes to disk; the others only write, and Pillow only decodes.",
        builds,
        (Column("samples_per_s", "samples/s"),),
        promises=(
            *(
                Promise(f"samples/s over {name}'s", times("samples_per_s", ONE, name), "at least", limit)
                for name, limit in WRITERS
            ),
            Promise(
                "samples/s over bare decoding's",
                times("samples_per_s", TWO, "Pillow alone, on as many cores"),
                "at least",
                0.9,
            ),
        ),
        packages=("pillow",),
        environments=("writers",),
        plot="samples_per_s",
    ),
)
