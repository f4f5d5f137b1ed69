"""Runs the tests of `tarmac bench`, from one sample to a steady stream, and finds what limits a training.

Each test is a process of its own with a deadline, so that a loader that hangs gives an answer: its workers
keep their state in files, which show where they stand. The search for settings is the one before a training
(bench.py), except that it may also choose the reader and the batches ahead.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.core import child, pages
from tasks.core.charts import Chart, Series
from tasks.core.errors import DataError
from tasks.core.findings import Finding
from tasks.core.schema import Config
from tasks.core.screen import Progress, no_progress
from tasks.core.units import near, number
from tasks.diagnosis.bench import BATCH_S
from tasks.diagnosis.examination import write_page
from tasks.diagnosis.mixing import ShuffleQuality
from tasks.loader import worker_state
from tasks.loader.settings import LoaderSettings, Measurement, Reader
from tasks.loader.worker_state import WorkerStage

if TYPE_CHECKING:
    from tasks.diagnosis.measure import Bench

ONE_SAMPLE_S, ONE_WORKER_S, SEARCH_S, SUSTAINED_S = 180.0, 180.0, 900.0, 180.0
"""The deadlines of the tests, including start and imports."""
STEADY_S, WINDOW_S, WINDOWS = 1.0, 1.0, 8
NEAR = 0.9
"""A training that reaches this share of its ceiling is limited by itself."""
LENGTHS = "lengths"
"""The folder of the samples' lengths, which the first test leaves for the others where samples are packed."""
OF_A_SAMPLE = (
    WorkerStage.OPEN,
    WorkerStage.READ,
    WorkerStage.DECODE,
    WorkerStage.TRANSFORM,
    WorkerStage.COLLATE,
)


@dataclass(frozen=True)
class StagedFindings:
    """The results of the tests.

    `first` holds the seconds to the first sample by stage, `steady` those of a later sample; `hand-over` is a
    sample's share of the way of its batch from a worker. `sustained` is the number of samples per second over
    WINDOWS seconds with the chosen settings, `slowest` the number in the slowest second. `limit` is the
    finding about what limits the training. `shuffle` is how well the samples are shuffled by the config's own
    reader and `order`, for each dataset.
    """

    first: Mapping[str, float]
    steady: Mapping[str, float]
    settings: LoaderSettings
    sustained: float
    slowest: float
    limit: Finding
    order: str
    shuffle: Mapping[str, ShuffleQuality]

    def to_json(self) -> dict[str, Any]:
        return {
            "first_sample_s": dict(self.first),
            "sample_s": dict(self.steady),
            "sustained_per_s": self.sustained,
            "slowest_second_per_s": self.slowest,
            "shuffle": [{"dataset": name, **one.to_json()} for name, one in self.shuffle.items()],
            **self.settings.model_dump(mode="json"),
        }

    def shuffle_lines(self) -> Iterator[str]:
        """Yield a line for each dataset: `windows, 0.12 of a perfect shuffle's mixing of shards …`."""
        for name, one in self.shuffle.items():
            yield f"{self.order}{f' of {name}' if len(self.shuffle) > 1 else ''}, {one}"


def bench(config: Config, version: Path, progress: Progress = no_progress) -> StagedFindings:
    """Run all tests, with a search for loader settings whether or not the config gives them.

    DataError for data that cannot be read, and for a test that its deadline ended, with the place where it
    stood.
    """
    given = {"config": config.model_dump(mode="json"), "version": str(version)}
    private = config.dataset.private
    with tempfile.TemporaryDirectory() as folder:
        states = Path(folder)
        here = {**given, "states": folder}
        progress(0, 0, "one sample")
        alone = _tested("one_sample", here, ONE_SAMPLE_S, states, no_progress, private)
        progress(0, 0, "one worker")
        handing = _tested("one_worker", here, ONE_WORKER_S, states, no_progress, private)
        searching = {**given, "lengths": str(states / LENGTHS), "is_free": True}
        found = _tested("bench:tune", searching, SEARCH_S, states, progress, private)
        settings = LoaderSettings.model_validate(found)
        progress(0, 0, f"{settings.workers} workers for {WINDOWS * WINDOW_S:.0f} s")
        chosen = {**here, **settings.model_dump(include={"workers", "prefetch", "reader"})}
        rates = _tested("sustained", chosen, SUSTAINED_S, states, no_progress, private)
    sustained, slowest = sum(rates) / len(rates), min(rates)
    steady = {**alone["steady"], WorkerStage.HAND_OVER.label: handing}
    limit = limit_of(settings, steady, sustained)
    loader = config.loader
    order = f"{loader.shuffle}, streaming" if loader.reader == "streaming" else loader.shuffle
    qualities = {name: ShuffleQuality(**figures) for name, figures in alone["shuffle"].items()}
    return StagedFindings(alone["first"], steady, settings, sustained, slowest, limit, order, qualities)


