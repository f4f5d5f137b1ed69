"""Whoever trains sees what is left out before the first step, and on the screen of a run that is done."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NoReturn

import pytest

from flows.commands.training import show_up_to_date
from tasks import train as stage
from tasks.core import config as configs
from tasks.core.schema import Config
from tasks.dataset.version import quarantine
from tasks.dataset.version.quarantine import Quarantined
from tasks.reporting.left_out import left_out
from tasks.runs.data import version_path
from tasks.runs.folder import RunFolder
from tasks.runs.plan import plan
from tasks.runs.record import load_record
from tasks.supervision import launch
from tests.reporting.finished_run import finished_run

LINE = "train samples are left out: quarantine.jsonl; tarmac repair data takes back what is sound"


@pytest.fixture
def whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.chdir(tmp_path)
    return finished_run(tmp_path)


@pytest.fixture
def planned(whole: RunFolder) -> tuple[Config, Path, RunFolder]:
    """A run of the same data but for two samples, which are sound again by now."""
    config, version = configs.reload(whole.config), version_path(load_record(whole).data[0])
    entries = [Quarantined(version.name, "train", "train/000000.tar", key, "x") for key in "ab"]
    quarantine.add(config.dataset.output, entries)
    run = plan(config, version)
    quarantine.remove(config.dataset.output, entries)
    return config, version, run


def test_a_run_tells_of_its_own_copy(whole: RunFolder, planned: tuple[Config, Path, RunFolder]) -> None:
    assert left_out(whole) is None
    said = left_out(planned[2])
    assert said is not None and said.startswith("2 of ") and said.endswith(LINE)


def test_the_training_says_so_before_it_starts(
    planned: tuple[Config, Path, RunFolder],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Started(Exception):
        pass

    def start(*arguments: object) -> NoReturn:
        raise Started

    monkeypatch.setattr(launch, "start_or_adopt", start)
    with pytest.raises(Started):
        stage.train.fn(planned[2])
    assert LINE in capsys.readouterr().err


def test_a_pipeline_that_is_up_to_date_says_so(
    planned: tuple[Config, Path, RunFolder], capsys: pytest.CaptureFixture[str]
) -> None:
    assert show_up_to_date(planned[1], planned[2], time.monotonic(), as_json=False) == 0
    assert f"{LINE}\n" in capsys.readouterr().err
