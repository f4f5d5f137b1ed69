"""verify beside `openssl sha256` and beside bare BLAKE3 of the same tars, beside bare decoding of their images.

Shards of the twenty thousand JPEGs that bench_build makes, 4 GB of larger ones, and 2.5 GB of five very large
ones; each measurement is a process of its own, all take turns, the page cache is warm. Who is compared has equal
cores. Bare BLAKE3 are the loops in verify_peers, and b3sum where it is installed. Seconds are those of the work;
imports do not count, the workers' start does, but for the command, which is timed as a whole, beside Python that
does nothing. Run it on an idle machine; on another the CPU shows who has less to do.

    .venv/bin/python -m tests.benchmarks.bench_verify [FOLDER [SAMPLES [ROUNDS]]]

The corpus and its shards, 9 GB in all, are made once in FOLDER (default: below the system's temporary folder).
SAMPLES 0 leaves out the JPEGs, and what is measured on them.
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from tests.benchmarks import build_corpus
from tests.benchmarks.bench_build import DECODED, decode
from tests.benchmarks.harness import (
    Absent,
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
    times,
    value,
)
from tests.soak import many_shards

MANY, FEW = 10_000, 10
"""Shards of the version for `quick`, and samples a shard."""
LARGE_IMAGE = 50_000
"""Bytes of each image of the following two."""
LARGE, FIVE = (160, 500), (5, 10_000)
"""Shards, and samples per shard, of 4 GB in many shards, and of 2.5 GB in so few that some core ends first."""
CORES = len(os.sched_getaffinity(0))
ONE = ("taskset", "-c", str(min(os.sched_getaffinity(0))))
OURS, OPENSSL = "tarmac, default", "openssl sha256, all cores"
READERS = ("bare BLAKE3, read", "bare BLAKE3, page")
"""The loops that read. Of those over maps, which save the copy of each byte, nothing is promised: cut a file under a
map, or let its disk fail, and the process ends with SIGBUS instead of a finding."""
INSTALLED = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""The environment of a command whose modules are compiled, as those of an installed program are."""
RATE, CPU = Column("mb_per_s", "MB/s"), Column("cpu_s", "s of CPU", ".2f")


def process(*words: object, size: int = 0) -> Row:
    """A process as a whole."""
    before, began = os.times(), time.perf_counter()
    subprocess.run([str(part) for part in words], check=True, capture_output=True, env=INSTALLED)
    took, after = time.perf_counter() - began, os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return rated({"cpu_s": spent, "s": took}, size)


def rated(row: Row, size: int) -> Row:
    return {**row, "mb_per_s": size / 1e6 / row["s"]} if size else row


def ours(version: Path, level: str, *prefix: str) -> Contestant:
    command = Command(
        [*prefix, sys.executable, "-m", "tests.benchmarks.verify_ours", version, level], ("cpu_s", "s")
    )
    return command.then(partial(rated, size=bytes_of(version)))


def bare(version: Path) -> dict[str, Contestant]:
    """The loops over a version's tars, by name."""
    loop, size = (sys.executable, "-m", "tests.benchmarks.verify_peers"), bytes_of(version)
    found = {
        f"bare BLAKE3, {how}": Command([*loop, how, version], ("cpu_s", "s")).then(partial(rated, size=size))
        for how in ("read", "page", "mapped", "shared")
    }
    if shutil.which("b3sum"):
        found["b3sum"] = partial(process, "b3sum", *sorted(version.glob("*/*.tar")), size=size)
    return found


def openssl(version: Path, processes: int, *prefix: str) -> Row:
    """So many processes at once, each with its share of the tars."""
    if not shutil.which("openssl"):
        raise Absent("openssl is not installed")
    tars = sorted(version.glob("*/*.tar"))
    began = time.perf_counter()
    running = [
        subprocess.Popen([*prefix, "openssl", "sha256", *tars[one::processes]], stdout=subprocess.DEVNULL)
        for one in range(processes)
    ]
    assert all(one.wait() == 0 for one in running)
    return rated({"s": time.perf_counter() - began}, bytes_of(version))


def decoding(corpus: Path, version: Path, total: int) -> Row:
    """A bare loop over files in memory in one process a core, scaled to all images."""
    with ThreadPoolExecutor(CORES) as pool:
        took = pool.map(lambda loop: loop()["s"], [call(decode, corpus)] * CORES)
        return rated({"s": statistics.mean(took) * total / DECODED / CORES}, bytes_of(version))


