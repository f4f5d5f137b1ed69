"""Chooses a run's loader settings by measuring: three numbers of workers, each in the same way.

The batches come from the very function that training uses, with the recipe's own transform, so the figures
hold for the run. Nothing competes for the cores meanwhile, while a training on the CPU does: the figures say
what the loader can deliver, not what the run will reach. A fixed measurement of some seconds cannot see a
slow spot further on in the data; in return it costs the same for every dataset.

torch is imported late, because the loader's forkserver can do the same imports on another core meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tasks.core.errors import UsageError
from tasks.core.process import available_cores
from tasks.core.quarantine import NAME, home, read
from tasks.core.schema import Config
from tasks.core.screen import Progress, no_progress
from tasks.loader import forkserver
from tasks.loader.settings import LoaderSettings, Measurement
from tasks.models.recipes import load, module_of

BATCH_S = 0.25
TOLERANCE = 0.10
PREFETCH = 2
"""`auto`: one batch in hand and one ready hide the usual differences between batches; more costs memory."""


def tune(
    config: Config, version: Path, progress: Progress = no_progress, quarantine: Path | None = None
) -> LoaderSettings:
    """Loader settings for training on `version`, with the reason and whatever was measured for it.

    `quarantine` is the file of the samples that are left out, the dataset's own unless given.
    Numbers in the config are kept as they are. Leaves no process behind. DataError for data that cannot be
    read.
    """
    if config.train is None:
        raise UsageError("train: missing; only a run that trains has loader settings")
    prefetch = PREFETCH if config.loader.prefetch == "auto" else config.loader.prefetch
    forkserver.start(module_of(config.train))
    from tasks.diagnosis.measure import Bench

    recipe = load(config.train)  # first of all, because a mistake in train.model shows here
    if config.loader.workers != "auto":
        given = config.loader.workers
        reason = f"{_workers(given)}: given as loader.workers in the config, so nothing was measured"
        return LoaderSettings(workers=given, prefetch=prefetch, reason=reason)
    counts = worker_counts(available_cores())
    progress(0, len(counts), "worker counts")
    left_out = read(quarantine or home(version) / NAME)
    bench = Bench(version, recipe.transform(True), config.loader, prefetch, config.train.threads, left_out)
    size = min(config.train.batch_size, bench.samples_within(BATCH_S))  # volumes go in small batches
    bench.await_forkserver()
    measurements = []
    for done, workers in enumerate(counts, start=1):
        measurements.append(bench.measure(workers, size, config.train.seed + done))
        progress(done, len(counts), "worker counts")
    best = choose(measurements)
    reason = explain(best, measurements)
    return LoaderSettings(
        workers=best.workers, prefetch=prefetch, reason=reason, measurements=tuple(measurements)
    )


def worker_counts(cores: int) -> list[int]:
    """None, half and all of the cores, each once."""
    return sorted({0, cores // 2, cores})


def choose(measurements: Sequence[Measurement]) -> Measurement:
    """The fewest workers, one at least, that come within TOLERANCE of the best: each costs memory and a core.

    Without a worker nothing is read ahead, so the training stands still while a batch is made, however fast
    that is; the figure of 0 workers says what the workers themselves cost.
    """
    ahead = [measurement for measurement in measurements if measurement.workers]
    best = max(measurement.samples_per_s for measurement in ahead)
    enough = [m for m in ahead if m.samples_per_s >= (1 - TOLERANCE) * best]
    return min(enough, key=lambda m: m.workers)


def explain(chosen: Measurement, measurements: Sequence[Measurement]) -> str:
    """`2 workers: 3,410 samples/s; 0 workers: 1,920; …`, the chosen one first."""
    others = [m for m in measurements if m is not chosen]
    rates = [f"{_workers(chosen.workers)}: {chosen.samples_per_s:,.0f} samples/s"]
    rates += [f"{_workers(m.workers)}: {m.samples_per_s:,.0f}" for m in others]
    rule = f"within {TOLERANCE:.0%} the fewest workers win, of those that read ahead".replace("%", " %")
    return "; ".join([*rates, rule])


def _workers(count: int) -> str:
    return f"{count} worker" if count == 1 else f"{count} workers"
