import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from tasks.core import process
from tasks.core.errors import DataError, UsageError
from tasks.core.process import available_cores
from tasks.core.schema import Config
from tasks.dataset.version import quarantine
from tasks.dataset.version.quarantine import Quarantined
from tasks.diagnosis import bench, measure, memory, step_rate
from tasks.diagnosis.bench import explain, readers_of, searched, space_of, tune
from tasks.diagnosis.memory import LoaderCost, MachineLimits
from tasks.diagnosis.step_memory import Room
from tasks.loader.feed import Data, Feed
from tasks.loader.settings import LoaderSettings, Measurement, Setting
from tasks.models.recipes import load_recipe
from tests.loader import transforms
from tests.loader.conftest import MakeVersion
from tests.loader.feeds import One


@dataclass
class Stand:
    """In the place of a training's steps: they take no memory, and so many samples a second."""

    rate: float
    steps: list[Any] = field(default_factory=list)
    """The cached ones, as lists of parts."""
    fed_with: list[Any] = field(default_factory=list)
    """The parts that the chosen loader gave."""
    fixed_bytes = 0.0
    pins = False

    def room(self, limits: MachineLimits, ranks: int) -> Room:
        return Room(1e12, "a test")

    def peak_bytes(self, batch: Any, room: Room) -> float:
        return 0.0

    def step_size(self, batch: Any, share: int, part: int) -> int:
        return share

    def ceiling(self, steps: Any) -> float:
        self.steps += steps
        return self.rate

    def fed(self, batches: Iterator[Any], parts: int, workers: int, ahead: int) -> float:
        self.fed_with += [next(batches) for _ in range(parts)]
        return self.rate / 2


def config_with(**loader: Any) -> Config:
    return Config.model_validate(
        {
            "name": "bench",
            "dataset": {
                "output": "data",
                "modality": "image_text",
                "source": {"kind": "table", "path": "t.csv", "image": "file", "caption": "caption"},
            },
            "loader": loader,
            "train": {
                "recipe": "clip",
                "model": {"name": "tarmac/digits"},
                "batch_size": 8,
                "steps": 10,
                "lr": 0.1,
                "checkpoint_every": 5,
            },
        }
    )


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "MEASURED_S", 0.3)
    monkeypatch.setattr(bench, "BATCH_S", 0.1)
    monkeypatch.setattr(bench, "available_cores", lambda: 2)
    use(monkeypatch, transforms.slow)


def use(monkeypatch: pytest.MonkeyPatch, transform: Any) -> None:
    """A transform whose training takes more than any loader gives."""
    monkeypatch.setattr(bench, "load_recipe", lambda train: One(transform))
    takes(monkeypatch, 1e9)


def takes(monkeypatch: pytest.MonkeyPatch, samples_per_s: float) -> Stand:
    stand = Stand(samples_per_s)
    monkeypatch.setattr(step_rate, "Trial", lambda recipe, train: stand)
    return stand


def loader_processes() -> set[int]:
    """Descendants that are neither the forkserver nor multiprocessing's tracker, which live on, nor were there
    before the test."""
    return descendants() - OTHERS


def descendants() -> set[int]:
    mine = psutil.Process()
    return {process.pid for process in mine.children(recursive=True)} - {p.pid for p in mine.children()}


OTHERS: set[int] = set()


@pytest.fixture(autouse=True)
def others() -> None:
    OTHERS.clear()
    OTHERS.update(descendants())


