"""Batches for a CLIP a second, beside open_clip's own loader and others, by the size of the pictures.

All decode the same JPEGs, crop them at random as open_clip's trainer does, tokenize the captions and give
normalised float32 batches, with the same number of workers (or threads, where a loader has those) and the page
cache warm. open_clip is the loader of its trainer (`get_wds_dataset`); webdataset, litData, MDS and Grain run
open_clip's transform; SPDL and DALI decode and resize by what they bring. Tarmac compares every sample's CRC32C
besides. Imports do not count.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.bench_loader import (
    BATCH,
    PACE,
    PACE_COLUMNS,
    SHARDS,
    WORKERS,
    realistic,
    stored,
    version_of,
)
from tests.benchmarks.harness import (
    Absent,
    Benchmark,
    Case,
    Command,
    Contestant,
    Promise,
    Setup,
    share,
    times,
)
from tests.system.foreign_env import ROOT

MODEL = "ViT-B-32"
SIZES = ("256x256", "384x384", "512x512", "640x480", "1024x768")
THEIR_WORKERS = 4
"""open_clip's default, with which its first batch is compared."""
DEFAULTS = "open_clip, its defaults"
FORMATS = ("webdataset", "litdata", "mds", "grain")
PIPELINES = ("spdl", "dali")


def contestants(setup: Setup, version: Path) -> dict[str, Contestant]:
    tars, given = version / "train", [BATCH, MODEL]
    ours = [sys.executable, "-m", "tests.benchmarks.clip_ours", version, WORKERS, *given]
    found: dict[str, Contestant] = {"tarmac": Command(ours, PACE)}
    for name, workers in (("open_clip", WORKERS), (DEFAULTS, THEIR_WORKERS)):
        peer = ["-m", "tests.benchmarks.clip_peer", tars, workers, *given]
        found[name] = setup.peer("open_clip", *peer, keys=PACE, cwd=ROOT)
    for name in FORMATS:
        found[name] = stored(setup, "load", name, version, WORKERS, MODEL)
    for name in PIPELINES:
        found[name] = setup.peer("pipelines", "pipeline_peers", name, tars, WORKERS, *given, keys=PACE)
    if not _has_ffmpeg(setup):
        found["spdl"] = without_ffmpeg
    return found


def _has_ffmpeg(setup: Setup) -> bool:
    try:
        probe = [setup.python("pipelines"), "-c", "import spdl.io; spdl.io.demux_image"]
    except Absent:
        return True  # which is missing with it
    return subprocess.run(probe, capture_output=True).returncode == 0


def without_ffmpeg() -> dict[str, float]:
    raise Absent("it needs FFmpeg's shared libraries, as Debian's package ffmpeg has them")


def cases(setup: Setup) -> Iterator[Case]:
    for size in setup.sized(SIZES, SIZES[:1]):
        version = setup.new_folder()
        version_of(version, realistic(*map(int, size.split("x"))), setup.sized(4000, 1000) // SHARDS)
        yield Case(size, contestants(setup, version))


BENCHMARKS = (
    Benchmark(
        "clip_loading",
        "Loading for a CLIP",
        "Batches for a ViT-B-32 (random crop of 0.9 to 1.0 of the picture, 224 pixels, normalised float32, tokens) "
        "from JPEGs of each size, with two workers, or two threads for Grain, SPDL and DALI. webdataset, litData, "
        "MDS and Grain run open_clip's transform; SPDL decodes and resizes by FFmpeg, DALI by its own kernels. The "
        "first batch of 64 is counted from the making of the loader.",
        cases,
        PACE_COLUMNS,
        promises=(
            Promise(
                "samples/s over open_clip's", times("samples_per_s", "tarmac", "open_clip"), "at least", 2.0
            ),
            Promise(
                "samples/s over those of the best other",
                times("samples_per_s", "tarmac", *FORMATS, *PIPELINES),
                "at least",
                1.0,
            ),
            Promise(
                "first batch over open_clip's by its defaults",
                share("first_batch_s", "tarmac", DEFAULTS),
                "at most",
                0.2,
            ),
        ),
        packages=("torch", "pillow", "simplejpeg", "numpy"),
        environments=("open_clip", "loaders", "pipelines"),
        ratio="samples_per_s",
        plot="samples_per_s",
    ),
)