def one_sample(config: Config, version: Path, states: Path) -> dict[str, dict[str, Any]]:
    """Return, in a fresh process that loads by itself, the seconds by stage, first and on average, and how
    well each dataset is shuffled."""
    began = time.perf_counter()
    from tasks.diagnosis.measure import feed_of, qualities_of
    from tasks.loader.batches import TRAIN, open_split
    from tasks.models.recipes import load_recipe

    assert config.train is not None
    recipe = load_recipe(config.train)
    whole = feed_of(config, version, recipe, lengths=states / LENGTHS, states=states)
    feed = replace(whole, batch_size=1)
    imported = time.perf_counter()
    for data in feed.datasets:
        open_split(data.version, TRAIN, data.quarantined)
    opened = time.perf_counter()
    with feed.train() as batches:
        path = worker_state.WorkerStates(states, 0, TRAIN).path(0)
        samples = len(next(batches)["key"])
        first = worker_state.read_state(path)
        while time.perf_counter() - opened < STEADY_S:
            samples += len(next(batches)["key"])
        last = worker_state.read_state(path)
    assert first is not None and last is not None
    shuffled = qualities_of(replace(whole, world_size=config.engine.train.processes))
    return {
        "shuffle": {
            near(data.version): asdict(one) for data, one in zip(whole.datasets, shuffled, strict=True)
        },
        "first": {"import": imported - began, "index": opened - imported, **_seconds(first, 1)},
        "steady": _seconds(last, samples),
    }


def one_worker(config: Config, version: Path, states: Path) -> float:
    """Return the seconds per sample that batches take from their worker to the process that trains.

    One worker with one batch at a time is never ahead, so the time that it does not spend on the batch is the
    way.
    """
    from tasks.loader.batches import TRAIN

    bench = _bench_of(config, version, states, prefetch=1)
    size = min(bench.feed.batch_size, bench.samples_within(BATCH_S))
    with bench.batches(workers=1, batch_size=size) as batches:
        path = worker_state.WorkerStates(states, 0, TRAIN).path(0)
        next(batches)
        before, began, samples = worker_state.read_state(path), time.perf_counter(), 0
        while (elapsed := time.perf_counter() - began) < STEADY_S:
            samples += len(next(batches)["key"])
        after = worker_state.read_state(path)
    assert before is not None and after is not None
    made = sum(after.seconds[stage] - before.seconds[stage] for stage in OF_A_SAMPLE)
    return max(elapsed - made, 0.0) / max(samples, 1)


def sustained(
    config: Config, version: Path, states: Path, workers: int, prefetch: int, reader: Reader
) -> list[float]:
    """Return the samples in each of WINDOWS seconds, after as many batches as the queues hold."""
    loader, rates = config.loader.model_copy(update={"reader": reader}), []
    bench = _bench_of(config, version, states, prefetch=prefetch)
    assert config.train is not None
    with bench.batches(workers, config.train.batch_size, loader=loader) as batches:
        for _ in range(1 + workers * prefetch):
            next(batches)
        for _ in range(WINDOWS):
            samples, began = 0, time.perf_counter()
            while (elapsed := time.perf_counter() - began) < WINDOW_S:
                samples += len(next(batches)["key"])
            rates.append(samples / elapsed)
    return rates


def _bench_of(config: Config, version: Path, states: Path, **others: Any) -> Bench:
    """Return a bench of the training's feed, whose workers keep their states in a folder."""
    from tasks.diagnosis.measure import Bench, feed_of
    from tasks.models.recipes import load_recipe

    assert config.train is not None
    recipe, lengths = load_recipe(config.train), states / LENGTHS
    feed = feed_of(config, version, recipe, lengths=lengths, states=states, **others)
    return Bench(feed, config.train.threads)


