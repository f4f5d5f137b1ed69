"""Tarmac's readers, for bench_loader, which calls each function in a process of its own."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import torch
from PIL import Image

from tasks.dataset.tar.format import Sample
from tasks.dataset.version.index import read_index
from tasks.loader import forkserver, worker_state
from tasks.loader.decoders import image_of
from tasks.loader.indexed import IndexedReader
from tasks.loader.worker_state import WorkerStage, WorkerStates
from tasks.loader.workers import Batches
from tests.benchmarks import pace
from tests.loader.feeds import train_batches

BATCH, WORKERS, SIDE = 64, 2, 224
PARTS = 4
"""In which a batch comes, as by `train.micro_batch`; a stream's comes whole."""


def transform(sample: dict[str, bytes], generator_seed: int | None) -> dict[str, Any]:
    picture = image_of(sample).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    return {"image": torch.from_numpy(np.array(picture)), "caption": sample["txt"].decode()}


def batches(version: Path, reader: str, workers: int = WORKERS, start_step: int = 0) -> Batches:
    prefetch = 2 * PARTS if reader == "indexed" else 2  # as many samples ahead as the others have
    options = {"seed": 0, "shuffle": "windows", "workers": workers, "prefetch": prefetch, "reader": reader}
    return train_batches(
        version, transform, batch_size=BATCH, micro_batch=BATCH // PARTS, start_step=start_step, **options
    )


def warm(version: Path, reader: str) -> None:
    """The forkserver's imports, as those of the others do not count."""
    forkserver.fork(transform.__module__)
    with batches(version, reader, 1) as source:
        next(source)


def samples(version: Path) -> Iterator[Sample]:
    """Each once, in random order; the shards are open before."""
    reader = IndexedReader(version, "train")
    for start in np.unique(read_index(version, "train")["shard"], return_index=True)[1].tolist():
        reader.read(start)
    for number in random.Random(0).sample(range(len(reader)), len(reader)):
        yield reader.read(number)


def overhead_us(version: Path) -> float:
    """CPU time that a sample costs beyond reading and decoding it, by the calls that a worker makes: p50."""
    decode = worker_state.decoding(len)
    taken = []
    with tempfile.TemporaryDirectory() as folder:
        writer = WorkerStates(Path(folder), 0, "train").keep(0)
        name = worker_state.shard_field("train/000007.tar")
        for number, sample in enumerate(samples(version)):
            span = b"".join(sample.members.values())  # in the cache, as what was just read
            begin = time.thread_time()
            writer.reading(name, number, number)
            google_crc32c.value(span)
            writer.transforming()
            decode(span)
            writer.enter(WorkerStage.COLLATE)
            writer.handing_over(BATCH)
            taken.append(time.thread_time() - begin)
    return sorted(taken)[len(taken) // 2] * 1e6


def paced(reader: str, version: str, start_step: int = 0, seconds: float = pace.SECONDS) -> dict[str, float]:
    """The pace; imports are not counted."""
    warm(Path(version), reader)
    source = batches(Path(version), reader, start_step=start_step)
    parts = PARTS if reader == "indexed" else 1
    found = pace.measure(source, 2 * WORKERS, parts, seconds)
    return {"samples_per_s": found.rate, "first_batch_s": found.first_s, "cpu_ms": found.cpu_ms}


def resumed(version: str, step: int) -> dict[str, float]:
    """Seconds to the first batch of a training that goes on at this step."""
    return {"first_batch_s": paced("indexed", version, step, 0.0)["first_batch_s"]}


def single_reads(version: str) -> dict[str, float]:
    """Microseconds of reading single samples in random order."""
    return dict(zip(("p50_us", "p99_us"), pace.read_us(samples(Path(version))), strict=True))


def overhead(version: str) -> dict[str, float]:
    """Microseconds of CPU that a sample's timing, state and checksum take together."""
    return {"cpu_us": overhead_us(Path(version))}
