"""Batches for a CLIP a second, beside open_clip's own loader over the same shards.

Both decode the same JPEGs, crop them as open_clip's trainer does, tokenize the captions and give normalised
float32 batches, with the same number of workers and the page cache warm. Each measurement is a process of its
own, and they take turns. The peer is the loader of open_clip's trainer (`get_wds_dataset`); ours compares every
sample's CRC32C besides.

    .venv/bin/python -m tests.benchmarks.bench_clip [WORKERS [SIDE...]]

SIDE: pixels of the square pictures; 256 and 512 unless given.
"""

from __future__ import annotations

import io
import os
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from tests.benchmarks.bench_loader import BATCH, ROUNDS, version_of
from tests.system.foreign_env import foreign_env

MODEL = "ViT-B-32"
WORKERS, SIDES = 2, (256, 512)


def clouds(rng: np.random.Generator, side: int) -> bytes:
    """A JPEG of some 18 KB at 256 pixels."""
    picture = Image.fromarray(rng.integers(0, 256, (side // 8, side // 8, 3), np.uint8))
    file = io.BytesIO()
    picture.resize((side, side), Image.Resampling.BICUBIC).save(file, "JPEG", quality=85)
    return file.getvalue()


def rate(python: Path, module: str, folder: Path, workers: int) -> float:
    command = [python, "-m", f"tests.benchmarks.{module}", folder, workers, BATCH, MODEL]
    done = subprocess.run(
        [str(part) for part in command],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return float(done.stdout.split()[-1])


def main(workers: int, sides: list[int]) -> None:
    for side in sides:
        with tempfile.TemporaryDirectory() as folder:
            version_of(Path(folder), partial(clouds, side=side))
            contenders = {
                "open_clip": (foreign_env("open_clip") / "python", "clip_peer", Path(folder) / "train"),
                "tarmac": (Path(sys.executable), "clip_ours", Path(folder)),
            }
            rates: dict[str, list[float]] = {name: [] for name in contenders}
            for number in range(ROUNDS + 1):
                for name, (python, module, where) in contenders.items():
                    measured = rate(python, module, where, workers)
                    if number:  # the first round warms the page cache
                        rates[name].append(measured)
        ours, theirs = (statistics.median(rates[name]) for name in ("tarmac", "open_clip"))
        print(
            f"{side} pixels, {workers} workers: tarmac {ours:,.0f} samples/s, open_clip {theirs:,.0f}: "
            f"{ours / theirs:.2f} x (median of {ROUNDS}, load average {os.getloadavg()[0]:.1f})",
            flush=True,
        )


if __name__ == "__main__":
    main(
        int(sys.argv[1]) if len(sys.argv) > 1 else WORKERS,
        [int(side) for side in sys.argv[2:]] or list(SIDES),
    )
