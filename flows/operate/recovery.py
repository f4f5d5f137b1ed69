"""Starts the flow runs again that this machine's worker has lost: when it is started itself, and once a
server is back that was away.

After a restart of the machine nobody has reported the end of its flow runs, and the server has forgotten what
happened shortly before: its automations would take a quarter of an hour. Who starts the worker knows better.
The server says which runs belong to the worker of this name, and each that lives has a process here.

A worker is known by its name, which tells apart machines of one host name and folders of one name.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta

import httpx
import psutil
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
)
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.client.schemas.responses import SetStateStatus
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import PrefectException
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from prefect.states import AwaitingRetry, Crashed
from prefect.utilities.urls import url_for

from flows.operate.automations import TAKE_UP, take_up
from flows.starts import INTERRUPTED, run_of
from tasks.core import screen
from tasks.core.errors import TarmacError
from tasks.events import TAG
from tasks.runs.folder import RunFolder
from tasks.runs.jobs import agent_is_alive

WORKER_LABEL = "prefect.worker.name"
"""The flow run's label, by Prefect, with the name of the worker that has started it."""
FORGOTTEN = timedelta(days=7)
"""What crashed so long ago is left to a person."""
MISSED = timedelta(seconds=60)
"""What crashed so long ago would have been started again, had the server's automation seen it."""
PAGE = 200
"""Flow runs that the server lists at once."""
TIMEOUT_S = 10.0
ENDED = "Its worker and its process ended; what was done is kept."
AGAIN = "Its worker had ended, and starts it again; what was done is kept."
PASSED_OVER = "It crashed while the server was away; its worker starts it again, and what was done is kept."


def mark_lost(worker: str) -> None:
    """Mark the flow runs of this worker that have no process any more as interrupted, once it has ended.

    A server that does not answer then is told when the worker starts again.
    """
    try:
        with _asking() as client:
            _mark(client, worker, INTERRUPTED)
    except (httpx.HTTPError, PrefectException) as error:
        screen.warn(
            f"the server does not answer ({type(error).__name__}); its pages call ended runs Running until "
            "the worker starts again"
        )


def take_up_lost(worker: str) -> list[str]:
    """Start the flow runs of this worker again that have no process any more, before it is started itself.

    Only while the automation that would do so is switched on. Returns the names of those that do.
    """
    with _asking() as client:
        _mark(client, worker, "Crashed")
        if not _is_switched_on(client):
            return []
        living = _living()
        lost = [run for run in _runs(client, {worker}, StateType.CRASHED) if _may_start_again(run)]
        # The server does not count a start that came to nothing before the flow began.
        lost += [run for run in _runs(client, {worker}, StateType.PENDING) if str(run.id) not in living]
        return [run.name for run in lost if _set(client, run, AwaitingRetry(message=AGAIN))]


def take_up_missed(worker: str) -> list[str]:
    """Start the crashed flow runs again that the server's automation has passed over, while the worker works.

    A server that has been started again takes note of a crash a quarter of an hour late, as it has forgotten
    what came before it. A run that crashed before it knew its worker, whose server was away, is of every
    worker. Returns the names of those that start; none where the server does not answer.
    """
    try:
        with _asking() as client:
            if not _is_switched_on(client):
                return []
            crashed = _runs(client, {worker, None}, StateType.CRASHED)
            missed = [run for run in crashed if _may_start_again(run, MISSED)]
            return [run.name for run in missed if _set(client, run, AwaitingRetry(message=PASSED_OVER))]
    except (httpx.HTTPError, PrefectException):
        return []


@contextmanager
def _asking() -> Iterator[SyncPrefectClient]:
    """A client that does not wait long: where the server is away, others start the runs again later."""
    settings = {"timeout": TIMEOUT_S}
    with (
        temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 1}),
        get_client(sync_client=True, httpx_settings=settings) as client,
    ):
        yield client


def _mark(client: SyncPrefectClient, worker: str, name: str) -> None:
    running = _runs(client, {worker}, StateType.RUNNING)
    living = _living()
    for run in running:
        if str(run.id) not in living:
            _set(client, run, Crashed(name=name, message=ENDED))


def _set(client: SyncPrefectClient, run: FlowRun, state: State) -> bool:
    return client.set_flow_run_state(run.id, state).status is SetStateStatus.ACCEPT


def _is_switched_on(client: SyncPrefectClient) -> bool:
    return any(found.enabled for found in client.read_automations_by_name(take_up().name))


def _may_start_again(run: FlowRun, least: timedelta = timedelta()) -> bool:
    """Whether it crashed at least so long ago, and not so long ago that nobody expects it."""
    since = None if run.state is None else run.state.timestamp
    return since is not None and least <= datetime.now(UTC) - since < FORGOTTEN


def unwatched(worker: str) -> dict[str, str]:
    """The newest flow runs of this worker that have ended and do not start again by themselves, while their
    training goes on and nobody watches it: a line for each, by id; none where the server does not answer."""
    lines = {}
    try:
        with _asking() as client:
            ended = _runs(client, {worker}, StateType.CRASHED, PAGE)
            if _is_switched_on(client):
                ended = [one for one in ended if not _may_start_again(one)]
            for one in [*ended, *_runs(client, {worker}, StateType.FAILED, PAGE)]:
                run = run_of(one)
                if run is not None and _trains(run) and not _is_watched(client, run):
                    state = "over" if one.state is None else one.state.name
                    url = url_for("flow-run", obj_id=one.id)
                    lines[str(one.id)] = f"{one.name} is {state}, its training goes on; Retry on {url}"
    except (httpx.HTTPError, PrefectException):
        return {}
    return lines


def _trains(run: RunFolder) -> bool:
    with suppress(TarmacError):  # a damaged record, which `tarmac status` reports
        return agent_is_alive(run)
    return False


def _is_watched(client: SyncPrefectClient, run: RunFolder) -> bool:
    types = [StateType.RUNNING, StateType.PENDING, StateType.SCHEDULED]
    chosen = FlowRunFilter(
        tags=FlowRunFilterTags(all_=[TAG, run.id]),
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=types)),
    )
    return any(run_of(one) == run for one in client.read_flow_runs(flow_run_filter=chosen))


def _runs(
    client: SyncPrefectClient, workers: Set[str | None], type_: StateType, most: int | None = None
) -> list[FlowRun]:
    """The flow runs of these workers, None where no worker is known, in this type of state that start again
    by themselves; of `most` of all workers, those that ended last."""
    chosen = FlowRunFilter(
        tags=FlowRunFilterTags(all_=[TAG, TAKE_UP]),
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[type_])),
    )
    found: list[FlowRun] = []
    while (most is None or len(found) < most) and (
        page := client.read_flow_runs(
            flow_run_filter=chosen, sort=FlowRunSort.END_TIME_DESC, limit=PAGE, offset=len(found)
        )
    ):
        found += page
    return [run for run in found if run.labels.get(WORKER_LABEL) in workers]


def _living() -> set[str]:
    """The ids of the flow runs that have a process on this machine."""
    found = set[str]()
    for process in psutil.process_iter():
        try:
            if is_flow_run(process):
                found.add(process.environ().get("PREFECT__FLOW_RUN_ID", ""))
        except psutil.Error:
            continue
    return found


def is_flow_run(process: psutil.Process) -> bool:
    """Whether the process prepares or runs a flow run; its children have the same environment."""
    words: list[str] = process.cmdline()[1:3]
    return words[:1] == ["-m"] and words[-1].startswith("prefect.")
