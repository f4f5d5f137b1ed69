"""Samples a second from the same shards, by Tarmac's two readers, a plain DataLoader over tarfile, and webdataset.

All decode the same JPEGs to the same tensors with the same number of workers and the page cache warm. Tarmac's
indexed reader also compares every sample's CRC32C and keeps an exact position, which the others do not. Peers
take turns, so that a busy machine meets all alike; ratios below about 1.3 say nothing on two cores.

    .venv/bin/python -m tests.benchmarks.bench_loader [workers]
"""

from __future__ import annotations

import io
import os
import statistics
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import webdataset
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from tasks.dataset.index import INDEX
from tasks.dataset.layout import index_name, shard_name
from tasks.dataset.tar.writer import ShardWriter
from tasks.loader import forkserver
from tasks.loader.batches import train_batches
from tasks.loader.decoders import image_of
from tests.benchmarks.pace import SECONDS, measure

SHARDS, SAMPLES, BATCH = 8, 500, 64
ROUNDS = 5


def transform(sample: dict[str, bytes], generator_seed: int | None) -> dict[str, Any]:
    picture = image_of(sample).resize((224, 224), Image.Resampling.BILINEAR)
    return {"image": torch.from_numpy(np.asarray(picture).copy()), "caption": sample["txt"].decode()}


def version_of(version: Path, jpeg: Callable[[np.random.Generator], bytes]) -> list[Path]:
    """SHARDS tars of SAMPLES pictures with captions, and their index."""
    rng = np.random.default_rng(0)
    rows = []
    (version / "train").mkdir(parents=True)
    (version / index_name("train")).parent.mkdir()
    for shard in range(SHARDS):
        with ShardWriter(version / shard_name("train", shard)) as writer:
            for number in range(SAMPLES):
                caption = f"a gradient, number {number} of {shard}".encode()
                span = writer.add(f"s{shard}n{number}", {"jpg": jpeg(rng), "txt": caption})
                rows.append((shard, span.offset, span.length, span.crc32c))
            writer.finish()
    np.save((version / index_name("train")), np.array(rows, INDEX))
    sizes = ", ".join(f'"{shard:06d}.tar": {SAMPLES}' for shard in range(SHARDS))
    (version / "train" / "sizes.json").write_text(f"{{{sizes}}}")
    return sorted((version / "train").glob("*.tar"))


def gradient(rng: np.random.Generator) -> bytes:
    """A noisy gradient of 256 x 256 pixels, about 30 KB a JPEG."""
    ramp = np.linspace(0, 200, 256)[:, None, None] + np.zeros((256, 256, 3))
    file = io.BytesIO()
    pixels = (ramp + rng.integers(0, 55, (256, 256, 3))).astype(np.uint8)
    Image.fromarray(pixels).save(file, "JPEG", quality=75)
    return file.getvalue()


class PlainTars(IterableDataset[dict[str, Any]]):
    """What one writes without a library: every worker goes through its own tars."""

    def __init__(self, files: list[Path]) -> None:
        self.files = files

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = get_worker_info()
        while True:
            for path in self.files[worker.id :: worker.num_workers] if worker else self.files:
                with tarfile.open(path) as tar:
                    sample: dict[str, bytes] = {}
                    for member in tar:
                        content = tar.extractfile(member)
                        assert content is not None
                        sample[member.name.partition(".")[2]] = content.read()
                        if len(sample) == 2:
                            yield transform(sample, None)
                            sample = {}


def plain(files: list[Path], workers: int) -> AbstractContextManager[Iterator[Any]]:
    return _loader(PlainTars(files), workers)


def by_webdataset(files: list[Path], workers: int) -> AbstractContextManager[Iterator[Any]]:
    stream = webdataset.WebDataset([str(path) for path in files], shardshuffle=False).shuffle(1000)
    return _loader(stream.map(partial(transform, generator_seed=None)).repeat(), workers)


def _loader(dataset: Any, workers: int) -> AbstractContextManager[Iterator[Any]]:
    def batches() -> Iterator[Any]:
        yield from DataLoader(dataset, BATCH, num_workers=workers, multiprocessing_context=context)

    context = "forkserver" if workers else None
    return closing(batches())


def main(workers: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        version = Path(folder)
        files = version_of(version, gradient)
        ours = partial(
            train_batches,
            version,
            transform,
            batch_size=BATCH,
            seed=0,
            shuffle="windows",
            workers=workers,
            prefetch=2,
        )
        peers: dict[str, Callable[[], AbstractContextManager[Iterator[Any]]]] = {
            "plain DataLoader": partial(plain, files, workers),
            "webdataset": partial(by_webdataset, files, workers),
            "tarmac indexed": ours,
            "tarmac streaming": partial(ours, reader="streaming"),
        }
        forkserver.start("webdataset")
        results: dict[str, list[tuple[float, float]]] = {name: [] for name in peers}
        for number in range(ROUNDS + 1):
            for name, start in peers.items():
                result = measure(start(), skipped=2 * workers)
                if number:  # the first round warms the page cache and the forkserver
                    results[name].append(result)
        report(results, workers)


def report(results: dict[str, list[tuple[float, float]]], workers: int) -> None:
    base = statistics.median(rate for rate, _ in results["plain DataLoader"])
    print(f"{workers} workers, {ROUNDS} rounds of {SECONDS:.0f} s, load average {os.getloadavg()[0]:.1f}")
    for name, measured in results.items():
        rates = [rate for rate, _ in measured]
        first = statistics.median(seconds for _, seconds in measured)
        print(
            f"{name:17} {statistics.median(rates):7,.0f} samples/s ({min(rates):,.0f} to {max(rates):,.0f})  "
            f"{statistics.median(rates) / base:4.2f} x plain  first batch {first:.2f} s"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2)
