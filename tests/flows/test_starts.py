"""How many crashes of a flow run count, and which run it goes on with."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import FlowRun, State
from prefect.states import AwaitingRetry, Completed, Crashed, Failed, Pending, Running, Suspended

from flows import stages, starts
from tasks import control
from tasks.core.config import load_config
from tasks.core.errors import TarmacError
from tasks.core.schema import Config
from tasks.dataset.version import versions
from tasks.runs import record
from tasks.runs.folder import RunFolder
from tasks.runs.plan import plan
from tests.conftest import digits_config

BEGAN = datetime(2026, 3, 1, tzinfo=UTC)


def history(*ends: str) -> list[State]:
    """The states of a flow run whose starts ended so, an hour after they began."""
    made = {
        "crash": lambda at: Crashed(timestamp=at),
        "interrupted": lambda at: Crashed(name=starts.INTERRUPTED, timestamp=at),
        "suspended": lambda at: Suspended().model_copy(update={"timestamp": at}),
        "failed": lambda at: Failed(timestamp=at),
        "done": lambda at: Completed(timestamp=at),
    }
    states: list[State] = []
    for number, end in enumerate(ends):
        began = BEGAN + timedelta(hours=2 * number)
        states += [Pending(timestamp=began), Running(timestamp=began + timedelta(seconds=10))]
        states.append(made[end](began + timedelta(hours=1)))
        again = AwaitingRetry()
        again.timestamp = began + timedelta(hours=1, seconds=30)
        states.append(again)
    return states


@pytest.mark.parametrize(
    ("ends", "count"),
    [
        (["crash"] * 5, 5),
        (["interrupted"] * 12, 0),
        (["crash", "interrupted", "crash", "interrupted"], 2),
        (["crash", "crash", "suspended", "crash"], 1),
        (["crash", "crash", "crash", "crash", "failed"], 0),
        (["crash", "done", "crash"], 1),
    ],
)
def test_only_crashes_count_and_only_those_in_a_row(ends: list[str], count: int) -> None:
    assert len(starts.crashes_in_a_row(history(*ends), None)) == count


def test_a_crash_after_which_the_run_got_further_does_not_count() -> None:
    states = history("crash", "crash", "crash", "crash")
    third = BEGAN + timedelta(hours=5, minutes=10)
    assert len(starts.crashes_in_a_row(states, third)) == 1


def test_two_reports_of_one_crash_count_once_and_one_before_the_flow_began_not_at_all() -> None:
    twice = [Running(), Crashed(message="guard"), Crashed(message="worker")]
    never = [AwaitingRetry(), Pending(), Crashed(message="it could not begin")]
    assert len(starts.crashes_in_a_row([*twice, *never], None)) == 1


@pytest.fixture
def flow_run(monkeypatch: pytest.MonkeyPatch) -> FlowRun:
    """The flow run that this process runs."""
    made = FlowRun(flow_id=uuid4(), run_count=9)
    monkeypatch.setattr(control, "own_flow_run", lambda: made)
    return made


def test_a_flow_run_that_crashed_too_often_is_given_up_unless_its_run_got_further(
    flow_run: FlowRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = history("crash", "crash", "crash", "crash")
    states[-2].message = "Process exited with status code: -9"
    client = SimpleNamespace(read_flow_run_states=lambda _: states)
    monkeypatch.setattr(starts, "get_client", lambda **_: contextlib.nullcontext(client))
    with pytest.raises(TarmacError, match=r"crashed 4 times without getting further.*code: -9"):
        starts.require_progress()
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    flow_run.labels = {starts.RUN_LABEL: str(tmp_path)}
    starts.require_progress()
    os.utime(tmp_path / "metrics.jsonl", (BEGAN.timestamp(), BEGAN.timestamp()))
    with pytest.raises(TarmacError, match="4 times"):
        starts.require_progress()


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Config, str]]:
    """What was trained: the config and the run's name."""
    found: list[tuple[Config, str]] = []
    monkeypatch.setattr(stages, "concerns", lambda config: None)
    monkeypatch.setattr(stages, "_train", lambda config, run: found.append((config, run.name)))
    return found


@pytest.fixture
def begun(raw_digits: Path, digits_dataset: Path, tmp_path: Path) -> Callable[..., Config]:
    """The config of a run on the digits, whose dataset is as it was built."""

    def config(*changes: str) -> Config:
        output = f"dataset.output={digits_dataset}"
        return digits_config(raw_digits, tmp_path, output, *changes)

    return config


@pytest.mark.parametrize(
    ("changes", "says", "follows"),
    [
        ((), "goes on with version", True),
        (("evaluate.every=400",), "goes on with version", True),
        (("train.lr=0.5",), "the config, or what is left out of the data, has changed since", False),
        (("dataset.shard.samples=99",), "the data has changed since: run again for a new run", True),
        (("dataset.source.path=nowhere.csv",), "nowhere.csv", True),
    ],
)
def test_a_flow_run_goes_on_with_the_run_that_it_has_begun(
    begun: Callable[..., Config],
    digits_dataset: Path,
    trained: list[tuple[Config, str]],
    caplog: pytest.LogCaptureFixture,
    changes: tuple[str, ...],
    says: str,
    follows: bool,
) -> None:
    run = plan(begun(), versions.resolve(digits_dataset))
    given = begun(*changes)
    with caplog.at_level("INFO"):
        stages.go_on(run, lambda: given)
    assert says in caplog.text
    [(config, name)] = trained
    assert name == run.name, "another run was begun"
    assert (config is given) == follows


def test_a_flow_run_whose_config_is_gone_goes_on_all_the_same(
    begun: Callable[..., Config],
    digits_dataset: Path,
    tmp_path: Path,
    trained: list[tuple[Config, str]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = plan(begun(), versions.resolve(digits_dataset))
    stages.go_on(run, lambda: load_config(tmp_path / "gone.yaml"))
    assert "gone.yaml" in caplog.text and [name for _, name in trained] == [run.name]


def test_only_a_run_that_failed_before_its_first_checkpoint_is_given_up(
    begun: Callable[..., Config], digits_dataset: Path, flow_run: FlowRun
) -> None:
    assert starts.begun() is None
    run = plan(begun(), versions.resolve(digits_dataset))
    flow_run.labels = {starts.RUN_LABEL: str(run.path)}

    def found(**changes: Any) -> RunFolder | None:
        record.save_record(run, record.load_record(run).having(**changes))
        return starts.begun()

    assert all(found(state=state) == run for state in ("planned", "running", "cancelled", "succeeded"))
    assert found(state="failed") is None
    run.checkpoint(5).mkdir(parents=True)
    (run.checkpoint(5) / "meta.json").write_text(json.dumps({"step": 5}))
    assert found(state="failed") == run
