"""Tarmac's loader beside other loaders of the same pictures: every ratio that is promised of its speed.

Same pixels: all decode the same JPEGs by Pillow to the same tensors with two workers (Grain: threads), the page
cache warm; bench_clip compares the loaders of a CLIP. A first batch is 64 samples, counted from the making of the loader, imports done. Each measurement is a process of
its own, and peers take turns, so that a busy machine meets all alike; CPU times and what is counted in them
vary less than rates there. Of fewer than 20,000 samples most peers begin an epoch, and workers, while they are
measured. Tarmac's indexed reader also compares every sample's CRC32C and keeps an exact
position. Peers run in environments of their own (loader_peers.py).

    .venv/bin/python -m tests.benchmarks.bench_loader [SAMPLES [ROUNDS [SECTION...]]]

SECTION: pixels, resume, memory, reads or overhead; all unless given.
"""

from __future__ import annotations

import io
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tasks.dataset.tar.writer import ShardWriter
from tasks.dataset.version.index import INDEX
from tasks.dataset.version.layout import index_name, shard_name
from tasks.diagnosis.memory import tree_bytes
from tests.benchmarks import results
from tests.benchmarks.pace import Pace
from tests.system.foreign_env import foreign_env

SHARDS, SAMPLES, BATCH, WORKERS = 8, 500, 64, 2
"""Samples are those of a shard."""
ROUNDS = 5
OURS = ("indexed", "streaming")
PEERS = ("plain", "webdataset", "litdata", "mds", "grain")
TAR_BASED = ("plain", "webdataset")
CASE = "JPEGs of 400 x 300 to 640 x 480"
EPOCHS_ON = (0.5, 3.7)
"""Where training is resumed."""
LOOK_EVERY_S = 0.1
Command = Sequence[Any]


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


def ours(action: str, reader: str, version: Path, step: int = 0) -> Command:
    call = "import sys; from tests.benchmarks.loader_ours import main; main(*sys.argv[1:])"
    return [sys.executable, "-c", call, action, reader, version, step]


def peer(action: str, name: str, version: Path) -> Command:
    environment = foreign_env("open_clip" if name == "wids" else "loaders")
    script = Path(__file__).with_name("loader_peers.py")
    return [environment / "python", script, action, name, version / "train", version / name]


def numbers(command: Command) -> tuple[float, ...]:
    """What a process of its own prints last."""
    done = subprocess.run(
        [str(word) for word in command],
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    return tuple(map(float, done.stdout.splitlines()[-1].split()))


def peak_mb(command: Command) -> tuple[float]:
    """The most memory that a process and its descendants have together, each page counted once."""
    most = 0.0
    with subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            most = max(most, tree_bytes(process.pid))
            time.sleep(LOOK_EVERY_S)
    return (most / 1e6,)


def in_turn(
    commands: Mapping[str, Command], rounds: int, take: Callable[[Command], tuple[float, ...]] = numbers
) -> dict[str, tuple[float, ...]]:
    """Medians by name; the first round warms the page cache."""
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in commands}
    for number in range(rounds + 1):
        for name, command in commands.items():
            result = take(command)
            if number:
                found[name].append(result)
    return {name: tuple(map(statistics.median, zip(*all_of, strict=True))) for name, all_of in found.items()}


def show(name: str, ratio: float, promised: str, is_kept: bool) -> None:
    mark = "kept" if is_kept else "NOT KEPT"
    print(f"  {name}: {ratio:.2f}, promised {promised}: {mark}", flush=True)


