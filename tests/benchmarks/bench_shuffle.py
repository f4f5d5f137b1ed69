"""How well this loader shuffles, beside webdataset, MosaicML streaming and a perfect shuffle, and what each costs.

The orders are those of the real packages (shuffle_peers.py) and of this loader's own plans, over the same samples in
shards of equal size, of two epochs and one rank. Nothing here depends on time or load, except which worker of
webdataset is asked first. The figures are those of tasks.diagnosis.mixing; what an order costs follows from it as well:

- cached: the samples of the shards that are in use, between the first and the last sample taken of them. A loader
  that fetches whole shards needs them on its disk to fetch each once.
- read ahead: the samples that a loader which reads shards from front to back has read and not given yet, in memory.

    .venv/bin/python -m tests.benchmarks.bench_shuffle [FOLDER]

writes shuffle-quality.json and .svg into FOLDER, which is docs for the pictures of its pages.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from tasks.core.charts import Chart, Series
from tasks.core.pages import render
from tasks.diagnosis.mixing import (
    distinct_shards,
    indexed_draw,
    met_again,
    neighbour_distance,
    perfect_distinct_shards,
    rank_correlation,
    streamed_draw,
)
from tasks.loader.lanes import LANES, Lane, lane_count
from tasks.loader.order import WINDOW, Integers, order_of
from tests.system.foreign_env import foreign_env

SHARD_SIZES, BATCH, WORKERS, EPOCHS = (128, 512, 2048, 8192), 256, 4, 2
SAMPLES = LANES[0] * max(SHARD_SIZES)
"""A multiple of the lanes of a stream, so that each of its epochs ends with a whole batch."""
SAMPLE_BYTES = 30_000
"""What a sample is taken to have: a JPEG of 256 pixels with its caption."""
PERFECT = "perfect shuffle"
OURS = {"windows": "tarmac, windows", "samples": "tarmac, samples", "streaming": "tarmac, streaming"}
PEERS = {"webdataset": "webdataset", "py1s": "MosaicML py1s", "py1e": "MosaicML py1e"}
READS_AHEAD = ("tarmac, streaming", "webdataset")
"""The orders that read shards from front to back; the others take samples from anywhere in a shard."""


def perfect(shards: int, size: int) -> Integers:
    generator = np.random.default_rng(0)
    return np.concatenate([generator.permutation(shards * size) for _ in range(EPOCHS)])


def ours(name: str, shards: int, size: int) -> Integers:
    samples, sizes = shards * size, [size] * shards
    steps = range(EPOCHS * samples // BATCH)
    if name == "streaming":
        lanes = lane_count(shards, 1)
        lane = Lane(0, lanes, sizes, 0, max(WINDOW // lanes, 1))
        return streamed_draw(lane, lanes, 1, BATCH, sizes)(steps)
    order = order_of("samples" if name == "samples" else "windows", samples, shards, SAMPLE_BYTES)
    return indexed_draw(order, 0, BATCH, sizes)(steps)


def peer(name: str, shards: int, size: int) -> Integers:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "order.npy")
        words = [name, shards, size, BATCH, WORKERS, Path(folder, "tars"), out]
        script = Path(__file__).with_name("shuffle_peers.py")
        command = [str(word) for word in (foreign_env("loaders") / "python", script, *words)]
        subprocess.run(command, check=True, capture_output=True)
        order: Integers = np.load(out)
    return order


ORDERS: dict[str, Callable[[int, int], Integers]] = {
    PERFECT: perfect,
    **{label: partial(ours, name) for name, label in OURS.items()},
    **{label: partial(peer, name) for name, label in PEERS.items()},
}
"""The samples of EPOCHS epochs, by the number of shards and of the samples in each."""


def figures(order: Integers, shards: int, size: int) -> dict[str, float]:
    """Return the figures of an order, from its first epochs; each of these holds every sample once."""
    samples, sizes = shards * size, [size] * shards
    epochs = [order[start : start + samples] for start in range(0, len(order), samples)]
    assert all(len(np.unique(epoch)) == samples for epoch in epochs), "each epoch holds each sample once"
    batches = order.reshape(-1, BATCH)
    correlations = [rank_correlation(np.arange(samples), epoch) for epoch in epochs]
    own, expected = distinct_shards(batches, sizes), perfect_distinct_shards(sizes, BATCH)
    return {
        "shards_per_batch": own,
        "perfect_shards_per_batch": expected,
        "shard_mixing": own / expected,
        "neighbour_distance": neighbour_distance(order[None], samples),
        "storage_correlation": math.sqrt(sum(one**2 for one in correlations) / len(epochs)),
        "met_again": met_again(epochs[0], epochs[1], BATCH, samples),
        "perfect_met_again": (BATCH - 1) / (samples - 1),
        "cached": sum(cached(epoch, size) for epoch in epochs) / len(epochs),
        "read_ahead": max(read_ahead(epoch, size) for epoch in epochs),
    }


def cached(epoch: Integers, size: int) -> float:
    """The samples of all shards in use, on average over an epoch, [samples], of shards of that size."""
    shard = epoch // size
    last = len(epoch) - 1 - np.unique(shard[::-1], return_index=True)[1]
    first = np.unique(shard, return_index=True)[1]
    return float((last - first + 1).sum() * size / len(epoch))


def read_ahead(epoch: Integers, size: int) -> float:
    """The most samples that were read and not given, where each shard is read from its front as far as its
    samples are asked for; over an epoch, [samples]."""
    highest = np.full(len(epoch) // size, -1)
    read, most = 0, 0
    for given, place in enumerate(epoch.tolist()):
        shard, row = divmod(place, size)
        if row > highest[shard]:
            read += row - int(highest[shard])
            highest[shard] = row
        most = max(most, read - given)
    return float(most)


def measured() -> list[dict[str, Any]]:
    found = []
    for size in SHARD_SIZES:
        shards = SAMPLES // size
        for label, order_by in ORDERS.items():
            one = figures(order_by(shards, size), shards, size)
            if label not in READS_AHEAD:
                del one["read_ahead"]
            rounded = {name: round(value, 4) for name, value in one.items()}
            found.append({"loader": label, "shard_size": size, "shards": shards, **rounded})
            print(row(found[-1]), flush=True)
    return found


def row(one: dict[str, Any]) -> str:
    ahead = f"read ahead {megabytes(one['read_ahead'])}" if "read_ahead" in one else ""
    return (
        f"  {one['shards']:5,} x {one['shard_size']:5,}  {one['loader']:18} shards {one['shard_mixing']:.3f}"
        f"  distance {one['neighbour_distance']:.3f}  drift {one['storage_correlation']:.2f}"
        f"  met again {one['met_again']:.4f}  cached {megabytes(one['cached'])}  {ahead}"
    )


def megabytes(samples: float) -> str:
    return f"{samples * SAMPLE_BYTES / 1e6:,.0f} MB"


def chart_of(found: Sequence[dict[str, Any]]) -> Chart:
    """Quality by cost: a point for each size of shards."""
    lines = [label for label in dict.fromkeys(one["loader"] for one in found) if label != PERFECT]

    def points(label: str) -> list[tuple[float, float | None]]:
        own = [one for one in found if one["loader"] == label]
        return sorted((one.get("read_ahead", one["cached"]) / SAMPLES, one["shard_mixing"]) for one in own)

    texts = "; ".join(
        f"{label} {', '.join(f'{share or 0:.2f} at {cost:.2f}' for cost, share in points(label))}"
        for label in lines
    )
    sizes = ", ".join(f"{size:,}" for size in SHARD_SIZES)
    return Chart(
        title="Mixing of shards",
        description=f"Shards in a batch of {BATCH} of {SAMPLES:,} samples, as a share of those of a perfect "
        f"shuffle, by the samples held for it, in shards of {sizes} samples: {texts}",
        x_label="samples held to read each shard once, as a share of all",
        y_label=f"shards in a batch of {BATCH}, as a share of a perfect shuffle's",
        series=[Series(label, points(label), marked=True) for label in lines],
        x_high=1.0,
        y_high=1.0,
    )


def main(folder: Path | None = None) -> None:
    print(f"{SAMPLES:,} samples, batches of {BATCH}, {WORKERS} workers, load {os.getloadavg()[0]:.1f}")
    packages = subprocess.run(
        [foreign_env("loaders") / "python", "-c", VERSIONS], check=True, capture_output=True, text=True
    )
    versions = {**json.loads(packages.stdout), "numpy": version("numpy")}
    print("  " + ", ".join(f"{name} {number}" for name, number in versions.items()))
    found = measured()
    if folder is None:
        return
    facts = {"samples": SAMPLES, "batch": BATCH, "workers": WORKERS, "sample_bytes": SAMPLE_BYTES}
    (folder / "shuffle-quality.json").write_text(
        json.dumps({**facts, "versions": versions, "figures": found}, indent=1) + "\n"
    )
    (folder / "shuffle-quality.svg").write_text(render("core/chart.svg", chart=chart_of(found)))


VERSIONS = (
    "import json; from importlib.metadata import version as v; "
    "print(json.dumps({name: v(name) for name in ('webdataset', 'mosaicml-streaming')}))"
)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
