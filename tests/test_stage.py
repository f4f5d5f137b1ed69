"""A shown stage reports its progress, a server that is gone and a child that is killed."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import pytest
from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.objects import TaskRun
from prefect.exceptions import MissingContextError
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Failed

from tasks import control, stage
from tasks.build import build
from tasks.core import child, screen
from tasks.core.child import WITHHELD, Killed
from tasks.core.errors import DataError, Withdrawn
from tasks.core.screen import no_progress
from tasks.dataset.building.conversion.result import BuildResult
from tasks.report import report
from tasks.runs.folder import RunFolder
from tests.supervision.fakes import make_config


@pytest.fixture
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not answer, before the first request."""
    monkeypatch.setattr(stage, "get_run_logger", lambda: logging.getLogger("test"))
    monkeypatch.setattr(stage, "_left_alone_until", 0.0)
    stage._warn.cache_clear()


def test_a_server_that_is_gone_does_not_end_the_work(
    no_server: None, capsys: pytest.CaptureFixture[str]
) -> None:
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        with stage.shown("train") as training:
            training.progress(1, 2, "steps")
        assert stage.best_effort(create_markdown_artifact, "# page", key="page") is None
    warned = "! Prefect's server does not accept updates (ConnectError); the work goes on"
    assert capsys.readouterr().err.splitlines() == [warned]


def test_what_a_thread_warns_of_is_in_the_log_of_the_flow_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A thread that the library starts, such as a lease's, begins outside of the flow run."""
    flow_run: ContextVar[str] = ContextVar("flow_run")

    def run_logger() -> logging.Logger:
        if flow_run.get(None) is None:
            raise MissingContextError
        return logging.getLogger(f"flow-run-{flow_run.get()}")

    monkeypatch.setattr(stage, "get_run_logger", run_logger)
    monkeypatch.setattr(stage.FlowRunContext, "get", lambda: flow_run.get(None))
    monkeypatch.setattr(stage._RunLogHandler, "of_flow", None)
    given = flow_run.set("42")
    stage.forward_logs()
    flow_run.reset(given)
    thread = threading.Thread(target=lambda: logging.getLogger("tasks.core.lock").warning("no heartbeat"))
    thread.start()
    thread.join()
    assert ("flow-run-42", logging.WARNING, "no heartbeat") in caplog.record_tuples