def same_pixels(version: Path, rounds: int) -> None:
    """Rates and first batches of the same uint8 tensors."""
    for name in PEERS:
        subprocess.run(list(map(str, peer("store", name, version))), check=True, capture_output=True)
    commands = {name: peer("load", name, version) for name in PEERS}
    commands |= {name: ours("pace", name, version) for name in OURS}
    paces = {name: Pace(*values) for name, values in in_turn(commands, rounds).items()}
    for name, pace in paces.items():
        print(
            f"  {name:10} {pace.rate:7,.0f} samples/s  {pace.cpu_ms:5.2f} ms CPU  first batch {pace.first_s:.2f} s"
        )
    rows = {
        f"tarmac, {name}" if name in OURS else name: {
            "samples_per_s": paces[name].rate,
            "cpu_ms": paces[name].cpu_ms,
            "first_batch_s": paces[name].first_s,
        }
        for name in (*OURS, *PEERS)
    }
    results.save("same_pixels", CASE, rows, rounds)
    indexed = paces["indexed"]
    best = max(paces[name].rate for name in PEERS)
    show("samples/s over the best peer's", indexed.rate / best, "at least 1.0", indexed.rate >= best)
    least = min(paces[name].cpu_ms for name in PEERS)
    print(f"  CPU of the most frugal peer over ours: {least / indexed.cpu_ms:.2f}")
    quickest = min(paces[name].first_s for name in TAR_BASED)
    share = indexed.first_s / quickest
    show("first batch over the best tar-based peer's", share, "at most 0.5", share <= 0.5)


def resumed(version: Path, samples: int, rounds: int) -> None:
    steps = [0, *(int(epochs * samples / BATCH) for epochs in EPOCHS_ON)]
    found = in_turn({str(step): ours("first", "indexed", version, step) for step in steps}, rounds)
    firsts = [found[str(step)][1] for step in steps]
    print(
        "  first batch at steps "
        + ", ".join(f"{step}: {s:.2f} s" for step, s in zip(steps, firsts, strict=True))
    )
    later = max(firsts) - firsts[0]
    show("seconds later than at the start", later, "at most 0.3", later <= 0.3)


def reads(version: Path, rounds: int) -> None:
    (version / "wids").mkdir()
    found = in_turn(
        {"wids": peer("read", "wids", version), "indexed": ours("read", "indexed", version)}, rounds
    )
    rows = {
        {"indexed": "tarmac"}.get(name, name): {"p50_us": median, "p99_us": late}
        for name, (median, late) in reversed(found.items())
    }
    results.save("reads", CASE, rows, rounds)
    for place, name in enumerate(("p50", "p99")):
        ratio = found["indexed"][place] / found["wids"][place]
        print(f"  {name}: {found['indexed'][place]:.1f} us, wids {found['wids'][place]:.1f} us")
        show(f"{name} over that of wids", ratio, "at most 1.0", ratio <= 1.0)


def memory(version: Path, rounds: int) -> None:
    commands = {
        "webdataset": peer("load", "webdataset", version),
        "indexed": ours("pace", "indexed", version),
    }
    found = in_turn(commands, rounds, peak_mb)
    (mine,), (theirs,) = found["indexed"], found["webdataset"]
    results.save(
        "memory", CASE, {"tarmac, indexed": {"peak_mb": mine}, "webdataset": {"peak_mb": theirs}}, rounds
    )
    print(f"  peak memory: {mine:,.0f} MB, webdataset {theirs:,.0f} MB")
    show("peak memory over webdataset's", mine / theirs, "at most 1.0", mine <= theirs)


def overhead(version: Path, rounds: int) -> None:
    (taken,) = in_turn({"indexed": ours("overhead", "indexed", version)}, rounds)["indexed"]
    show("us a sample for timing, state and checksums", taken, "under 20", taken < 20)


def main(samples: int, rounds: int, wanted: Sequence[str]) -> None:
    print(f"{samples:,} pictures, {WORKERS} workers, medians of {rounds}, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as folder:
        version = Path(folder)
        version_of(version, realistic(), samples // SHARDS)
        sections: dict[str, Callable[[], None]] = {
            "pixels": partial(same_pixels, version, rounds),
            "resume": partial(resumed, version, samples, rounds),
            "memory": partial(memory, version, rounds),
            "reads": partial(reads, version, rounds),
            "overhead": partial(overhead, version, rounds),
        }
        for name in wanted or sections:
            print(f"{name} (load {os.getloadavg()[0]:.1f})", flush=True)
            sections[name]()


if __name__ == "__main__":
    given = sys.argv[1:]
    main(int((given or ["20000"])[0]), int((given[1:] or [ROUNDS])[0]), given[2:])