def shards(setup: Setup, count: int, samples: int, image: bytes | None = None) -> Path:
    """A version of such shards; of noise of the wanted size, which is no image: for levels that do not decode."""
    given = [image] if image is not None else []
    kind = "large" if image else "small"
    made = setup.lasting(
        f"{kind}-{count}-{samples}",
        lambda folder: many_shards.make(folder / "version", count, samples, *given),
    )
    return made / "version"


def bytes_of(version: Path) -> int:
    return sum(path.stat().st_size for path in version.glob("*/*.tar"))


def cases(setup: Setup) -> Iterator[Case]:
    noise, tarmac = random.Random(0).randbytes(LARGE_IMAGE), Path(sys.executable).with_name("tarmac")
    for name, sizes in (("4 GB", setup.sized(LARGE, (8, 500))), ("five shards", setup.sized(FIVE, (5, 200)))):
        version = shards(setup, *sizes, noise)
        found: dict[str, Contestant] = {OURS: ours(version, "default"), **bare(version)}
        if name == "4 GB":
            found[OPENSSL] = partial(openssl, version, CORES)
            found["tarmac, the command"] = partial(process, tarmac, "verify", version, size=bytes_of(version))
        yield Case(name, found)
    corpus, samples = build_corpus.lasting(setup)
    version = setup.lasting(f"built-{samples}", partial(built, corpus))
    version = next(version.glob("out/versions/*/manifest.json")).parent
    yield Case(
        "one core, JPEGs",
        {OURS: ours(version, "default", *ONE), "openssl sha256": partial(openssl, version, 1, *ONE)},
    )
    yield Case(
        "--full, JPEGs",
        {"tarmac, full": ours(version, "full"), "Pillow alone": partial(decoding, corpus, version, samples)},
    )
    wide, small = shards(setup, setup.sized(MANY, 500), FEW), shards(setup, FEW, FEW)
    yield Case("--quick, 10,000 shards", {"tarmac, quick": ours(wide, "quick")})
    yield Case(
        "the command, ten small shards",
        {
            "tarmac, the command": partial(process, tarmac, "verify", small),
            "Python that does nothing": partial(process, sys.executable, "-c", "pass"),
        },
    )


def built(corpus: Path, folder: Path) -> None:
    words = [sys.executable, "-m", "tests.benchmarks.build_ours", corpus, folder / "out", CORES, "header"]
    Command(words, ("s",))()


def over(*theirs: str) -> Callable[[Figures], float]:
    return times("mb_per_s", OURS, *theirs)


BENCHMARKS = (
    Benchmark(
        "verify",
        "Verifying a dataset",
        "`tarmac verify` by default: the seal, the tars and the index, every byte by BLAKE3, on all cores. Beside it "
        "are loops that do nothing but hash the same files, by Python's blake3 (`read`: 256 KB at a time; `page`: 1 MB, "
        "into a buffer that begins at a page; `mapped`; `shared`: mapped, each file by all cores) and by `openssl "
        "sha256`. A map saves the copy of each byte, but ends the process where a file is cut or its disk fails under "
        "it, so `verify` reads.",
        cases,
        (RATE, CPU, Column("s", "s", ".2f")),
        promises=(
            Promise("MB/s over openssl's", over(OPENSSL), "at least", 2.0, cases=("4 GB",)),
            Promise(
                "MB/s over the best loop's that reads",
                over(*READERS),
                "at least",
                0.9,
                cases=("4 GB", "five shards"),
            ),
            Promise(
                "MB/s over openssl's", over("openssl sha256"), "at least", 2.0, cases=("one core, JPEGs",)
            ),
            Promise(
                "MB/s over bare decoding's",
                times("mb_per_s", "tarmac, full", "Pillow alone"),
                "at least",
                0.9,
                cases=("--full, JPEGs",),
            ),
            Promise(
                "time",
                value("tarmac, quick", "s"),
                "at most",
                2.0,
                unit="s",
                cases=("--quick, 10,000 shards",),
            ),
            Promise(
                "time with the interpreter's start",
                value("tarmac, the command", "s"),
                "at most",
                0.15,
                unit="s",
                cases=("the command, ten small shards",),
            ),
        ),
        packages=("blake3",),
        ratio="mb_per_s",
        plot="mb_per_s",
    ),
)