@pytest.mark.parametrize("reader", ["indexed", pytest.param("streaming", marks=pytest.mark.proof)])
def test_what_waits_gains_from_workers(make_version: MakeVersion, quick: None, reader: str) -> None:
    """The transform sleeps 50 ms per sample: less than 20 a second a process, however idle the machine is, so
    even more workers than the two cores gain."""
    seen: list[str] = []
    version = make_version(train=[20, 20])
    settings = tune(config_with(reader=reader), version, lambda done, total, what: seen.append(what))
    assert settings.workers > 2
    assert (settings.prefetch, settings.reader) == (2, None)
    rates = {m.workers: m.samples_per_s for m in settings.measurements}
    assert next(iter(rates)) == 0 and rates[0] < 20 and rates[settings.workers] > 2 * rates[0]
    assert settings.reason.startswith(f"{settings.workers} workers: {rates[settings.workers]:,.0f} samples/s")
    assert f"; 0 workers: {rates[0]:,.0f}; " in settings.reason
    assert settings.reason.count(f"{settings.workers} workers:") == 1
    assert {m.reader for m in settings.measurements} == {reader}
    assert seen[0] == "what the training takes" and f"4 workers, 2 ahead, {reader}" in seen
    assert (settings.taken_per_s, settings.reached_per_s) == (1e9, 5e8)
    assert seen[-1] == f"the training, fed by {settings.workers} workers"
    assert all(m.first_batch_s > 0 for m in settings.measurements)
    assert all(m.cores_busy is not None and 0 <= m.cores_busy < 1.5 for m in settings.measurements)
    assert loader_processes() == set()


def test_numbers_in_the_config_are_kept_without_measuring(tmp_path: Path) -> None:
    settings = tune(config_with(workers=3, prefetch=5), tmp_path)
    assert settings == LoaderSettings(
        workers=3,
        prefetch=5,
        reason="3 workers: given as loader.workers in the config, so nothing was measured",
    )


def test_a_given_prefetch_is_measured_with(make_version: MakeVersion, quick: None) -> None:
    settings = tune(config_with(prefetch=1), make_version(train=[20]))
    assert settings.prefetch == 1
    assert {m.prefetch for m in settings.measurements} == {1}


def test_bench_searches_readers_and_prefetch_whatever_the_config_says(
    make_version: MakeVersion, quick: None
) -> None:
    config, version = config_with(workers=1, prefetch=1), make_version(train=[20, 20])
    bench_ = measure.Bench(measure.feed_of(config, version, One(transforms.slow), prefetch=2), 1)
    space = space_of(config, version, bench_, is_free=True)
    assert (space.workers, space.prefetch) == ([1, 2, 3, 4], (1, 2, 4, 8))
    assert space.readers == ("indexed", "streaming") and len(list(space)) == 32
    streamed = bench_.measure(Setting(1, 4, "streaming"), 2, seed=1)
    assert streamed.setting == Setting(1, 4, "streaming") and streamed.samples_per_s > 0


@pytest.mark.parametrize(
    ("loader", "train", "readers"),
    [
        ({}, {}, ("indexed", "streaming")),
        ({"reader": "streaming"}, {}, ("streaming", "indexed")),
        ({"shuffle": "samples"}, {}, ("indexed",)),
        ({"on_bad": "replace"}, {}, ("indexed",)),
        ({"stage": "node"}, {}, ("indexed",)),
        ({}, {"data": [{"dataset": "data"}, {"dataset": "more"}]}, ("indexed",)),
    ],
)
def test_only_readers_that_the_config_allows_are_tried(
    make_version: MakeVersion, loader: dict[str, Any], train: dict[str, Any], readers: tuple[str, ...]
) -> None:
    config = config_with(**loader).model_dump(mode="json", by_alias=True)
    config["train"] |= train
    assert readers_of(Config.model_validate(config), make_version(train=[4, 4])) == readers