def limit_of(settings: LoaderSettings, steady: Mapping[str, float], sustained: float) -> Finding:
    """Return the finding about what keeps the training from going faster: itself where the loader lets it
    reach NEAR of its ceiling, else the stage that a sample spends the most time in. A loader that alone gives
    enough may still take the cores that the training computes on."""
    share = settings.reached_share
    facts = {
        "loader_per_s": round(sustained, 1),
        "training_per_s": settings.taken_per_s,
        "reached_per_s": settings.reached_per_s,
        "headspace": None if share is None else round(share, 3),
    }
    if share is None or share >= NEAR:
        remedy = "more workers change nothing; a larger batch, bf16 or a faster device may"
        return Finding("compute.bound", "info", remedy, evidence=facts)
    slowest = max(steady, key=lambda stage: steady[stage])
    of_sample = round(steady[slowest] / sum(steady.values()), 2)
    code, remedy = REMEDIES.get(slowest, ("loader.bound", "make the recipe's transform cheaper"))
    return Finding(code, "warning", remedy, evidence={**facts, "stage": slowest, "share": of_sample})


REMEDIES = {
    "hand-over": ("loader.bound", "give smaller samples: fewer pixels, or uint8 until on the device"),
    "open": ("disk.slow", "larger shards (dataset.shard.bytes), or a disk that is nearer"),
    "read": ("disk.slow", "put the dataset on a faster disk, or near the training"),
    "decode": ("decode.slow", "build smaller pictures (dataset.image.max_side), or add loader cores"),
}


def charts_of(found: StagedFindings) -> list[Chart]:
    """Draw rate, time to the first batch and memory by workers, per reader and batches ahead."""
    measured, taken = found.settings.measurements, found.settings.taken_per_s
    rate = f"{found.settings.unit}/s"
    levels = [] if taken is None else [(f"the training takes {number(taken, 2)} {rate}", taken)]
    lines = dict.fromkeys((one.reader, one.prefetch) for one in measured)

    def over_workers(
        title: str, y_label: str, value_of: Callable[[Measurement], float], **more: Any
    ) -> Chart:
        series, texts = [], []
        for reader, prefetch in lines:
            name = f"{reader}, {prefetch} ahead" if len(lines) > 1 else title
            own = [one for one in measured if (one.reader, one.prefetch) == (reader, prefetch)]
            points = sorted((float(one.workers), value_of(one)) for one in own)
            series.append(Series(name, points, marked=True))
            values = "; ".join(f"{workers:.0f}: {value:,.2f}" for workers, value in points)
            texts.append(f"{name}: {values}" if len(lines) > 1 else values)
        words = f"{y_label} by workers: {'. '.join(texts)}"
        return Chart(title, words, "workers", y_label, series, x_is_whole=True, **more)

    charts = [
        over_workers("Throughput", rate, lambda one: one.samples_per_s, levels=levels),
        over_workers("First batch", "seconds", lambda one: one.first_batch_s),
    ]
    if all(one.memory_bytes is not None for one in measured):
        charts.append(
            over_workers("Memory", "GB of all processes", lambda one: (one.memory_bytes or 0) / 1e9)
        )
    return charts


def save_bench_page(found: StagedFindings, name: str, path: Path) -> None:
    """Write the page of a bench of the config called `name`. UsageError where it cannot be written."""
    page = pages.render(
        "diagnosis/bench.html", found=found, name=name, charts=charts_of(found), written=time.time()
    )
    write_page(page, path)


def _tested(
    test: str, arguments: dict[str, Any], deadline_s: float, states: Path, progress: Progress, private: bool
) -> Any:
    """Return the result of a test: a function of this module, or `module:function` of this package."""
    began = time.monotonic()

    def check() -> None:
        if time.monotonic() - began > deadline_s:
            at = "; ".join(_standing(state) for state in worker_state.read_all(states)) or "before any sample"
            raise DataError(
                f"{test}: not done within {deadline_s:.0f} s; it stood {at}: see the disk, then "
                "the recipe's transform"
            )

    target = f"tasks.diagnosis.{test}" if ":" in test else f"tasks.diagnosis.staged:{test}"
    return child.call(target, arguments, progress, private, check)


def _standing(state: worker_state.WorkerState) -> str:
    where = f" of {state.shard}" if state.shard else ""
    return f"{time.time() - state.since:.0f} s in {state.stage.label}{where} (worker {state.worker})"


def _seconds(state: worker_state.WorkerState, samples: int) -> dict[str, float]:
    return {stage.label: state.seconds[stage] / samples for stage in OF_A_SAMPLE}
