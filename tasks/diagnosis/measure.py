"""Measures one setting of the loader: the rate that it sustains, and the time to its first batch.

The rate counts from the moment when the queues' first contents are used up, since those were made before the
clock ran.
"""

from __future__ import annotations

import os
import tempfile
import time
import warnings
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tasks.core.quarantine_file import NAME, home, read_quarantine
from tasks.core.schema import Config
from tasks.diagnosis import memory
from tasks.diagnosis.mixing import ShuffleQuality, indexed_draw, quality_of, stream_batches, streamed_draw
from tasks.diagnosis.observation import procfs
from tasks.diagnosis.search import Alone
from tasks.loader.batches import TRAIN, open_split
from tasks.loader.collate import Batch
from tasks.loader.feed import Data, Feed, Shapes, train_shards
from tasks.loader.order import MIXED, portions
from tasks.loader.packing.packs import PACKS_A_WINDOW, UNMEASURED, window_size
from tasks.loader.settings import Measurement, Setting
from tasks.loader.streaming import plan_stream
from tasks.loader.workers import Batches
from tasks.runs.data import shares_of

if TYPE_CHECKING:
    from tasks.diagnosis.step_rate import Trial

MEASURED_S = 0.7
"""The time per setting, up to a batch of the last worker, as workers finish at about one time."""
SAMPLES_MEASURED = 5_000
"""The samples of each dataset that are measured to make packs like those of the training."""


def datasets_of(config: Config, version: Path, quarantine: Path | None = None) -> list[Data]:
    """Return the datasets that a training of the config reads; `version` is a version of its own dataset.

    `quarantine` is the file of the samples that are left out, by default each dataset's own."""
    return [
        Data(path, read_quarantine(quarantine or home(path) / NAME), share)
        for path, share in shares_of(config, version)
    ]


def feed_of(
    config: Config,
    version: Path,
    recipe: Shapes,
    quarantine: Path | None = None,
    lengths: Path | None = None,
    **others: Any,
) -> Feed:
    """Return the feed of a training, packed where the training packs; `others` are further fields.

    `lengths` is the folder of the lengths of some samples, which stand for all. They are measured and left
    there unless they exist. DataError where none of them fits into a row.
    """
    assert config.train is not None
    feed = Feed.of(config, datasets_of(config, version, quarantine), recipe, **others)
    if config.train.pack is None:
        return feed
    with tempfile.TemporaryDirectory() as own:
        folder = Path(own) if lengths is None else lengths
        feed.measure(folder, SAMPLES_MEASURED)
        return feed.packing(config.train.pack, folder)


def rows_an_epoch(feed: Feed) -> int | None:
    """Return how many rows all samples fill, by those measured; None for a feed that does not pack."""
    if feed.packed is None:
        return None
    limits, rows = feed.packed.limits, 0.0
    for one in feed.packed.lengths:
        fits, measured = limits.takes(one), int((one.tokens < UNMEASURED).sum())
        full = max(one.tokens[fits].sum() / limits.tokens, one.images[fits].sum() / limits.images)
        rows += full * len(one.tokens) / max(measured, 1)
    return max(int(rows), 1)


def qualities_of(feed: Feed) -> list[ShuffleQuality]:
    """Return how well each dataset of a feed is shuffled, by the sizes of its shards, in which samples in
    quarantine count as well. The batches are those of all ranks, of which a dataset has its share."""
    if feed.loader.reader == "streaming":
        return [_streamed_quality(feed)]
    found, shares = [], portions([data.weight for data in feed.datasets])
    for place, (data, share) in enumerate(zip(feed.datasets, shares, strict=True)):
        order = open_split(data.version, TRAIN, data.quarantined).order(feed.loader.shuffle)
        sizes, batch, window = train_shards(data.version)[1], feed.batch_size * share / MIXED, 1
        if feed.packed is not None:
            window = window_size(feed.packed.lengths, feed.packed.limits)
            batch *= window / PACKS_A_WINDOW
        size = min(max(round(batch), 1), sum(sizes))
        found.append(
            quality_of(partial(indexed_draw, order, feed.seed + place, size, window=window), sizes, size)
        )
    return found


def _streamed_quality(feed: Feed) -> ShuffleQuality:
    files, sizes = train_shards(feed.data.version)
    transform, seats = feed.shapes.transform(is_train=True), feed.world_size
    stream = plan_stream(feed, files, transform, feed.shapes.collate, 0, None, sizes, None)
    [lanes] = stream.lanes
    size = min(feed.batch_size, sum(sizes)) // seats * seats
    most = stream_batches(seats, len(sizes))
    return quality_of(partial(streamed_draw, lanes[0], len(lanes), seats, size), sizes, size, most)


