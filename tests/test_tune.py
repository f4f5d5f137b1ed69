"""Two commands on one run: one of them measures, and neither trains without what comes of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tasks import stage, tune
from tasks.core import child
from tasks.core.lock import Lease
from tasks.loader.settings import LoaderSettings, write_settings
from tasks.runs.folder import RunFolder
from tasks.stage import StageResult
from tests.supervision.fakes import make_config

THEIRS = LoaderSettings(workers=1, prefetch=2, reason="theirs", measurements=[])
OURS = {"workers": 0, "prefetch": 2, "reason": "ours", "measurements": []}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A run whose measurement takes no time."""
    monkeypatch.setattr(stage, "get_run_logger", lambda: logging.getLogger("test"))
    monkeypatch.setattr(child, "call", lambda *_: OURS)
    monkeypatch.setattr(tune, "LOOK_AGAIN_S", 0.0)
    return RunFolder(tmp_path / "a-3f9a")


@pytest.fixture
def begun(run: RunFolder, tmp_path: Path) -> Iterator[Callable[..., Future[StageResult]]]:
    """Starts the stage beside the test."""
    with ThreadPoolExecutor() as pool:
        yield lambda **loader: pool.submit(
            tune.tune.fn, make_config(tmp_path, loader=loader), tmp_path / "version", run
        )


def _waiting(begun: Callable[..., Future[StageResult]]) -> Future[StageResult]:
    second = begun()
    with pytest.raises(TimeoutError):
        second.result(timeout=0.3)
    return second


def test_who_comes_second_waits_for_the_settings(
    run: RunFolder, begun: Callable[..., Future[StageResult]]
) -> None:
    with Lease(run.lease):
        second = _waiting(begun)
        write_settings(run.loader, THEIRS)
    assert second.result(timeout=30)["summary"] == "kept: theirs"


def test_who_comes_second_measures_where_the_first_was_broken_off(
    run: RunFolder, begun: Callable[..., Future[StageResult]]
) -> None:
    with Lease(run.lease):
        second = _waiting(begun)
    assert second.result(timeout=30)["summary"] == "ours"
    assert run.loader.exists() and not run.lease.exists()


def test_a_run_at_work_keeps_its_settings(run: RunFolder, begun: Callable[..., Future[StageResult]]) -> None:
    with Lease(run.lease):
        write_settings(run.loader, THEIRS)
        assert begun(workers=2).result(timeout=30)["summary"].startswith("left alone: ")
        assert run.lease.exists()
