"""What it costs to know whether data is any good: copies among a million pictures, and measuring in a build.

The join of a million hashes (a tenth of them copies with up to six changed bits) stands beside faiss, which
compares every pair on the same cores; faiss gets a tenth of the hashes, and its time is scaled by the square.
The build of 256-pixel JPEGs stands beside itself without the measures of pictures and captions.
"""

from __future__ import annotations

import resource
import shutil
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tasks.dataset.duplicates import Looks, nearly_equal
from tests.benchmarks import build_corpus
from tests.benchmarks.harness import (
    Benchmark,
    Case,
    Column,
    Command,
    Promise,
    Row,
    Setup,
    call,
    value,
)

ROWS, PICTURES = 1_000_000, 6000
OURS, FAISS_ALL = "tarmac", "faiss, all pairs"
FAISS = """
import sys, time
import faiss, numpy as np
rows = int(sys.argv[1])
hashes = np.load(sys.argv[2]).view(np.uint8).reshape(rows, 8)
index = faiss.IndexBinaryFlat(64)
index.add(hashes)
began = time.perf_counter()
index.range_search(hashes, 7)
print(time.perf_counter() - began)
"""
BUILD = """
import sys
if sys.argv[2] == "without":
    from tasks.dataset.formats import images, measures
    from tasks.dataset.modalities import image_text
    nothing = measures.PictureMeasures(None, None, None, 0.0, None, None)
    image_text.measure = lambda luma: nothing
    image_text.caption_statistics = lambda caption: {"caption_length": len(caption)}
    measures.factor = lambda width, height: 8
from tests.benchmarks.build_ours import main
main(sys.argv[1], sys.argv[3], "1", "decode")
"""


def planted(rows: int) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]:
    """Random hashes (rows,), a tenth of them copies, with the rows of the copies and of their sources."""
    rng = np.random.default_rng(0)
    hashes = rng.integers(0, 2**64, rows, np.uint64)
    copies = np.arange(rows - rows // 10, rows)
    sources = rng.integers(0, rows // 2, len(copies))
    hashes[copies] = hashes[sources]
    for _ in range(6):
        hashes[copies] ^= np.uint64(1) << rng.integers(0, 64, len(copies)).astype(np.uint64)
    return hashes, copies, sources


def joined(rows: int) -> Row:
    """`recall` is in percent of the planted copies."""
    coarse, copies, sources = planted(rows)
    rng = np.random.default_rng(1)
    fine, spectrum = (
        rng.integers(0, 2**64, (rows, 3), np.uint64),
        rng.integers(-127, 128, (rows, 63), np.int8),
    )
    fine[copies], spectrum[copies] = fine[sources], spectrum[sources]
    looks = Looks(coarse, coarse, coarse, fine, spectrum, np.full(rows, 50, np.float32))
    began = time.perf_counter()
    found = nearly_equal(looks, np.arange(rows))
    took = time.perf_counter() - began
    recall = 100 * float((found[copies] == found[sources]).mean())
    return {"s": took, "mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3, "recall": recall}


def measured_build(corpus: Path, kind: str, setup: Setup) -> Row:
    out = setup.new_folder()
    try:
        return Command([sys.executable, "-c", BUILD, corpus, kind, out / "out"], ("s",))()
    finally:
        shutil.rmtree(out)


def cases(setup: Setup) -> Iterator[Case]:
    rows, folder = setup.sized(ROWS, 20_000), setup.new_folder()
    part = rows // 10
    np.save(folder / "hashes.npy", planted(part)[0])
    peer = setup.peer("faiss", "-c", FAISS, part, folder / "hashes.npy", keys=("s",))

    def all_pairs() -> Row:
        return {"s": peer()["s"] * (rows // part) ** 2}

    yield Case(f"copies among {rows:,} hashes", {OURS: call(joined, rows), FAISS_ALL: all_pairs})
    build_corpus.make(folder / "corpus", setup.sized(PICTURES, 200))
    ways = {"with measures": "with", "without": "without"}
    yield Case(
        "a build of pictures of 256 pixels",
        {name: partial(measured_build, folder / "corpus", kind, setup) for name, kind in ways.items()},
    )


BENCHMARKS = (
    Benchmark(
        "quality",
        "Knowing whether data is any good",
        "Near copies among a million hashes, a tenth of them planted with up to six changed bits, beside faiss's "
        "comparison of every pair on the same cores, whose time is that of a tenth of the hashes times a hundred. And a "
        "build of 6,000 pictures on one core with the measures of pictures and captions, and without.",
        cases,
        (Column("s", "s", ".2f"), Column("mb", "MB"), Column("recall", "% found", ".2f")),
        promises=(
            Promise("time", value(OURS, "s"), "at most", 60.0, unit="s"),
            Promise("memory", value(OURS, "mb"), "at most", 1000.0, unit="MB"),
        ),
        packages=("numpy", "pillow"),
        environments=("faiss",),
        ratio="s",
        is_time=True,
    ),
)
