"""Which flow run owns a training, and what Cancel of another one ends."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID, uuid4

import pytest
from prefect.client.schemas.objects import FlowRun, State
from prefect.exceptions import ObjectNotFound
from prefect.states import AwaitingRetry, Completed, Crashed, Running, Suspended

from flows import lifecycle, starts
from tasks import ownership
from tasks.runs import record
from tasks.runs.folder import RunFolder
from tasks.supervision import stopping
from tasks.supervision.launch import Started
from tests.supervision.fakes import make_run


def flow_run(state: State) -> FlowRun:
    return FlowRun(flow_id=uuid4(), name="digits-clip · 4f00aa · pipeline", state=state)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return make_run(tmp_path)


def owned(run: RunFolder, owner: FlowRun, monkeypatch: pytest.MonkeyPatch, is_known: bool = True) -> None:
    """Record that this flow run started the run; the server knows it only if `is_known`."""
    record.save_record(run, record.load_record(run).having(started_by=str(owner.id)))

    def read_flow_run(wanted: UUID) -> FlowRun:
        if not is_known or wanted != owner.id:
            raise ObjectNotFound(LookupError("404"))
        return owner

    client = SimpleNamespace(read_flow_run=read_flow_run)
    monkeypatch.setattr(ownership, "get_client", lambda **_: contextlib.nullcontext(client))


@pytest.mark.parametrize(
    ("state", "is_known", "ends"),
    [
        (Running(), True, False),
        (AwaitingRetry(), True, False),
        (Completed(), True, True),
        (Crashed(), True, True),
        (Suspended(), True, True),
        (Running(), False, True),
    ],
)
def test_cancel_ends_the_training_of_another_flow_run_only_where_that_is_over(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, state: State, is_known: bool, ends: bool
) -> None:
    owned(run, flow_run(state), monkeypatch, is_known)
    reasons: list[str] = []
    monkeypatch.setattr(stopping, "end", lambda run, reason, who: reasons.append(reason))
    adopter = flow_run(Running())
    adopter.labels = {starts.RUN_LABEL: str(run.path)}
    lifecycle._stop_run_of(adopter, "was cancelled")
    assert bool(reasons) == ends
    assert all(str(adopter.id) in reason and reason.endswith("was cancelled") for reason in reasons)


def test_cancel_of_the_owner_ends_its_training(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = flow_run(Running())
    owned(run, owner, monkeypatch)
    assert ownership.other_owner(run, str(owner.id)) is None


def test_an_adopting_flow_run_logs_the_owner_and_the_owner_itself_adopts_nothing(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    owner, adopter = flow_run(Running()), flow_run(Running())
    owned(run, owner, monkeypatch)
    started = Started(True, False, None, str(owner.id))
    links: list[str] = []
    monkeypatch.setattr(ownership, "create_link_artifact", lambda link, **_: links.append(link))
    monkeypatch.setattr(ownership, "url_for", lambda _, obj_id: f"http://server/{obj_id}")
    monkeypatch.setattr(ownership, "this_flow_run", lambda: str(owner.id))
    assert not ownership.is_adopted(run, started)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(ownership, "this_flow_run", lambda: str(adopter.id))
    assert ownership.is_adopted(run, started) and ownership.is_adopted(run, started)
    assert links == [f"http://server/{owner.id}"]
    said = capsys.readouterr().err
    assert f"{run.name} is adopted from flow run {owner.name}" in said and str(owner.id) in said
    assert "end only its watching" in said
