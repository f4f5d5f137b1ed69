"""Chooses a run's loader settings by measurements, until a setting gives what the training takes.

The batches come from the feed of the training itself, so the figures hold for the run. Its own steps on
cached batches show how many samples it takes, which is the most that any loader could give it. Nothing else
uses the cores while the loader is measured, so those figures are what it can deliver; the same steps, fed
with the chosen settings, show at the end what the run will reach beside it. A measurement of some seconds
cannot find a slow spot further on in the data; in return it costs the same for every dataset.

torch is imported late, because the loader's forkserver is forked before all else, as in the training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tasks.core.errors import UsageError
from tasks.core.process import available_cores
from tasks.core.schema import Config
from tasks.core.screen import Progress, no_progress
from tasks.core.units import counted, number
from tasks.dataset.version.layout import index_name
from tasks.diagnosis import memory
from tasks.diagnosis.memory import LoaderSize
from tasks.diagnosis.search import Search, Space, predicted_workers, worker_counts
from tasks.diagnosis.step_memory import cost_of, require_room
from tasks.loader import forkserver
from tasks.loader.settings import LoaderSettings, Measurement, Reader, Setting
from tasks.models.recipes import load_recipe, module_of

if TYPE_CHECKING:
    from tasks.diagnosis.measure import Bench

BATCH_S = 0.25
MARGIN = 1.5
"""The workers share the cores with the training, and one batch takes longer than another."""
PREFETCH = 2
"""`auto`: one batch in hand and one ready hide the usual differences between batches; more cost memory."""
DEPTHS = (1, 2, 4, 8)
"""The batches ahead that bench tries; a search begins at PREFETCH and goes lower only for memory."""


def tune(
    config: Config,
    version: Path,
    progress: Progress = no_progress,
    quarantine: Path | None = None,
    lengths: Path | None = None,
    is_free: bool = False,
) -> LoaderSettings:
    """Return loader settings for training on `version`, with the reason and all measurements.

    `quarantine` is the file of the samples that are left out, by default the dataset's own; `lengths` is the
    folder of the samples' lengths, where they are packed and known. Numbers in the config are kept, and so is
    its reader, unless `is_free`, which searches all settings. No process is left behind. DataError for data
    that cannot be read, UsageError where not even one worker fits, or a step of the training does not.
    """
    if config.train is None:
        raise UsageError("train: missing; only a run that trains has loader settings")
    prefetch = PREFETCH if is_free or config.loader.prefetch == "auto" else config.loader.prefetch
    forkserver.fork(module_of(config.train))
    from tasks.diagnosis.measure import Bench, feed_of
    from tasks.diagnosis.step_rate import CACHED, Trial, cached_steps

    recipe = load_recipe(config.train)  # comes first, because it finds a mistake in train.model
    if config.loader.workers != "auto" and not is_free:
        given = config.loader.workers
        reason = f"{_workers(given)}: given as loader.workers in the config, so nothing was measured"
        return LoaderSettings(workers=given, prefetch=prefetch, reason=reason)
    progress(0, 0, "what the training takes")
    limits, ranks = memory.limits(), config.engine.train.per_node
    feed = feed_of(config, version, recipe, quarantine, lengths, prefetch=prefetch)
    bench = Bench(feed, config.train.threads)
    unit: Literal["samples", "rows"] = "samples" if config.train.pack is None else "rows"
    share = config.train.batch_size // config.engine.train.processes
    loaded = bench.samples_within(BATCH_S)
    size = min(share, loaded)  # volumes go in small batches
    part = min(config.train.micro_batch or share, share)
    trial = Trial(recipe, config.train)
    room = trial.room(limits, ranks)
    cost = cost_of(lambda count: trial.peak_bytes(bench.batch(count), room), trial.fixed_bytes, part, room)
    require_room(config, cost, part, room, unit)
    cached = bench.batch(min(loaded, CACHED * share))
    step = trial.step_size(cached_steps(cached, min(size, part), part)[0][0], share, part)
    taken = trial.ceiling(cached_steps(cached, step, part))
    space = space_of(config, version, bench, is_free)
    best, measurements = searched(bench, space, size, MARGIN * taken, progress)
    progress(0, 0, f"the training, fed by {_workers(best.workers)}")
    reached = bench.reached(trial, best.setting, step, bench.feed.seed)
    return LoaderSettings(
        workers=best.workers,
        prefetch=best.prefetch,
        reader=best.reader if is_free else None,
        reason=explain(best, measurements, taken, unit),
        unit=unit,
        measurements=tuple(measurements),
        taken_per_s=_rounded(max(taken, reached)),  # other work of the machine may have come to an end
        reached_per_s=_rounded(reached),
    )


def space_of(config: Config, version: Path, bench: Bench, is_free: bool) -> Space:
    """Return the settings that a search may choose from, by default workers alone. A worker is started to
    measure its memory."""
    assert config.train is not None
    ranks = config.engine.train.per_node
    share = max(config.train.batch_size // config.engine.train.processes, 1)
    cost, limits = memory.measure(bench.feed), memory.limits()

    def fits(one: Setting) -> bool:
        size = LoaderSize(one.workers, one.prefetch, bench.feed.part_size, ranks, bench.feed.parts)
        return memory.fits(cost, size, limits)

    depths = DEPTHS if is_free else (bench.feed.prefetch,)
    readers = readers_of(config, version) if is_free else (config.loader.reader,)
    cores = max(available_cores() // ranks, 1)
    space = Space(worker_counts(cores), depths, readers, cores, fits)
    if next(iter(space), None) is None:
        needs = memory.peak_bytes(cost, LoaderSize(1, min(depths), bench.feed.part_size, ranks))
        raise UsageError(
            f"train.batch_size: {share} samples a rank do not fit into memory with one worker: "
            f"{memory.gigabytes(needs)} of {memory.gigabytes(limits.memory)} ({limits.by}); take "
            "fewer, or train.micro_batch"
        )
    return space


def readers_of(config: Config, version: Path) -> tuple[Reader, ...]:
    """Return the config's own reader, and the other one where it can replace it."""
    loader, train = config.loader, config.train
    assert train is not None
    if loader.reader == "streaming":
        return ("streaming", "indexed") if (version / index_name("train")).exists() else ("streaming",)
    is_bound = loader.shuffle == "samples" or loader.on_bad == "replace" or loader.stage is not None
    if is_bound or train.pack is not None or len(train.data or ()) > 1:
        return ("indexed",)
    shards = len(list((version / "train").glob("*.tar")))
    return ("indexed", "streaming") if shards >= config.engine.train.processes else ("indexed",)


