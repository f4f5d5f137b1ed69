"""A table of addresses beside img2dataset: at as many requests at once, from the same server on this machine.

The server answers after 20 ms, under sixteen names, as a table's addresses lie on many hosts. The second measure
has 10 % of addresses that never answer: each costs a wait, which must not add up. img2dataset gives such an address
up after 10 s and forgets it, unless it is told to retry; Tarmac tries it twice and accounts for it.

    .venv/bin/python -m tests.benchmarks.bench_addresses [IMAGES [ROUNDS]]
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tasks.core.remote.addresses import IN_FLIGHT
from tasks.dataset.building.builder import build
from tests.benchmarks.bench_build import HERE
from tests.dataset import raw
from tests.picture_server import LATENCY_S, PictureServer, picture_server
from tests.system.foreign_env import foreign_env

IMAGES, ROUNDS = 5000, 3
WORKERS, HOSTS = 2, 16
PROMISED = 1.0
"""Our images a second over img2dataset's, where every address answers."""


def table(folder: Path, server: PictureServer, images: int, hang_every: int) -> Path:
    def address(number: int) -> str:
        hangs = "hang/" if hang_every and number % hang_every == 0 else ""
        return f"{server.on(f'127.0.0.{1 + number % HOSTS}')}/{hangs}{number}.jpg"

    return raw.write_table(folder, [(address(n), f"picture {n}", "x") for n in range(images)])


def ours(path: Path, out: Path) -> tuple[float, int]:
    config = raw.config(path.parent, out, WORKERS, shard={"samples": 500}, splits={}, reject_budget=0.5)
    began = time.perf_counter()
    accepted = build(config).accepted
    return time.perf_counter() - began, accepted


def peer(path: Path, out: Path, retries: int) -> tuple[float, int]:
    program = [foreign_env("img2dataset") / "python", HERE / "addresses_peer.py"]
    command = [*program, path, out, WORKERS, IN_FLIGHT, retries]
    quiet = {**os.environ, "NO_ALBUMENTATIONS_UPDATE": "1"}
    done = subprocess.run(
        [str(part) for part in command],
        env=quiet,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    if done.returncode:
        sys.exit(f"img2dataset ended with {done.returncode}")
    seconds, images = done.stdout.split()[-2:]
    return float(seconds), int(images)


def measure(images: int, hang_every: int, rounds: int, retries: int) -> tuple[float, float]:
    """The median seconds of both, printed with the images that they got."""
    took: dict[str, list[float]] = {"tarmac": [], "img2dataset": []}
    for _ in range(rounds):
        for name in took:
            with picture_server(LATENCY_S) as server, tempfile.TemporaryDirectory() as folder:
                path, out = table(Path(folder) / "raw", server, images, hang_every), Path(folder) / "out"
                seconds, got = ours(path, out) if name == "tarmac" else peer(path, out, retries)
            took[name].append(seconds)
            hanging = f", {1 / hang_every:.0%} hanging" if hang_every else ""
            told = f", retries={retries}" if name == "img2dataset" else ""
            print(
                f"{name}{told}{hanging}: {got:,} of {images:,} in {seconds:.1f} s, {got / seconds:,.0f} images/s"
            )
    return statistics.median(took["tarmac"]), statistics.median(took["img2dataset"])


def main(images: int, rounds: int) -> None:
    foreign_env("img2dataset")
    mine, theirs = measure(images, 0, rounds, 0)
    verdict = "kept" if theirs / mine >= PROMISED else "NOT KEPT"
    print(
        f"all answer: {theirs / mine:.2f} times img2dataset's images a second, promised {PROMISED}: {verdict}"
    )
    for retries in (0, 1):
        mine, theirs = measure(images, 10, 1, retries)
        print(f"10 % hang: {mine:.1f} s with two tries each, img2dataset {theirs:.1f} s with {1 + retries}")


if __name__ == "__main__":
    given = dict(enumerate(sys.argv[1:]))
    main(int(given.get(0, IMAGES)), int(given.get(1, ROUNDS)))