def test_memory_bounds_what_is_tried(
    make_version: MakeVersion, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine with room for two workers, and one with room for none."""
    config, version = config_with(), make_version(train=[20, 20])
    assert config.train is not None
    bench_ = measure.Bench(measure.feed_of(config, version, One(transforms.slow), prefetch=2), 1)
    cost = LoaderCost(sample=1e3, working=0.0, worker=100e6, main=1e9)
    monkeypatch.setattr(memory, "measure", lambda feed: cost)
    monkeypatch.setattr(memory, "limits", lambda: MachineLimits(1.25e9 / memory.SPARE, "a test", 1e12, 10**6))
    space = space_of(config, version, bench_, is_free=False)
    best, measured = searched(bench_, space, 2, 1e9)
    assert best.workers == 2 and {m.workers for m in measured} <= {0, 1, 2}
    monkeypatch.setattr(memory, "limits", lambda: MachineLimits(1e9, "a test", 1e12, 10**6))
    with pytest.raises(UsageError, match=r"train\.batch_size: 8 samples a rank do not fit into memory"):
        space_of(config, version, bench_, is_free=False)


def test_bad_data_ends_the_measurement(
    make_version: MakeVersion, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, transforms.refusing)
    with pytest.raises(DataError, match=r"train/000000\.tar row 13, key 'k000013': the picture is all black"):
        tune(config_with(), make_version(train=[20]))
    assert loader_processes() == set()


@pytest.mark.parametrize(
    "way", ["replaced", pytest.param("in the dataset's quarantine", marks=pytest.mark.proof), "in the run's"]
)
def test_bad_data_that_the_run_does_without_is_none_here(
    make_version: MakeVersion, quick: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, way: str
) -> None:
    use(monkeypatch, transforms.refusing)
    version, run = make_version(train=[20]), tmp_path / "run"
    if way == "replaced":
        assert tune(config_with(on_bad="replace"), version).workers > 0
        return
    folder = run if way == "in the run's" else version
    bad = Quarantined(version.name, "train", "train/000000.tar", "k000013", "member.undecodable")
    quarantine.add(folder, [bad])
    copy = run / quarantine.NAME if way == "in the run's" else None
    assert tune(config_with(), version, quarantine=copy).workers > 0


def test_a_config_without_training_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="train: missing"):
        tune(config_with().model_copy(update={"train": None}), tmp_path)


def test_it_stops_at_the_workers_that_are_enough(
    make_version: MakeVersion, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker gives 16 to 20 samples a second on an idle machine, and more than 3 on any."""
    takes(monkeypatch, 2.0)
    monkeypatch.setattr(bench, "available_cores", lambda: 16)
    settings = tune(config_with(), make_version(train=[20, 20]))
    assert settings.workers == 1
    assert [measured.workers for measured in settings.measurements] == [0, 1]
    assert (
        "the training takes 2.0 samples/s, and of the workers that load beside it the fewest win"
        in settings.reason
    )


@pytest.mark.parametrize("micro_batch", [None, 3])
def test_the_ceiling_is_of_whole_steps_and_so_is_what_the_loader_feeds(
    make_version: MakeVersion, quick: None, monkeypatch: pytest.MonkeyPatch, micro_batch: int | None
) -> None:
    """However few samples can be loaded in the time: 50 ms each, and a step of 8 in parts."""
    stand = takes(monkeypatch, 2.0)
    config = config_with()
    assert config.train is not None
    train = config.train.model_copy(update={"micro_batch": micro_batch})
    tune(config.model_copy(update={"train": train}), make_version(train=[20, 20]))
    parts = [8] if micro_batch is None else [3, 3, 2]
    assert [[len(part["key"]) for part in step] for step in stand.steps] == [parts]
    assert [len(part["key"]) for part in stand.fed_with] == parts


def test_all_that_is_loaded_in_the_time_is_cached(
    make_version: MakeVersion, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the loader gives it in parts of two samples."""
    use(monkeypatch, transforms.plain)
    stand, config = takes(monkeypatch, 2.0), config_with()
    assert config.train is not None
    train = config.train.model_copy(update={"micro_batch": 2})
    tune(config.model_copy(update={"train": train}), make_version(train=[20, 20]))
    assert len({key for step in stand.steps for part in step for key in part["key"]}) > 2


def test_cached_batches_are_divided_into_steps_and_used_again_where_they_are_few() -> None:
    batch = {"key": [str(n) for n in range(10)], "image": torch.arange(10)}
    steps = step_rate.cached_steps(batch, size=4, part=3)
    assert [[part["key"] for part in step] for step in steps] == [
        [["0", "1", "2"], ["3"]],
        [["4", "5", "6"], ["7"]],
    ]
    assert steps[1][0]["image"].tolist() == [4, 5, 6]
    [[whole]] = step_rate.cached_steps(batch, size=25, part=25)
    assert whole["image"].tolist() == [n % 10 for n in range(25)]
    assert len(step_rate.cached_steps(batch, size=1, part=1)) == step_rate.CACHED


@pytest.fixture
def trial(make_version: MakeVersion) -> tuple[step_rate.Trial, measure.Bench]:
    """The digits' model on the test's pictures."""
    config = config_with()
    assert config.train is not None
    recipe = load_recipe(config.train)
    feed = Feed.of(config, [Data(make_version(train=[20]))], recipe)
    return step_rate.Trial(recipe, config.train), measure.Bench(feed, 1)


def test_the_ceiling_of_a_real_training_is_measured(
    trial: tuple[step_rate.Trial, measure.Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loader that takes 0.1 s a batch has no part in it, and no step changes the process's random state."""
    steps, bench_ = trial
    before = torch.get_rng_state()
    batch = bench_.batch(8)
    assert steps.step_size(batch, 8, 8) == 8
    monkeypatch.setattr(step_rate, "MEASURED_S", 0.3)
    assert 8 / 30 < steps.ceiling(step_rate.cached_steps(batch, 8, 8)) < 1e5
    assert torch.equal(torch.get_rng_state(), before)


def test_a_step_that_takes_long_is_cut_to_whole_parts(
    trial: tuple[step_rate.Trial, measure.Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, bench_ = trial
    monkeypatch.setattr(steps, "_timed", lambda steps: 1.0)
    batch = bench_.batch(8)  # a sample takes an eighth of a second, so 40 of them take the longest time
    assert [
        steps.step_size(batch, share, part) for share, part in ((32, 32), (64, 64), (64, 16), (999, 41))
    ] == [
        32,
        40,
        32,
        40,
    ]


def test_a_slow_loader_is_seen_in_what_the_training_reaches(
    trial: tuple[step_rate.Trial, measure.Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch takes 0.2 s to arrive, so no more than 40 samples a second can be trained on."""
    steps, bench_ = trial
    monkeypatch.setattr(step_rate, "FED_S", 0.5)
    batch = bench_.batch(8)

    def slow() -> Iterator[Any]:
        while True:
            time.sleep(0.2)
            yield batch

    assert 0 < steps.fed(slow(), parts=1, workers=1, ahead=2) <= 40
    free = steps.fed(iter(lambda: batch, None), parts=2, workers=1, ahead=2)
    assert free > 0


def measured(**rates: float) -> list[Measurement]:
    return [Measurement(workers=int(n[1:]), samples_per_s=r, first_batch_s=0.1) for n, r in rates.items()]


@pytest.mark.parametrize(
    ("taken", "why"),
    [
        (
            1000,
            "the training takes 1,000 samples/s, and of the workers that load beside it the fewest win that give 1.5 times that",
        ),
        (
            0.43,
            "the training takes 0.43 samples/s, and of the workers that load beside it the fewest win that give 1.5 times that",
        ),
        (
            3000,
            "the training takes 3,000 samples/s, and no setting gives 1.5 times that: it may wait for data",
        ),
        (9000, "the training takes 9,000 samples/s, so it waits for data: the loader limits it"),
    ],
)
def test_the_reason_is_in_words(taken: float, why: str) -> None:
    measurements = measured(w0=1920, w1=1400, w2=3410)
    reason = f"2 workers: 3,410 samples/s; 0 workers: 1,920; 1 worker: 1,400; {why}"
    assert explain(measurements[2], measurements, taken) == reason


def test_the_reason_names_what_differs_from_the_chosen() -> None:
    none, one, two = measured(w0=1920, w1=1400, w2=3410)
    deep = two.model_copy(update={"prefetch": 4, "samples_per_s": 3400.0})
    stream = two.model_copy(update={"reader": "streaming", "samples_per_s": 3000.0})
    reason = explain(two, [none, one, two, deep, stream], 9000)
    assert "; 2 workers, 4 ahead: 3,400; 2 workers, streaming: 3,000; " in reason


@pytest.mark.parametrize(("quota", "cores"), [("150000 100000", 2), ("max 100000", 64), ("50000 100000", 1)])
def test_a_containers_quota_counts(
    quota: str, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(64)))
    monkeypatch.setattr(process, "CPU_QUOTA", tmp_path / "cpu.max")
    assert available_cores() == 64
    (tmp_path / "cpu.max").write_text(quota)
    assert available_cores() == cores


def test_the_forkserver_can_start_before_torch_is_imported() -> None:
    code = "import sys, tasks.diagnosis.bench; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
