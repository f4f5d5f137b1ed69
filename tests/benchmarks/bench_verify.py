"""verify beside `openssl sha256` and beside bare BLAKE3 of the same tars, beside bare decoding of their images.

Shards of the twenty thousand JPEGs that bench_build makes, and 4 GB of larger ones; each measurement is a
process of its own, all take turns, the page cache is warm. Who is compared has equal cores. Seconds are those
of the work; imports do not count, the workers' start does, but for the command on a small dataset, which is
timed as a whole. Run it on an idle machine.

    .venv/bin/python -m tests.benchmarks.bench_verify [FOLDER [SAMPLES [ROUNDS]]]

The corpus and its shards, 6 GB in all, are made once in FOLDER (default: below the system's temporary folder).
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from blake3 import blake3

from tests.benchmarks import build_corpus
from tests.benchmarks.bench_build import DECODED, seconds_of
from tests.soak import many_shards

SAMPLES, ROUNDS = 20_000, 5
MANY, FEW = 10_000, 10
"""Shards of the version for `quick`, and samples a shard."""
LARGE, LARGE_IMAGE = 160, 50_000
"""Shards of 500 samples of the version that is worth all cores: 4 GB; and bytes of each image."""
CORES = len(os.sched_getaffinity(0))
ONE = ("taskset", "-c", str(min(os.sched_getaffinity(0))))
PROMISES = (
    ("tarmac, default, one core", "openssl sha256, one core", 2.0),
    ("tarmac, default, 4 GB", "openssl sha256, all cores, 4 GB", 2.0),
    ("tarmac, default, 4 GB", "bare BLAKE3, all cores, 4 GB", 0.8),
    ("tarmac, full", "Pillow alone, all cores", 0.9),
)
"""What is promised: the one's bytes or samples per second over the other's."""
SECONDS = {"quick": 2.0, "command": 0.5}
"""Of `quick` over MANY shards, and of the command on a dataset of FEW of them, the interpreter's start included."""


def ours(version: Path, level: str, *prefix: str) -> float:
    return seconds_of(*prefix, sys.executable, "-m", "tests.benchmarks.verify_ours", version, level)


def openssl(version: Path, processes: int, *prefix: str) -> float:
    """So many processes at once, each with its share of the tars."""
    tars = sorted(version.glob("*/*.tar"))
    began = time.perf_counter()
    running = [
        subprocess.Popen([*prefix, "openssl", "sha256", *tars[one::processes]], stdout=subprocess.DEVNULL)
        for one in range(processes)
    ]
    assert all(process.wait() == 0 for process in running)
    return time.perf_counter() - began


def bare_blake3(version: Path) -> float:
    """A loop over the tars in a thread per core, and nothing else."""
    tars = sorted(version.glob("*/*.tar"))
    began = time.perf_counter()
    with ThreadPoolExecutor(CORES) as pool:
        assert all(pool.map(_blake3, tars))
    return time.perf_counter() - began


def _blake3(path: Path) -> str:
    digest, buffer = blake3(), bytearray(1 << 18)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(memoryview(buffer)[:count])
    return digest.hexdigest()


