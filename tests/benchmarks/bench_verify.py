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
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version as version_of
from pathlib import Path
from typing import NamedTuple

from tests.benchmarks import build_corpus, results
from tests.benchmarks.bench_build import DECODED, seconds_of
from tests.soak import many_shards

SAMPLES, ROUNDS = 20_000, 5
MANY, FEW = 10_000, 10
"""Shards of the version for `quick`, and samples a shard."""
LARGE_IMAGE = 50_000
"""Bytes of each image of the following two."""
LARGE, FIVE = (160, 500), (5, 10_000)
"""Shards, and samples per shard, of 4 GB in many shards, and of 2.5 GB in so few that some core ends first."""
CORES = len(os.sched_getaffinity(0))
ONE = ("taskset", "-c", str(min(os.sched_getaffinity(0))))
BARE = "bare BLAKE3"
PROMISES = (
    ("tarmac, default, one core", "openssl sha256, one core", 2.0),
    ("tarmac, default, 4 GB", "openssl sha256, all cores, 4 GB", 2.0),
    ("tarmac, default, 4 GB", f"{BARE}, 4 GB", 0.9),
    ("tarmac, default, five shards", f"{BARE}, five shards", 0.9),
    ("tarmac, full", "Pillow alone, all cores", 0.9),
)
"""What is promised: the one's bytes or samples per second over the other's, of bare BLAKE3 the fastest loop's
that reads."""
MAPS = ("mapped", "shared", "b3sum")
"""The loops over maps, which save the copy of each byte. Of them nothing is promised: cut a file under a map, or
let its disk fail, and the process ends with SIGBUS instead of a finding."""
SECONDS = {"tarmac, quick": 2.0, "tarmac, command": 0.15}
"""Of `quick` over MANY shards, and of the command on a dataset of FEW of them, the interpreter's start included."""
INSTALLED = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""The environment of a command whose modules are compiled, as those of an installed program are."""


class Cost(NamedTuple):
    """The seconds that something took, and of CPU, as far as these are known."""

    seconds: float
    cpu: float | None = None


def cost_of(*command: object) -> Cost:
    """What a process prints last: seconds of CPU, and seconds."""
    done = subprocess.run([str(part) for part in command], check=True, stdout=subprocess.PIPE, text=True)
    cpu, seconds = map(float, done.stdout.split()[-2:])
    return Cost(seconds, cpu)


def process(*command: object, cwd: Path | None = None) -> Cost:
    """A process as a whole."""
    before, began = os.times(), time.perf_counter()
    subprocess.run([str(part) for part in command], check=True, capture_output=True, cwd=cwd, env=INSTALLED)
    took, after = time.perf_counter() - began, os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return Cost(took, spent)


def ours(version: Path, level: str, *prefix: str) -> Cost:
    return cost_of(*prefix, sys.executable, "-m", "tests.benchmarks.verify_ours", version, level)


def bare(version: Path) -> dict[str, Callable[[], Cost]]:
    """The loops over a version's tars, by name."""
    loop = (sys.executable, "-m", "tests.benchmarks.verify_peers")
    found: dict[str, Callable[[], Cost]] = {
        how: partial(cost_of, *loop, how, version) for how in ("read", "page", "mapped", "shared")
    }
    if shutil.which("b3sum"):
        found["b3sum"] = lambda: process("b3sum", *sorted(version.glob("*/*.tar")))
    return found


def openssl(version: Path, processes: int, *prefix: str) -> Cost:
    """So many processes at once, each with its share of the tars."""
    tars = sorted(version.glob("*/*.tar"))
    began = time.perf_counter()
    running = [
        subprocess.Popen([*prefix, "openssl", "sha256", *tars[one::processes]], stdout=subprocess.DEVNULL)
        for one in range(processes)
    ]
    assert all(one.wait() == 0 for one in running)
    return Cost(time.perf_counter() - began)


def command(version: Path) -> Cost:
    """`tarmac verify` as a person runs it."""
    return process(Path(sys.executable).with_name("tarmac"), "verify", version)


def decoding(corpus: Path, total: int) -> Cost:
    """A bare loop over files in memory in one process a core, scaled to all images."""
    loop = f"from tests.benchmarks.bench_build import decode; decode({str(corpus)!r})"
    running = [
        subprocess.Popen([sys.executable, "-c", loop], stdout=subprocess.PIPE, text=True)
        for _ in range(CORES)
    ]
    took = [float(one.communicate()[0]) for one in running]
    return Cost(statistics.mean(took) * total / DECODED / CORES)


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


def large(corpus: Path, shards: int, samples: int) -> Path:
    """Its images are noise of the wanted size, which is no image: for levels that do not decode."""
    version = corpus / f"large-{shards}-{samples}"
    if not (version / "build.json").exists():
        shutil.rmtree(version, ignore_errors=True)
        many_shards.make(version, shards, samples, random.Random(0).randbytes(LARGE_IMAGE))
    return version


