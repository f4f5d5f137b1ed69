"""Tarmac's loader beside other loaders of the same pictures: every ratio that is promised of its speed.

Same pixels: all decode the same JPEGs by Pillow to the same tensors with two workers (Grain: threads), the page
cache warm; bench_clip compares the loaders of a CLIP. A first batch is 64 samples, counted from the making of the
loader, imports done. CPU times and what is counted in them vary less than rates on a busy machine. Of fewer than
20,000 samples most peers begin an epoch, and workers, while they are measured. Tarmac's indexed reader also compares
every sample's CRC32C and keeps an exact position. Peers run in environments of their own (loader_peers.py).
"""

from __future__ import annotations

import io
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from tasks.dataset.tar.writer import ShardWriter
from tasks.dataset.version.index import INDEX
from tasks.dataset.version.layout import index_name, shard_name
from tasks.diagnosis.memory import tree_bytes
from tests.benchmarks import loader_ours
from tests.benchmarks.harness import (
    Benchmark,
    Case,
    Column,
    Command,
    Contestant,
    Failed,
    Figures,
    Promise,
    Row,
    Setup,
    call,
    share,
    times,
    value,
)

SHARDS, SAMPLES, BATCH, WORKERS = 8, 500, 64, 2
"""Samples are those of a shard."""
PACE = ("samples_per_s", "first_batch_s", "cpu_ms")
"""What a pace is printed as."""
PACE_COLUMNS = (
    Column("samples_per_s", "samples/s"),
    Column("cpu_ms", "ms of CPU a sample", ".2f"),
    Column("first_batch_s", "first batch, s", ".2f"),
)
PICTURES = ("torch", "pillow", "simplejpeg", "numpy")
PEERS = ("plain", "webdataset", "litdata", "mds", "grain")
INDEXED = "tarmac, indexed"
TAR_BASED = ("plain", "webdataset")
CASE = "JPEGs of 400 x 300 to 640 x 480"
EPOCHS_ON = (0.5, 3.7)
"""Where training is resumed."""
LOOK_EVERY_S = 0.1


def version_of(
    version: Path, jpeg: Callable[[np.random.Generator], bytes], samples: int = SAMPLES
) -> list[Path]:
    """SHARDS tars of so many pictures with captions, and their index."""
    rng = np.random.default_rng(0)
    rows = []
    (version / "train").mkdir(parents=True)
    (version / index_name("train")).parent.mkdir()
    for shard in range(SHARDS):
        with ShardWriter(version / shard_name("train", shard)) as writer:
            for number in range(samples):
                caption = f"a gradient, number {number} of {shard}".encode()
                span = writer.add(f"s{shard}n{number}", {"jpg": jpeg(rng), "txt": caption})
                rows.append((shard, span.offset, span.length, span.crc32c))
            writer.finish()
    np.save((version / index_name("train")), np.array(rows, INDEX))
    sizes = ", ".join(f'"{shard:06d}.tar": {samples}' for shard in range(SHARDS))
    (version / "train" / "sizes.json").write_text(f"{{{sizes}}}")
    return sorted((version / "train").glob("*.tar"))


