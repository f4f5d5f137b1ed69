"""Batches for a CLIP a second, beside open_clip's own loader and others, by the size of the pictures.

All decode the same JPEGs, crop them at random as open_clip's trainer does, tokenize the captions and give
normalised float32 batches, with the same number of workers (or threads, where a loader has those) and the page
cache warm. open_clip is the loader of its trainer (`get_wds_dataset`); webdataset, litData, MDS and Grain run
open_clip's transform; SPDL and DALI decode and resize by what they bring. Tarmac compares every sample's CRC32C
besides. Each measurement is a process of its own, imports do not count, and all take turns.

    .venv/bin/python -m tests.benchmarks.bench_clip [ROUNDS [SIZE...]]

SIZE is `256x256`; the five of the table unless given, which takes an hour.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.benchmarks import results
from tests.benchmarks.bench_loader import (
    BATCH,
    ROUNDS,
    SHARDS,
    WORKERS,
    Command,
    in_turn,
    realistic,
    show,
    version_of,
)
from tests.system.foreign_env import foreign_env

MODEL = "ViT-B-32"
SAMPLES = 4_000
SIZES = ("256x256", "384x384", "512x512", "640x480", "1024x768")
THEIR_WORKERS = 4
"""open_clip's default, with which its first batch is compared."""
FORMATS = ("webdataset", "litdata", "mds", "grain")
PIPELINES = ("spdl", "dali")
PROMISED, OTHERS, FIRST = 2.0, 1.0, 0.2
"""Samples a second over open_clip's and over any other's; the first batch over open_clip's by its defaults."""


def contenders(version: Path) -> dict[str, Command]:
    """The commands by name; each prints rate, seconds to the first batch, and milliseconds of CPU a sample."""
    here, tars = Path(__file__).parent, version / "train"
    ours, theirs = Path(sys.executable), foreign_env("open_clip") / "python"
    module, given = "tests.benchmarks.clip", [BATCH, MODEL]
    found: dict[str, Command] = {
        "tarmac": [ours, "-m", f"{module}_ours", version, WORKERS, *given],
        "open_clip": [theirs, "-m", f"{module}_peer", tars, WORKERS, *given],
        "open_clip, its defaults": [theirs, "-m", f"{module}_peer", tars, THEIR_WORKERS, *given],
    }
    loaders, script = foreign_env("loaders") / "python", here / "loader_peers.py"
    for name in FORMATS:
        stored = version / name
        subprocess.run([loaders, script, "store", name, tars, stored], check=True, capture_output=True)
        found[name] = [loaders, script, "load", name, tars, stored, WORKERS, MODEL]
    pipelines, script = foreign_env("pipelines") / "python", here / "pipeline_peers.py"
    found |= {name: [pipelines, script, name, tars, WORKERS, *given] for name in PIPELINES}
    if subprocess.run(
        [pipelines, "-c", "import spdl.io; spdl.io.demux_image"], capture_output=True
    ).returncode:
        print("  spdl is left out: it needs FFmpeg's shared libraries, as Debian's package ffmpeg has them")
        del found["spdl"]
    return found


def measure(size: str, rounds: int) -> dict[str, dict[str, float]]:
    width, height = map(int, size.split("x"))
    with tempfile.TemporaryDirectory() as folder:
        version_of(Path(folder), realistic(width, height), SAMPLES // SHARDS)
        found = in_turn(contenders(Path(folder)), rounds)
    rows = {
        name: {"samples_per_s": rate, "first_batch_s": first, "cpu_ms": cpu_ms}
        for name, (rate, first, cpu_ms) in found.items()
    }
    for name, row in rows.items():
        print(
            f"  {name:24} {row['samples_per_s']:7,.0f} samples/s  {row['cpu_ms']:5.2f} ms CPU  "
            f"first {row['first_batch_s']:.2f} s"
        )
    mine, theirs, defaults = (rows[name] for name in ("tarmac", "open_clip", "open_clip, its defaults"))
    ratio = mine["samples_per_s"] / theirs["samples_per_s"]
    show("samples/s over open_clip's", ratio, f"at least {PROMISED}", ratio >= PROMISED)
    best = max({*FORMATS, *PIPELINES} & {*rows}, key=lambda name: rows[name]["samples_per_s"])
    ratio = mine["samples_per_s"] / rows[best]["samples_per_s"]
    show(f"samples/s over those of {best}, the best other", ratio, f"at least {OTHERS}", ratio >= OTHERS)
    ratio = mine["first_batch_s"] / defaults["first_batch_s"]
    show("first batch over open_clip's by its defaults", ratio, f"at most {FIRST}", ratio <= FIRST)
    return rows


def main(rounds: int, sizes: list[str]) -> None:
    for size in sizes:
        print(f"{size}, {WORKERS} workers, medians of {rounds}, load {results.load():.1f}", flush=True)
        results.save("clip_loading", size, measure(size, rounds), rounds)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS, sys.argv[2:] or list(SIZES))
