"""What a flow run does when it starts, or starts again: which run it goes on with, and whether it may at all.

A flow run is bound to the run that it trains: Resume, Retry and a start after a crash go on with that run, on
the version that it was begun on, whatever the raw data and the config are by then. Otherwise the present
training would go on unwatched, while a second one began at step 0. Only a run that failed before its first
checkpoint is given up, as it has nothing to lose.

Crashes are counted here, because the server counts every start: an orderly stop of the worker, a Suspend and
an approval are no crashes, and a crash after which the run got further is no reason to give up.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.exceptions import PrefectException

from tasks import control
from tasks.core.errors import TarmacError
from tasks.runs import record
from tasks.runs.checkpoints import list_checkpoints
from tasks.runs.folder import RunFolder
from tasks.stage import best_effort

RUN_LABEL = "tarmac.run"
"""The flow run's label with the absolute folder of the run that it works on."""
INTERRUPTED = "Interrupted"
"""The state, of the type Crashed, of a flow run whose worker was stopped in an orderly way."""
TAKEN_UP = 3
"""How often a crashed flow run starts again by itself without getting further."""


def run_of(flow_run: FlowRun) -> RunFolder | None:
    """Return the run that the flow run works on, if it works on one yet."""
    folder = flow_run.labels.get(RUN_LABEL)
    run = None if folder is None else RunFolder(Path(str(folder)))
    return run if run is not None and run.record.exists() else None


def begun() -> RunFolder | None:
    """Return the run that this flow run began in an earlier start and goes on with; None if there is none."""
    flow_run = control.own_flow_run()
    run = None if flow_run is None else run_of(flow_run)
    is_lost = run is not None and record.load_record(run).state == "failed" and not list_checkpoints(run)
    return None if is_lost else run


def due_again() -> datetime | None:
    """Return when the schedule of this flow run was due last before a worker took the run, if that is not the
    run's own time. The server plans a run for each time, and all are due after an outage of the workers."""
    flow_run = control.deployed()
    if flow_run is None or not flow_run.auto_scheduled or flow_run.run_count > 1:
        return None
    found: list[FlowRun] = []
    with contextlib.suppress(httpx.HTTPError, PrefectException), get_client(sync_client=True) as client:
        states = client.read_flow_run_states(flow_run.id)
        taken = min((one.timestamp for one in states if one.is_pending()), default=datetime.now(UTC))
        due = {"after_": flow_run.expected_start_time, "before_": taken}
        chosen = {"deployment_id": {"any_": [flow_run.deployment_id]}, "expected_start_time": due}
        found = client.read_flow_runs(flow_run_filter=FlowRunFilter.model_validate(chosen))
    alike = [one for one in found if one.auto_scheduled and one.parameters == flow_run.parameters]
    times = [one.expected_start_time for one in alike if one.expected_start_time and one.id != flow_run.id]
    return max(times, default=None)


def require_progress() -> None:
    """Raise TarmacError if this flow run has crashed too often without getting further."""
    flow_run = control.own_flow_run()
    if flow_run is None or flow_run.run_count <= TAKEN_UP:
        return
    with get_client(sync_client=True) as client:
        states = best_effort(client.read_flow_run_states, flow_run.id)
    run = run_of(flow_run)
    crashes = crashes_in_a_row(states or [], None if run is None else _last_progress(run))
    if len(crashes) > TAKEN_UP:
        raise TarmacError(
            f"it has crashed {len(crashes)} times without getting further, the last time with: "
            f"{crashes[-1].message}"
        )


def crashes_in_a_row(states: Sequence[State], progressed: datetime | None) -> list[State]:
    """Return the crashes, oldest first, since the flow run got further, ended otherwise, or was suspended.

    A crash before the flow had begun is left to the automation tarmac-give-up.
    """
    found: list[State] = []
    runs = False
    for state in sorted(states, key=lambda state: state.timestamp):
        if state.is_running():
            runs = True
        elif state.type in (StateType.FAILED, StateType.COMPLETED, StateType.CANCELLED, StateType.PAUSED):
            found = []
        elif runs and state.is_crashed():
            runs = False
            if state.name != INTERRUPTED and (progressed is None or state.timestamp > progressed):
                found.append(state)
    return found


def _last_progress(run: RunFolder) -> datetime | None:
    """Return when the run last made a step, or an evaluation of it changed its state."""
    there = [path.stat().st_mtime for path in (run.metrics, run.ledger) if path.exists()]
    return datetime.fromtimestamp(max(there), UTC) if there else None