def command(version: Path) -> float:
    """`tarmac verify` as a person runs it."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "flows.cli", "verify", version], check=True, capture_output=True)
    return time.perf_counter() - began


def decoding(corpus: Path, total: int) -> float:
    """A bare loop over files in memory in one process a core, scaled to all images."""
    loop = f"from tests.benchmarks.bench_build import decode; decode({str(corpus)!r})"
    running = [
        subprocess.Popen([sys.executable, "-c", loop], stdout=subprocess.PIPE, text=True)
        for _ in range(CORES)
    ]
    took = [float(process.communicate()[0]) for process in running]
    return statistics.mean(took) * total / DECODED / CORES


def shards_of(corpus: Path, samples: int) -> Path:
    """The version that Tarmac builds of the corpus, made when it is not there."""
    build_corpus.make(corpus, samples)
    out = corpus.with_name(f"{corpus.name}-verified-{samples}")
    if not (found := list(out.glob("versions/*/manifest.json"))):
        shutil.rmtree(out, ignore_errors=True)
        seconds_of(sys.executable, "-m", "tests.benchmarks.build_ours", corpus, out, CORES, "header")
        found = list(out.glob("versions/*/manifest.json"))
    return found[0].parent


def many(corpus: Path, shards: int) -> Path:
    version = corpus / f"many-{shards}-{FEW}"
    if not (version / "build.json").exists():
        shutil.rmtree(version, ignore_errors=True)
        many_shards.make(version, shards, FEW)
    return version


def large(corpus: Path) -> Path:
    """Its images are noise of the wanted size, which is no image: for levels that do not decode."""
    version = corpus / f"large-{LARGE}-{LARGE_IMAGE}"
    if not (version / "build.json").exists():
        shutil.rmtree(version, ignore_errors=True)
        many_shards.make(version, LARGE, 500, random.Random(0).randbytes(LARGE_IMAGE))
    return version


def main(corpus: Path, samples: int, rounds: int) -> None:
    version, wide, small, big = (
        shards_of(corpus, samples),
        many(corpus, MANY),
        many(corpus, FEW),
        large(corpus),
    )
    measured: dict[str, Callable[[], float]] = {
        "tarmac, default, one core": lambda: ours(version, "default", *ONE),
        "openssl sha256, one core": lambda: openssl(version, 1, *ONE),
        "tarmac, default, 4 GB": lambda: ours(big, "default"),
        "openssl sha256, all cores, 4 GB": lambda: openssl(big, CORES),
        "bare BLAKE3, all cores, 4 GB": lambda: bare_blake3(big),
        "tarmac, full": lambda: ours(version, "full"),
        "Pillow alone, all cores": lambda: decoding(corpus, samples),
        f"tarmac, quick, {MANY:,} shards": lambda: ours(wide, "quick"),
        f"tarmac, command, {FEW} shards": lambda: command(small),
    }
    seconds: dict[str, list[float]] = {name: [] for name in measured}
    loads = []
    for number in range(rounds + 1):
        for name, measure in measured.items():
            took = measure()
            if number:  # the first round warms the page cache
                seconds[name].append(took)
                loads.append(os.getloadavg()[0])
    report(samples, bytes_of(version), bytes_of(big), seconds, loads)


def bytes_of(version: Path) -> int:
    return sum(path.stat().st_size for path in version.glob("*/*.tar"))


def report(samples: int, size: int, large: int, seconds: dict[str, list[float]], loads: list[float]) -> None:
    busy = f"load average {min(loads):.1f} to {max(loads):.1f}"
    rounds = len(next(iter(seconds.values())))
    print(f"{samples:,} samples, {size / 1e6:,.0f} MB, median of {rounds}, {CORES} cores, {busy}")
    middle = {name: statistics.median(took) for name, took in seconds.items()}
    for name, took in seconds.items():
        read = large if "4 GB" in name else size
        rate = "" if "shards" in name else f"{read / 1e6 / middle[name]:7,.0f} MB/s   "
        print(f"{name:33} {rate}{min(took):.2f} to {max(took):.2f} s")
    for name, other, promised in PROMISES:
        ratio = middle[other] / middle[name]
        print(f"{name} / {other}: {ratio:.2f}, promised {promised}: {verdict(ratio >= promised)}")
    for kind, most in SECONDS.items():
        name = next(name for name in middle if kind in name)
        print(f"{name}: {middle[name]:.2f} s, promised {most} s: {verdict(middle[name] <= most)}")


def verdict(is_kept: bool) -> str:
    return "kept" if is_kept else "NOT KEPT"


if __name__ == "__main__":
    given = dict(enumerate(sys.argv[1:]))
    main(
        Path(given.get(0, Path(tempfile.gettempdir()) / "tarmac-bench-corpus")),
        int(given.get(1, SAMPLES)),
        int(given.get(2, ROUNDS)),
    )