@pytest.mark.parametrize("name", ["build", "report"])
def test_the_end_of_a_stage_outlives_its_server(
    no_server: None, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = {one.name: 0 for one in fields(BuildResult)}
    version = {"version": "v", "digest": "d", "previous": None}
    built = {**counts, **version, "rejects": {}, "up_to_date": True}
    monkeypatch.setattr(child, "call", lambda *_, **__: built)
    monkeypatch.setattr("tasks.report.is_current", lambda _: True)
    monkeypatch.setattr("tasks.report.read_headline", lambda _: None)
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        done = (
            build.fn(make_config(tmp_path)) if name == "build" else report.fn(RunFolder(tmp_path / "a-3f9a"))
        )
    assert done.summary.startswith("up to date")


def test_a_killed_child_is_reported_by_its_stage() -> None:
    said = r"^tune was killed by SIGKILL \(is memory short\?\)$"
    with pytest.raises(Killed, match=said), stage.shown("tune"):
        raise Killed("tasks.diagnosis.bench:tune was killed by SIGKILL")


@pytest.mark.parametrize(
    ("task", "tried", "says"),
    [
        (build, 1, "again in 5 s, 2 tries left"),
        (build, 2, "again in 60 s, 1 try left"),
        (report, 1, "again, 1 try left"),
    ],
)
def test_another_try_is_announced(task, tried: int, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    run = TaskRun(task_key="a", dynamic_key="1", run_count=tried)
    assert stage.is_transient(task, run, Failed(data=Killed("build was killed by SIGKILL")))
    assert capsys.readouterr().err == f"! build was killed by SIGKILL; {says}\n"
    assert not stage.is_transient(task, run, Failed(data=DataError("no")))
    assert capsys.readouterr().err == ""


@dataclass
class Written:
    """A progress artifact as the server would have it, and how often it was written."""

    percent: list[float] = field(default_factory=list)
    says: str = ""

    def create(self, percent: float, key: str, description: str) -> str:
        return self.update("id", percent, description)

    def update(self, identity: str, percent: float, description: str) -> str:
        self.percent.append(percent)
        self.says = description
        return identity


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Written:
    written = Written()
    monkeypatch.setattr(stage, "get_run_logger", lambda: logging.getLogger("test"))
    monkeypatch.setattr(stage, "create_progress_artifact", written.create)
    monkeypatch.setattr(stage, "update_progress_artifact", written.update)
    monkeypatch.setattr(stage, "_left_alone_until", 0.0)
    monkeypatch.setattr(stage, "_in_background", at_once)
    return written


def at_once(ask: Callable[[], Any]) -> Future[Any]:
    """A request that is answered before the stage goes on, so that a test can count."""
    answer: Future[Any] = Future()
    answer.set_result(ask())
    return answer


class Clock:
    """A clock that a test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


def taken(_: object) -> Future[str]:
    """A request that a server has taken, which a test makes up for."""
    answer: Future[str] = Future()
    answer.set_result("id")
    return answer


def test_an_artifact_is_written_once_in_ten_seconds_and_a_percent(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    with stage.shown("train") as fast:
        for step in range(1, 601):
            clock.now += 0.125
            fast.progress(step, 600, "steps", "loss 1.48")
        assert len(written.percent) == 8
        assert written.says == "561/600 steps · loss 1.48 · 8.0/s · 4.9 s left"
        fast.result("600 steps", None)
    assert (written.percent[-1], written.says) == (100.0, "600 steps")
    written.percent.clear()
    with stage.shown("train") as slow:
        for step in range(1, 1001):
            clock.now += 2.5
            slow.progress(step, 10_000, "steps")
    assert len(written.percent) == 11, "more than one a percent"


def test_an_artifact_of_a_long_training_is_written_every_five_minutes(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    with stage.shown("train") as train:
        for step in range(121):  # 0.3 % in an hour
            train.progress(step, 40_000, "steps")
            clock.now += 30
        assert len(written.percent) == 13
        assert written.says.startswith("120/40,000 steps")


@pytest.fixture
def frozen_server() -> Iterator[str]:
    """The address of a server that takes a request and never answers, as a stopped process does."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/api"


def test_a_server_that_hangs_holds_up_neither_progress_nor_cancel(
    no_server: None, frozen_server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    began = time.monotonic()
    monkeypatch.setattr(control, "TIMEOUT_S", 0.5)
    with temporary_settings({PREFECT_API_URL: frozen_server}), stage.shown("train") as train:
        for step in range(10):
            train.progress(step, 10, "steps")
        cancelled = control.Withdrawn("cancelled", "enough")
        answers = iter([None, None])
        monkeypatch.setattr(control, "withdrawal", lambda: next(answers, cancelled))
        assert stage.best_effort(create_markdown_artifact, "# page", key="page") is None
    assert time.monotonic() - began < 10, "the request's own timeout is a minute"
    assert (
        capsys.readouterr().err
        == "! Prefect's server does not accept updates (no answer); the work goes on\n"
    )


def test_a_stage_ends_at_a_hundred_also_when_the_server_was_away(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stage.shown("train") as train:
        train.progress(1, 2, "steps")
        monkeypatch.setattr(stage, "_left_alone_until", time.monotonic() + 60)
        train.progress(2, 2, "steps")
        train.result("2 steps", None)
    assert written.percent == [50.0, 100.0]


def test_what_is_waited_for_is_shown(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    with stage.shown("build") as build:
        for _ in range(100):
            clock.now += 1
            build.progress(0, 0, "held by process 4711; waiting")
        assert written.says == "held by process 4711; waiting"
        assert len(written.percent) == 1
        build.progress(5, 10, "shards")
        assert written.says == "5/10 shards"


def test_the_log_has_a_line_a_minute(
    written: Written, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock(monkeypatch)
    with caplog.at_level("INFO", "test"), stage.shown("train") as train:
        for step in range(200):
            clock.now += 1
            train.progress(step, 1000, "steps")
    assert caplog.messages == [
        "train: 59/1,000 steps · 1.0/s · 16 min left",
        "train: 119/1,000 steps · 1.0/s · 15 min left",
        "train: 179/1,000 steps · 1.0/s · 14 min left",
    ]


def test_a_stalled_stage_shows_for_how_long_and_no_end_and_logs_when_it_goes_on(
    written: Written, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock(monkeypatch)
    with caplog.at_level("INFO", "test"), stage.shown("train") as train:
        for step in range(40):
            clock.now += 1
            train.progress(step, 3000, "steps", "loss 2.18")
        for second in range(71, 200):
            clock.now += 1
            train.progress(39, 3000, "steps", "loss 2.18", float(second), "rank.paused")
        assert written.says == "39/3,000 steps · loss 2.18 · stalled for 3 min: rank.paused"
        for step in range(40, 70):
            clock.now += 1
            train.progress(step, 3000, "steps", "loss 2.18")
        assert written.says == "40/3,000 steps · loss 2.18", "the page shows at once that it goes on"
    stalled, *_, goes_on, _ = caplog.messages
    assert stalled == "train: 39/3,000 steps · loss 2.18 · stalled for 90 s: rank.paused"
    assert goes_on == "train: goes on at 40 after 3 min"


@pytest.mark.parametrize(
    ("error", "word"),
    [(DataError("the loss is not finite"), "failed"), (Withdrawn("cancelled", "by a person"), "cancelled")],
)
def test_a_stage_that_is_left_promises_no_end(
    written: Written, monkeypatch: pytest.MonkeyPatch, error: Exception, word: str
) -> None:
    clock = Clock(monkeypatch)

    def fails() -> None:
        with stage.shown("train") as train:
            for step in range(40):
                clock.now += 1
                train.progress(step, 400, "steps", "loss 2.18")
            assert written.says.endswith(" left")
            raise error

    with pytest.raises(type(error)):
        fails()
    assert written.says == f"39/400 steps · loss 2.18 · {word}"
    assert written.percent[-1] == pytest.approx(39 / 4)


def test_a_training_that_waits_for_its_restart_promises_no_end(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    with stage.shown("train") as train:
        for step in range(40):
            clock.now += 1
            train.progress(step, 400, "steps")
        for _ in range(20):
            clock.now += 1
            train.progress(39, 400, "steps", is_at_work=False)
        assert written.says == "39/400 steps"


def test_silence_is_warned_of_when_it_has_doubled(capsys: pytest.CaptureFixture[str]) -> None:
    train = stage.Shown("train", no_progress)
    for seconds in (0, 61, 62, 121, 123, 0, 65):
        train.silent(seconds, "validate")
    assert capsys.readouterr().err.splitlines() == [
        "! train: silent for 61 s in phase validate",
        "! train: silent for 123 s in phase validate",
        "! train: silent for 65 s in phase validate",
    ]


def test_a_silent_child_is_warned_of(
    written: Written, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock(monkeypatch)

    def call(target, arguments, on_progress, on_idle, is_private) -> None:
        on_progress(5, 10, "shards")
        for _ in range(130):
            clock.now += 1
            on_idle()
        on_progress(6, 10, "shards")
        on_idle()

    monkeypatch.setattr(child, "call", call)
    with stage.shown("build") as build:
        build.call("a:b", {}, False)
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("!")]
    assert said == [
        "! build: silent for 61 s in phase shards",
        "! build: silent for 122 s in phase shards",
    ]


def test_what_the_library_warns_of_is_shown_and_logged(
    written: Written, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with stage.shown("build"):
        screen.warn("12 samples are left out")
        logging.getLogger("tasks.core.lock").warning("held by %d", 4711)
        secret = {"is_private": True}
        logging.getLogger("tasks.dataset").warning("patient_17 is torn", extra=secret)
    shown = ["12 samples are left out", "held by 4711", "patient_17 is torn"]
    assert capsys.readouterr().err.splitlines() == [f"! {text}" for text in shown]
    logged = [record.message for record in caplog.records if record.name == "test"]
    assert logged == [*shown[:2], f"tasks.dataset: {WITHHELD}"]
