"""What a flow run that is started again goes on with, and how often it starts again by itself.

A flow run is bound to the run that it trains: Resume, Retry and a start after a crash go on with that run, on
the version that it was begun on, whatever the raw data and the config are by then. Otherwise the training in
hand would go on unwatched, while a second one began at step 0. Only a run that has failed before its first
checkpoint is given up, as nothing of it can be lost.

Crashes are counted here, because the server counts every start: a worker that is stopped in an orderly way, a
Suspend and an approval are no crashes, and a crash after which the run got further is no reason to give up.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.context import FlowRunContext

from tasks.core.errors import TarmacError
from tasks.runs import record
from tasks.runs.checkpoints import list_checkpoints
from tasks.runs.folder import RunFolder
from tasks.stage import tell

RUN_LABEL = "tarmac.run"
"""The flow run's label with the absolute folder of the run that it works on."""
INTERRUPTED = "Interrupted"
"""The state, of the type Crashed, of a flow run whose worker was stopped in an orderly way."""
TAKEN_UP = 3
"""How often a crashed flow run starts again by itself without getting further."""


def run_of(flow_run: FlowRun) -> RunFolder | None:
    """The run that the flow run works on, if it works on one yet."""
    folder = flow_run.labels.get(RUN_LABEL)
    run = None if folder is None else RunFolder(Path(str(folder)))
    return run if run is not None and run.record.exists() else None


def begun() -> RunFolder | None:
    """The run that this flow run has begun in an earlier start and goes on with; None where there is none."""
    run = _own_run()
    if run is None or not (record.load_record(run).state == "failed" and not list_checkpoints(run)):
        return run
    return None


def require_progress() -> None:
    """TarmacError where this flow run has crashed too often without getting further."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None or context.flow_run.run_count <= TAKEN_UP:
        return
    with get_client(sync_client=True) as client:
        states = tell(client.read_flow_run_states, context.flow_run.id)
    run = _own_run()
    crashes = crashes_in_a_row(states or [], None if run is None else _last_progress(run))
    if len(crashes) > TAKEN_UP:
        raise TarmacError(
            f"it has crashed {len(crashes)} times without getting further, the last time with: "
            f"{crashes[-1].message}"
        )


def crashes_in_a_row(states: Sequence[State], progressed: datetime | None) -> list[State]:
    """The crashes since the flow run last got further, was ended otherwise, or was suspended; oldest first.

    One that came before the flow had begun is left to the automation tarmac-give-up.
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


def _own_run() -> RunFolder | None:
    context = FlowRunContext.get()
    return None if context is None or context.flow_run is None else run_of(context.flow_run)


def _last_progress(run: RunFolder) -> datetime | None:
    """When the run last made a step or had news of an evaluation."""
    there = [path.stat().st_mtime for path in (run.metrics, run.ledger) if path.exists()]
    return datetime.fromtimestamp(max(there), UTC) if there else None