def realistic(*size: int) -> Callable[[np.random.Generator], bytes]:
    """Pictures of that width and height, or unless given from 400 x 300 to 640 x 480, of 2.4 bits a pixel; some
    hundred different ones, since making one takes longer than loading it."""
    made: list[bytes] = []

    def jpeg(rng: np.random.Generator) -> bytes:
        if len(made) < 200:
            width, height = size or (int(side) for side in rng.integers((400, 300), (641, 481)))
            file = io.BytesIO()
            clouds = Image.fromarray(rng.integers(0, 255, (height // 8, width // 8, 3)).astype(np.uint8))
            clouds.resize((width, height), Image.Resampling.BICUBIC).save(file, "JPEG", quality=88)
            made.append(file.getvalue())
        return made[int(rng.integers(len(made)))]

    return jpeg


def stored(setup: Setup, action: str, name: str, version: Path, *more: object) -> Contestant:
    """A peer over its own format, in which the pairs are stored at once."""
    place, keys = version / name, PACE if action == "load" else ("p50_us", "p99_us")
    store = setup.peer("loaders", "loader_peers", "store", name, version / "train", place)
    if isinstance(store, Command) and action == "load" and not place.exists():
        store.output()
    environment = "open_clip" if name == "wids" else "loaders"
    return setup.peer(environment, "loader_peers", action, name, version / "train", place, *more, keys=keys)


def pictures(setup: Setup) -> Path:
    version = setup.new_folder()
    version_of(version, realistic(), setup.sized(20_000, 2_000) // SHARDS)
    return version


def same_pixels(setup: Setup) -> Iterator[Case]:
    version = pictures(setup)
    ours = {f"tarmac, {name}": call(loader_ours.paced, name, version) for name in ("indexed", "streaming")}
    yield Case(CASE, ours | {name: stored(setup, "load", name, version) for name in PEERS})


def resuming(setup: Setup) -> Iterator[Case]:
    version, samples = pictures(setup), setup.sized(20_000, 2_000)
    steps = {"at the start": 0} | {f"{on} epochs on": int(on * samples / BATCH) for on in EPOCHS_ON}
    yield Case(CASE, {name: call(loader_ours.resumed, version, step) for name, step in steps.items()})


def reads(setup: Setup) -> Iterator[Case]:
    version = pictures(setup)
    (version / "wids").mkdir()
    yield Case(
        CASE,
        {"tarmac": call(loader_ours.single_reads, version), "wids": stored(setup, "read", "wids", version)},
    )


def memory(setup: Setup) -> Iterator[Case]:
    version = pictures(setup)
    commands = {
        "tarmac, indexed": call(loader_ours.paced, "indexed", version),
        "webdataset": stored(setup, "load", "webdataset", version),
    }
    yield Case(CASE, {name: partial(peak_mb, command) for name, command in commands.items()})


def peak_mb(contestant: Contestant) -> Row:
    """The most memory that a process and its descendants have together, each page counted once."""
    if not isinstance(contestant, Command):
        return contestant()  # which says why it is absent
    most, words = 0.0, [str(word) for word in contestant.words]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:
            most = max(most, tree_bytes(process.pid))
            time.sleep(LOOK_EVERY_S)
    if process.returncode:
        raise Failed(f"{' '.join(words)[:200]} ended with {process.returncode}")
    return {"peak_mb": most / 1e6}


def overhead(setup: Setup) -> Iterator[Case]:
    yield Case(CASE, {"tarmac, indexed": call(loader_ours.overhead, pictures(setup))})


def latest_of(figures: Figures) -> float:
    """How much later the first batch of a resumed training comes than that of a new one."""
    first, *later = (row["first_batch_s"] for row in figures.medians.values())
    return max(later) - first


BENCHMARKS = (
    Benchmark(
        "same_pixels",
        "Loading the same pixels",
        "The same JPEGs by Pillow to the same uint8 pixels, with two workers, or two threads for Grain: what is left "
        "of a loader where the transform is equal.",
        same_pixels,
        PACE_COLUMNS,
        promises=(
            Promise(
                "samples/s over the best peer's", times("samples_per_s", INDEXED, *PEERS), "at least", 1.0
            ),
            Promise(
                "first batch over the best tar-based peer's",
                share("first_batch_s", INDEXED, *TAR_BASED),
                "at most",
                0.5,
            ),
        ),
        packages=PICTURES,
        environments=("loaders",),
        ratio="samples_per_s",
        plot="samples_per_s",
    ),
    Benchmark(
        "reads",
        "Single samples at random",
        "The members of one sample of a version, by its number, beside webdataset's own indexed reader.",
        reads,
        (Column("p50_us", "median, µs", ".1f"), Column("p99_us", "99th percentile, µs", ".1f")),
        promises=(
            Promise("median over that of wids", share("p50_us", "tarmac", "wids"), "at most", 1.0),
            Promise("99th percentile over that of wids", share("p99_us", "tarmac", "wids"), "at most", 1.0),
        ),
        packages=("numpy",),
        environments=("open_clip",),
        ratio="p99_us",
        is_time=True,
    ),
    Benchmark(
        "memory",
        "Memory of loading",
        "The most that the process and its two workers have at once while they load the same pixels; a page that "
        "several share counts once.",
        memory,
        (Column("peak_mb", "MB"),),
        promises=(
            Promise("peak over webdataset's", share("peak_mb", INDEXED, "webdataset"), "at most", 1.0),
        ),
        packages=("torch", "numpy"),
        environments=("loaders",),
    ),
    Benchmark(
        "resuming",
        "The first batch of a resumed training",
        "Seconds from the making of the loader to the first batch of 64, by where the training is taken up.",
        resuming,
        (Column("first_batch_s", "first batch, s", ".2f"),),
        promises=(Promise("later than at the start", latest_of, "at most", 0.3, unit="s"),),
        packages=("torch", "numpy"),
    ),
    Benchmark(
        "overhead",
        "What timing, state and checksums cost",
        "CPU time per sample beyond reading and decoding it: the calls that a worker makes to say what it is at, and the "
        "sample's CRC32C.",
        overhead,
        (Column("cpu_us", "µs of CPU a sample", ".1f"),),
        promises=(Promise("CPU a sample", value(INDEXED, "cpu_us"), "at most", 20, unit="µs"),),
        packages=("google-crc32c",),
    ),
)