def searched(
    bench: Bench, space: Space, size: int, enough: float, progress: Progress = no_progress
) -> tuple[Measurement, list[Measurement]]:
    """Return the chosen measurement and all measurements, the one without workers first."""
    seeds, first = count(bench.feed.seed + 1), Setting(0, bench.feed.prefetch, space.readers[0])

    def measure(setting: Setting) -> Measurement:
        progress(0, 0, f"{_workers(setting.workers)}, {setting.prefetch} ahead, {setting.reader}")
        return bench.measure(setting, size, next(seeds))

    without, alone = bench.alone(first, size, next(seeds))
    start = replace(first, workers=predicted_workers(alone, space.cores, enough))
    search = Search(space, start, enough, measure, alone.samples_per_s)
    chosen = search.run()
    measurements = search.measurements
    best = next(one for one in measurements if one.setting == chosen)
    order = space.readers.index
    return best, [without, *sorted(measurements, key=lambda m: (order(m.reader), m.prefetch, m.workers))]


def explain(
    chosen: Measurement, measurements: Sequence[Measurement], taken: float, unit: str = "samples"
) -> str:
    """Return `2 workers: 3,410 samples/s; 0 workers: 1,920; …`, the chosen one first, and the reason."""
    rates = [f"{_workers(chosen.workers)}: {chosen.samples_per_s:,.0f} {unit}/s"]
    for other in measurements:
        parts = [_workers(other.workers)]
        if other.workers and other.prefetch != chosen.prefetch:
            parts.append(f"{other.prefetch} ahead")
        if other.reader != chosen.reader:
            parts.append(other.reader)
        if other is not chosen:
            rates.append(f"{', '.join(parts)}: {other.samples_per_s:,.0f}")
    training = f"the training takes {number(taken, 2)} {unit}/s"
    if chosen.samples_per_s >= MARGIN * taken:
        rule = (
            f"{training}, and of the workers that load beside it the fewest win that give {MARGIN} times that"
        )
    elif chosen.samples_per_s >= taken:
        rule = f"{training}, and no setting gives {MARGIN} times that: it may wait for data"
    else:
        rule = f"{training}, so it waits for data: the loader limits it"
    return "; ".join([*rates, rule])


def _rounded(rate: float) -> float:
    """Round to five figures: the rate of volumes may be far below one per second."""
    return float(f"{rate:.5g}")


def _workers(count: int) -> str:
    return counted(count, "worker")
