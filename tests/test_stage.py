"""A stage that is shown: a server that is gone and a child that is killed, as a person hears of them."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.objects import TaskRun
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Failed

from tasks import stage
from tasks.build import build
from tasks.core import child
from tasks.core.child import Killed
from tasks.core.errors import DataError
from tasks.report import report
from tasks.runs.folder import RunFolder
from tasks.tune import tune
from tests.supervision.fakes import make_config


@pytest.fixture
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not answer, which nobody has asked yet."""
    monkeypatch.setattr(stage, "get_run_logger", lambda: logging.getLogger("test"))
    monkeypatch.setattr(stage, "_left_alone_until", 0.0)
    stage._warn.cache_clear()


def test_a_server_that_is_gone_does_not_end_the_work(
    no_server: None, capsys: pytest.CaptureFixture[str]
) -> None:
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        with stage.shown("train") as training:
            training.progress(1, 2, "steps")
        assert stage.tell(create_markdown_artifact, "# page", key="page") is None
    warned = "! Prefect's server does not take what it is told (ConnectError); the work goes on"
    assert capsys.readouterr().err.splitlines() == [warned]


@pytest.mark.parametrize("name", ["build", "report"])
def test_the_end_of_a_stage_outlives_its_server(
    no_server: None, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = dict.fromkeys(("read", "accepted", "filtered", "rejected", "released"), 0)
    built = {**counts, "rejects": {}, "up_to_date": True}
    monkeypatch.setattr(child, "call", lambda *_: built)
    monkeypatch.setattr("tasks.report.is_current", lambda _: True)
    monkeypatch.setattr("tasks.report.read_headline", lambda _: None)
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        done = (
            build.fn(make_config(tmp_path)) if name == "build" else report.fn(RunFolder(tmp_path / "a-3f9a"))
        )
    assert done["summary"].startswith("up to date")


def test_a_killed_child_is_told_by_its_stage() -> None:
    said = r"^tune was killed by SIGKILL \(is memory short\?\)$"
    with pytest.raises(Killed, match=said), stage.shown("tune"):
        raise Killed("tasks.diagnosis.bench:tune was killed by SIGKILL")


@pytest.mark.parametrize(
    ("task", "tried", "says"),
    [
        (build, 1, "again in 5 s, 2 tries left"),
        (build, 2, "again in 60 s, 1 try left"),
        (tune, 1, "again, 1 try left"),
    ],
)
def test_another_try_is_announced(task, tried: int, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    run = TaskRun(task_key="a", dynamic_key="1", run_count=tried)
    assert stage.is_transient(task, run, Failed(data=Killed("build was killed by SIGKILL")))
    assert capsys.readouterr().err == f"! build was killed by SIGKILL; {says}\n"
    assert not stage.is_transient(task, run, Failed(data=DataError("no")))
    assert capsys.readouterr().err == ""