@dataclass(frozen=True)
class Bench:
    """The feed and the threads of all measurements."""

    feed: Feed
    threads: int

    def __post_init__(self) -> None:
        torch.set_num_threads(self.threads)  # without workers the training process loads

    def batches(self, workers: int, batch_size: int, seed: int = 0, **others: Any) -> Batches:
        """Open the feed with these settings; `others` are further fields of it."""
        return _opened(replace(self.feed, workers=workers, batch_size=batch_size, seed=seed, **others))

    def batch(self, size: int) -> Batch:
        """Return a batch of that many samples, in the form that the training gets."""
        with self.batches(workers=0, batch_size=size, micro_batch=None) as batches:
            return next(batches)

    def samples_within(self, seconds: float) -> int:
        """Return how many samples, at least one, this process loads in that time."""
        with self.batches(workers=0, batch_size=1) as batches:
            next(batches)  # opens files and whatever the transform sets up once
            started = time.perf_counter()
            samples, elapsed = 0, 0.0
            while elapsed < seconds:
                samples += len(next(batches)["key"])
                elapsed = time.perf_counter() - started
        return max(int(samples * seconds / elapsed), 1)

    def measure(
        self, setting: Setting, batch_size: int, seed: int, seconds: float | None = None
    ) -> Measurement:
        """Measure the time to the first batch, and the rate after the queues' contents are used up.

        `seed` differs between measurements, so that each reads other samples where there are many: the
        samples of one measurement lie in the page cache afterwards and would flatter the next.
        """
        workers, started = setting.workers, time.perf_counter()
        loader = self.feed.loader.model_copy(update={"reader": setting.reader})
        with self.batches(workers, batch_size, seed, prefetch=setting.prefetch, loader=loader) as batches:
            next(batches)
            first_batch_s = time.perf_counter() - started
            for _ in range(workers * setting.prefetch):
                next(batches)
            samples, count, started, elapsed = 0, 0, time.perf_counter(), 0.0
            worked_s = _worked_s()
            while elapsed < (seconds or MEASURED_S) or (workers and count % workers):
                samples += len(next(batches)["key"])
                count += 1
                elapsed = time.perf_counter() - started
            cores_busy = (_worked_s() - worked_s) / elapsed
            memory_bytes = int(memory.tree_bytes(os.getpid()))
        return Measurement(
            workers=workers,
            prefetch=setting.prefetch,
            reader=setting.reader,
            samples_per_s=round(samples / elapsed, 1),
            first_batch_s=round(first_batch_s, 3),
            memory_bytes=memory_bytes,
            cores_busy=round(cores_busy, 2),
        )

    def reached(self, trial: Trial, setting: Setting, step_size: int, seed: int) -> float:
        """Return the samples per second of the trial's steps, of so many samples, fed with the setting."""
        workers = setting.workers
        feed = replace(
            self.feed,
            loader=self.feed.loader.model_copy(update={"reader": setting.reader}),
            workers=workers,
            prefetch=setting.prefetch,
            batch_size=step_size,
            seed=seed,
            pin_memory=trial.pins,
        )
        with _opened(feed) as batches:
            return trial.fed(batches, feed.parts, workers, workers * setting.prefetch)

    def alone(self, setting: Setting, batch_size: int, seed: int) -> tuple[Measurement, Alone]:
        """Measure the setting, which has no workers, and how busy this process was."""
        began, wanted = time.perf_counter(), _core_wanted_s()
        measured = self.measure(setting, batch_size, seed)
        busy = (_core_wanted_s() - wanted) / (time.perf_counter() - began)
        return measured, Alone(measured.samples_per_s, min(busy, 1.0))


def _opened(feed: Feed) -> Batches:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create")  # whether that pays is measured
        return feed.train()


def _core_wanted_s() -> float:
    """Return the seconds that this thread worked or waited for a core, but not for a disk."""
    try:
        at_work, in_line, _ = Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()
    except OSError:  # a kernel without it, or not Linux
        return time.thread_time()
    return (int(at_work) + int(in_line)) / 1e9


def _worked_s() -> float:
    """Return the CPU time of this process and its descendants that still live."""
    return sum(found.cpu_s for one in procfs.family(os.getpid()) if (found := procfs.stat(one)) is not None)
