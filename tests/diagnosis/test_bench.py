import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from tasks.core import process
from tasks.core.errors import DataError, UsageError
from tasks.core.process import available_cores
from tasks.core.schema import Config
from tasks.dataset import quarantine
from tasks.dataset.quarantine import Entry
from tasks.diagnosis import bench, measure
from tasks.diagnosis.bench import choose, explain, tune, worker_counts
from tasks.loader.settings import LoaderSettings, Measurement
from tests.loader import transforms
from tests.loader.conftest import MakeVersion


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
    monkeypatch.setattr(measure, "MEASURED_S", 0.5)
    monkeypatch.setattr(bench, "available_cores", lambda: 2)
    use(monkeypatch, transforms.slow)


def use(monkeypatch: pytest.MonkeyPatch, transform: Any) -> None:
    monkeypatch.setattr(bench, "load", lambda train: SimpleNamespace(transform=lambda is_train: transform))


def loader_processes() -> set[int]:
    """Descendants that are neither the forkserver nor multiprocessing's tracker, which live on."""
    mine = psutil.Process()
    return {process.pid for process in mine.children(recursive=True)} - {p.pid for p in mine.children()}


@pytest.mark.parametrize("reader", ["indexed", "streaming"])
def test_what_waits_gains_from_workers(make_version: MakeVersion, quick: None, reader: str) -> None:
    """The transform sleeps 50 ms a sample: less than 20 a second a process, however idle the machine is."""
    seen: list[tuple[int, int, str]] = []
    settings = tune(config_with(reader=reader), make_version(train=[20, 20]), lambda *of: seen.append(of))
    assert settings.workers == 2
    assert settings.prefetch == 2
    rates = {m.workers: m.samples_per_s for m in settings.measurements}
    assert list(rates) == [0, 1, 2]
    assert 0 < rates[0] < 20 and rates[1] < 20 and rates[2] > rates[1]
    assert settings.reason.startswith(f"2 workers: {rates[2]:,.0f} samples/s; 0 workers: {rates[0]:,.0f}; ")
    assert [done for done, _, _ in seen] == [0, 1, 2, 3]
    assert all(m.first_batch_s > 0 for m in settings.measurements)
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
    assert len(settings.measurements) == 3


def test_bad_data_ends_the_measurement(
    make_version: MakeVersion, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, transforms.refusing)
    with pytest.raises(DataError, match=r"train/000000\.tar row 13, key 'k000013': the picture is all black"):
        tune(config_with(), make_version(train=[20]))
    assert loader_processes() == set()


@pytest.mark.parametrize("way", ["replaced", "in the dataset's quarantine", "in the run's"])
def test_bad_data_that_the_run_does_without_is_none_here(
    make_version: MakeVersion, quick: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, way: str
) -> None:
    use(monkeypatch, transforms.refusing)
    version, run = make_version(train=[20]), tmp_path / "run"
    if way == "replaced":
        assert tune(config_with(on_bad="replace"), version).workers > 0
        return
    folder = run if way == "in the run's" else version
    bad = Entry(version.name, "train", "train/000000.tar", "k000013", "member.undecodable")
    quarantine.add(folder, [bad])
    copy = run / quarantine.NAME if way == "in the run's" else None
    assert tune(config_with(), version, quarantine=copy).workers > 0


def test_a_config_without_training_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="train: missing"):
        tune(config_with().model_copy(update={"train": None}), tmp_path)


def test_counts_are_none_half_and_all() -> None:
    assert [worker_counts(cores) for cores in (1, 2, 3, 16)] == [[0, 1], [0, 1, 2], [0, 1, 3], [0, 8, 16]]


def measured(**rates: float) -> list[Measurement]:
    return [Measurement(workers=int(n[1:]), samples_per_s=r, first_batch_s=0.1) for n, r in rates.items()]


@pytest.mark.parametrize(
    ("rates", "workers"),
    [
        ({"w0": 1000, "w1": 1050, "w2": 1100}, 1),
        ({"w0": 900, "w1": 989, "w2": 1100}, 2),
        ({"w0": 1920, "w1": 1700, "w2": 3410}, 2),
        ({"w0": 3000, "w1": 100, "w2": 105}, 1),
    ],
)
def test_the_fewest_workers_that_read_ahead_within_a_tenth_win(rates: dict[str, float], workers: int) -> None:
    assert choose(measured(**rates)).workers == workers


def test_the_reason_is_in_words() -> None:
    measurements = measured(w0=1920, w1=2000, w2=3410)
    assert explain(measurements[2], measurements) == (
        "2 workers: 3,410 samples/s; 0 workers: 1,920; 1 worker: 2,000; "
        "within 10 % the fewest workers win, of those that read ahead"
    )


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
