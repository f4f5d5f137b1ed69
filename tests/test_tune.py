"""Loader settings are measured by the run's agent, once, whoever asks for them, before the training begins."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tasks import stage, tune
from tasks.core.errors import DataError
from tasks.loader.settings import LoaderSettings, Measurement, read_settings, write_settings
from tasks.runs.folder import RunFolder
from tasks.stage import StageResult
from tasks.supervision import launch, stopping
from tasks.supervision.status import look_at_run
from tests.supervision.conftest import end_what_is_left, use_fakes
from tests.supervision.fakes import make_config, make_run
from tests.supervision.test_agent import assert_undisturbed, wait_for
from tests.test_stage import taken

__all__ = ["end_what_is_left", "use_fakes"]

Tuned = StageResult[tune.Tuned]


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Tuned]:
    """Runs the stage on a run, with changes to the config's loader block."""
    monkeypatch.setattr(stage, "get_run_logger", lambda: logging.getLogger("test"))
    monkeypatch.setattr(stage, "_in_background", taken)
    return lambda run, **loader: tune.tune.fn(make_config(tmp_path, loader=loader), run)


def untuned(tmp_path: Path, **behaviour: Any) -> RunFolder:
    run = make_run(tmp_path, behaviour)
    run.loader.unlink()
    return run


def test_who_comes_second_waits_for_the_same_settings(tmp_path: Path, asked: Callable[..., Tuned]) -> None:
    run = untuned(tmp_path, measuring_s=1.0)
    with ThreadPoolExecutor() as pool:
        tuned = [one.result(timeout=120) for one in [pool.submit(asked, run), pool.submit(asked, run)]]
    assert sorted(one.effect for one in tuned) == ["adopted", "changed"]
    [first] = [one for one in tuned if one.effect == "changed"]
    assert first.summary == "measured by the agent" and first.details.started is not None
    launch.wait_for_training(run)
    launch.wait_for_evaluations(run)
    assert_undisturbed(run)
    assert len(look_at_run(run).record.attempts) == 1
    assert asked(run).summary == "kept: measured by the agent"


def test_a_run_at_work_keeps_its_settings(tmp_path: Path, asked: Callable[..., Tuned]) -> None:
    run = make_run(tmp_path, {"step_s": 0.2})
    launch.start_or_adopt(run)
    assert asked(run, workers=2).summary.startswith("left alone: ")
    assert read_settings(run.loader).reason == "of a test"


def test_settings_that_the_config_no_longer_asks_for_are_measured_again(
    tmp_path: Path, asked: Callable[..., Tuned]
) -> None:
    run = make_run(tmp_path, loader={"workers": 1})
    write_settings(run.loader, LoaderSettings(workers=3, prefetch=2, reason="of another config"))
    assert asked(run, workers=1).summary == "measured by the agent"


def test_what_cannot_be_measured_fails_with_the_reason(tmp_path: Path, asked: Callable[..., Tuned]) -> None:
    run = untuned(tmp_path, cannot_measure=True)
    with pytest.raises(DataError, match=r"failed: train/000000\.tar: cannot be read"):
        asked(run)
    assert look_at_run(run).state == "failed" and not run.rank_log(1).exists()


def test_a_run_that_is_cancelled_while_it_is_tuned_never_trains(
    tmp_path: Path, asked: Callable[..., Tuned]
) -> None:
    run = untuned(tmp_path, measuring_s=600.0)
    with ThreadPoolExecutor() as pool:
        tuned = pool.submit(asked, run)
        wait_for(lambda: look_at_run(run).state == "running", 120)
        stopped = stopping.end(run, "enough")
        found: Any = tuned.result(timeout=60)
        assert found.is_cancelled() and "enough" in found.message
    assert stopped.left == () and look_at_run(run).state == "cancelled"
    assert not run.rank_log(1).exists()


@pytest.mark.parametrize(
    ("taken", "reached", "says"),
    [
        (640, None, "1 worker: 932 samples/s, enough for the 640 that the training takes "),
        (640, 608, "enough for the 640 that the training takes, of which it reaches 95\u202f% "),
        (2000, None, "1 worker: 932 samples/s, not enough for the 2,000 that the training takes "),
    ],
)
def test_the_line_says_why_a_slower_setting_is_chosen(
    taken: float, reached: float | None, says: str, tmp_path: Path, asked: Callable[..., Tuned]
) -> None:
    run = make_run(tmp_path)
    rates = [Measurement(workers=n, samples_per_s=rate, first_batch_s=1) for n, rate in ((0, 1886), (1, 932))]
    known = {"taken_per_s": taken, "reached_per_s": reached, "measurements": tuple(rates)}
    write_settings(run.loader, LoaderSettings(workers=1, prefetch=2, reason="x", **known))
    summary = asked(run).summary
    assert summary.startswith("kept: 1 worker: 932 samples/s, ")
    assert summary.endswith(f"{says}(0 workers: 1,886, which it would wait for)")
