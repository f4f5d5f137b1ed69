"""How a flow run reacts to its state on the server, and how a stage ends then."""

from __future__ import annotations

from uuid import uuid4

import pytest
from prefect import Task
from prefect.client.schemas.objects import FlowRun, State
from prefect.exceptions import ObjectNotFound
from prefect.states import (
    AwaitingRetry,
    Cancelled,
    Cancelling,
    Completed,
    Crashed,
    Failed,
    Pending,
    Running,
    Scheduled,
    Suspended,
)

from tasks import control
from tasks.core.errors import NeedsApproval, Withdrawn


def flow_run(state: State, run_count: int = 1, pid: str | None = "host:7") -> FlowRun:
    return FlowRun(flow_id=uuid4(), state=state, run_count=run_count, infrastructure_pid=pid)


FIRST = flow_run(Running())


@pytest.mark.parametrize(
    ("now", "kind"),
    [
        (FIRST, None),
        (flow_run(Cancelling()), "cancelled"),
        (flow_run(Cancelled()), "cancelled"),
        (flow_run(Suspended()), "suspended"),
        (flow_run(AwaitingRetry()), "superseded"),
        (flow_run(Scheduled(name="Resuming")), "superseded"),
        (flow_run(Pending()), "superseded"),
        (flow_run(Running(), run_count=2), "superseded"),
        (flow_run(Running(), pid="host:8"), "superseded"),
        # Somebody's mistake about a run that lives ends no work.
        (flow_run(Crashed()), None),
        (flow_run(Failed()), None),
        (flow_run(Completed()), None),
    ],
)
def test_only_a_state_that_somebody_wanted_ends_a_flow_run(now: FlowRun, kind: str | None) -> None:
    found = control.withdrawal_of(FIRST, now)
    assert (None if found is None else found.kind) == kind
    if kind == "suspended":
        assert found is not None and found.state is now.state


def test_a_process_id_that_becomes_known_is_its_own() -> None:
    assert control.withdrawal_of(flow_run(Running(), pid=None), flow_run(Running())) is None


@pytest.mark.parametrize(("has_flow", "kind"), [(True, "cancelled"), (False, None)])
def test_a_deleted_flow_run_ends_but_not_one_of_another_database(has_flow: bool, kind: str | None) -> None:
    class Server:
        def read_flow_run(self, _: object) -> FlowRun:
            raise ObjectNotFound(LookupError("404"))

        def read_flow(self, _: object) -> object:
            if not has_flow:
                raise ObjectNotFound(LookupError("404"))
            return object()

    found = control.look_up_flow_run(Server(), FIRST.id, FIRST.flow_id)  # type: ignore[arg-type]
    assert (found.kind if isinstance(found, Withdrawn) else None) == kind


def test_outside_of_a_flow_nothing_is_withdrawn() -> None:
    with control.watching():
        control.raise_if_withdrawn()
    assert control.withdrawal() is None


def test_a_stage_with_a_question_has_not_failed_where_somebody_can_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @control.stage(name="work")
    def work() -> int:
        raise NeedsApproval("12 of 20 samples are gone")

    with pytest.raises(NeedsApproval, match="--accept-loss"):
        work.fn()
    monkeypatch.setattr(control, "deployed", lambda: FIRST)
    state = work.fn()
    assert isinstance(state, State) and state.is_completed() and state.name == "NeedsApproval"
    monkeypatch.setattr(Task, "__call__", lambda *_: state)  # as Prefect's engine hands it back
    with pytest.raises(NeedsApproval) as asked:
        work()
    assert asked.value.reason == "12 of 20 samples are gone"


def test_a_withdrawn_stage_is_cancelled() -> None:
    @control.stage(name="work")
    def work() -> int:
        raise Withdrawn("cancelled", "enough")

    state = work.fn()
    assert isinstance(state, State) and state.is_cancelled() and state.message == "enough"