def main(corpus: Path, samples: int, rounds: int) -> None:
    wide, small, big, five = (
        many(corpus, MANY),
        many(corpus, FEW),
        large(corpus, *LARGE),
        large(corpus, *FIVE),
    )
    measured: dict[str, Callable[[], Cost]] = {
        "tarmac, default, 4 GB": lambda: ours(big, "default"),
        **{f"{BARE}, 4 GB, {how}": loop for how, loop in bare(big).items()},
        "openssl sha256, all cores, 4 GB": lambda: openssl(big, CORES),
        "tarmac, default, five shards": lambda: ours(five, "default"),
        **{f"{BARE}, five shards, {how}": loop for how, loop in bare(five).items()},
        f"tarmac, quick, {MANY:,} shards": lambda: ours(wide, "quick"),
        f"tarmac, command, {FEW} small": lambda: command(small),
        "tarmac, the command, 4 GB": lambda: command(big),
        "Python that does nothing": lambda: process(sys.executable, "-c", "pass"),
    }
    sizes = {"4 GB": bytes_of(big), "five shards": bytes_of(five)}
    if samples:
        version = shards_of(corpus, samples)
        sizes["core"] = sizes["full"] = sizes["Pillow"] = bytes_of(version)
        measured |= {
            "tarmac, default, one core": lambda: ours(version, "default", *ONE),
            "openssl sha256, one core": lambda: openssl(version, 1, *ONE),
            "tarmac, full": lambda: ours(version, "full"),
            "Pillow alone, all cores": lambda: decoding(corpus, samples),
        }
    costs: dict[str, list[Cost]] = {name: [] for name in measured}
    loads = []
    for number in range(rounds + 1):
        for name, measure in measured.items():
            cost = measure()
            if number:  # the first round warms the page cache, and compiles the modules
                costs[name].append(cost)
                loads.append(os.getloadavg()[0])
    report(sizes, costs, loads)


def bytes_of(version: Path) -> int:
    return sum(path.stat().st_size for path in version.glob("*/*.tar"))


def report(sizes: dict[str, int], costs: dict[str, list[Cost]], loads: list[float]) -> None:
    busy = f"load average {min(loads):.1f} to {max(loads):.1f}"
    rounds = len(next(iter(costs.values())))
    print(f"blake3 {version_of('blake3')}, median of {rounds}, {CORES} cores, {busy}")
    middle = {name: statistics.median(cost.seconds for cost in some) for name, some in costs.items()}
    cpu = {
        name: statistics.median(cost.cpu for cost in some if cost.cpu is not None)
        for name, some in costs.items()
        if some[0].cpu is not None
    }
    for name, some in costs.items():
        read = next((size for part, size in sizes.items() if part in name), 0)
        rate = f"{read / 1e6 / middle[name]:7,.0f} MB/s" if read else " " * 12
        spent = f"{cpu[name]:6.2f} s of CPU" if name in cpu else " " * 15
        times = sorted(cost.seconds for cost in some)
        print(f"{name:33} {rate} {spent}   {times[0]:.2f} to {times[-1]:.2f} s")
    for name, other, promised in PROMISES:
        if name in middle:
            peers = (one for one in middle if one.startswith(other) and not one.endswith(MAPS))
            peer = min(peers, key=lambda one: middle[one])
            ratio = middle[peer] / middle[name]
            less = f", by CPU {cpu[peer] / cpu[name]:.2f}" if peer in cpu and name in cpu else ""
            print(f"{name} / {peer}: {ratio:.2f}{less}, promised {promised}: {verdict(ratio >= promised)}")
    for kind, most in SECONDS.items():
        name = next(name for name in middle if name.startswith(kind))
        print(f"{name}: {middle[name]:.3f} s, promised {most} s: {verdict(middle[name] <= most)}")
    print(f"of these, Python takes {middle['Python that does nothing']:.3f} s")
    for case in ("4 GB", "five shards"):
        names = {
            name.removesuffix(f", {case}").replace(f", {case},", ","): name for name in middle if case in name
        }
        rows = {
            shown: {"mb_per_s": sizes[case] / 1e6 / middle[name]}
            | ({"cpu_s": cpu[name]} if name in cpu else {})
            for shown, name in names.items()
        }
        results.save("verify", case, rows, rounds, loads)


def verdict(is_kept: bool) -> str:
    return "kept" if is_kept else "NOT KEPT"


if __name__ == "__main__":
    given = dict(enumerate(sys.argv[1:]))
    main(
        Path(given.get(0, Path(tempfile.gettempdir()) / "tarmac-bench-corpus")),
        int(given.get(1, SAMPLES)),
        int(given.get(2, ROUNDS)),
    )
