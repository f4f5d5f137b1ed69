"""Starts the flow runs again that this machine's worker has lost: when the worker itself is started, and when
a server is back that was away.

After a restart of the machine nobody has reported the end of its flow runs, and the server has forgotten what
happened shortly before: its automations would take a quarter of an hour. Whoever starts the worker knows
better: the server lists the runs of the worker of this name, and each of them that lives has a process here.

A dead process of a flow run is noticed, the quickest first, by
- Prefect's worker, by the exit code, while the worker lives;
- `tasks.guard`, a process beside the flow, seconds after flow and worker were killed together;
- this module, when the worker ends in an orderly way or starts again, for all that a lost machine left;
- the automation tarmac-zombies, by the missing pulse after three minutes, for a machine that stays away and
  for runs that a terminal has started.

Each is the only one in its case. The server's own clean-up closes the tasks of cancelled flow runs alone.

A worker is known by its name, which distinguishes machines of one host name and folders of one name.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta

import httpx
import psutil
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter
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
"""Prefect's label of a flow run with the name of the worker that has started it."""
FORGOTTEN = timedelta(days=7)
"""A run that crashed so long ago is left to a person."""
MISSED = timedelta(seconds=60)
"""A run that crashed so long ago would have been started again, had the server's automation noticed it."""
PAGE = 200
"""The server lists at most this many flow runs at once."""
TIMEOUT_S = 10.0
ENDED = "Its worker and its process ended; what was done is kept."
AGAIN = "Its worker had ended, and starts it again; what was done is kept."
PASSED_OVER = "It crashed while the server was away; its worker starts it again, and what was done is kept."


def mark_lost(worker: str) -> None:
    """Mark the flow runs of this worker that have no process any more as interrupted, once it has ended.

    If the server does not answer, `take_up_lost` reports them when the worker starts again.
    """
    try:
        with _asking() as client:
            _mark(client, worker, INTERRUPTED)
    except (httpx.HTTPError, PrefectException) as error:
        screen.warn(
            f"the server does not answer ({type(error).__name__}); it shows ended runs as Running until the "
            "worker starts again"
        )


def take_up_lost(worker: str) -> list[str]:
    """Start the flow runs of this worker again that have no process any more, before it is started itself.

    It does so only while the automation that would do the same is switched on. Returns their names.
    """
    with _asking() as client:
        _mark(client, worker, "Crashed")
        if not _is_switched_on(client):
            return []
        living = _living()
        lost = [run for run in _runs(client, {worker}, StateType.CRASHED) if _may_start_again(run)]
        # The server does not count a start that ended before the flow began.
        lost += [run for run in _runs(client, {worker}, StateType.PENDING) if str(run.id) not in living]
        return _start_again(client, lost, AGAIN)


def take_up_missed(worker: str) -> list[str]:
    """Start the crashed flow runs again that the server's automation has missed, while the worker works.

    A server that has been started again notices a crash a quarter of an hour late, as it has forgotten what
    came before it. A run that crashed before it knew its worker, because the server was away, belongs to
    every worker. Returns the names of those that start; none if the server does not answer.
    """
    try:
        with _asking() as client:
            if not _is_switched_on(client):
                return []
            crashed = _runs(client, {worker, None}, StateType.CRASHED)
            missed = [run for run in crashed if _may_start_again(run, MISSED)]
            return _start_again(client, missed, PASSED_OVER)
    except (httpx.HTTPError, PrefectException):
        return []


@contextmanager
def _asking() -> Iterator[SyncPrefectClient]:
    """Yield a client that does not wait long: if the server is away, the runs start again later."""
    with (
        temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 1}),
        get_client(sync_client=True, httpx_settings={"timeout": TIMEOUT_S}) as client,
    ):
        yield client


def _mark(client: SyncPrefectClient, worker: str, name: str) -> None:
    running = _runs(client, {worker}, StateType.RUNNING)
    living = _living()  # looked up after the server's answer, so that no run has started since
    for run in running:
        if str(run.id) not in living:
            state: State = Crashed(name=name, message=ENDED)
            client.set_flow_run_state(run.id, state)


def _start_again(client: SyncPrefectClient, runs: list[FlowRun], message: str) -> list[str]:
    """Schedule these flow runs; returns the names of those for which the server accepts it."""
    started = []
    for run in runs:
        state: State = AwaitingRetry(message=message)
        if client.set_flow_run_state(run.id, state).status is SetStateStatus.ACCEPT:
            started.append(run.name)
    return started


def _is_switched_on(client: SyncPrefectClient) -> bool:
    return any(found.enabled for found in client.read_automations_by_name(take_up().name))


def _may_start_again(run: FlowRun, least: timedelta = timedelta()) -> bool:
    """Whether it crashed at least `least` ago, and not so long ago that nobody expects it to start again."""
    since = None if run.state is None else run.state.timestamp
    return since is not None and least <= datetime.now(UTC) - since < FORGOTTEN


def unwatched(worker: str) -> dict[str, str]:
    """Return a line for each of this worker's newest flow runs that has ended and does not start again by
    itself, while its training goes on and nobody watches it, by id; none if the server does not answer."""
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
    types = (StateType.RUNNING, StateType.PENDING, StateType.SCHEDULED)
    chosen = _chosen([TAG, run.id], *types)
    return any(run_of(one) == run for one in client.read_flow_runs(flow_run_filter=chosen))


def _chosen(tags: list[str], *types: StateType) -> FlowRunFilter:
    return FlowRunFilter.model_validate({"tags": {"all_": tags}, "state": {"type": {"any_": types}}})


def _runs(
    client: SyncPrefectClient, workers: Set[str | None], type_: StateType, most: int | None = None
) -> list[FlowRun]:
    """Return the flow runs of these workers (None: of an unknown worker) in this type of state that start
    again by themselves. With `most`, only that many are considered, those that ended last."""
    chosen = _chosen([TAG, TAKE_UP], type_)
    sort = FlowRunSort.END_TIME_DESC
    found: list[FlowRun] = []
    while most is None or len(found) < most:
        page = client.read_flow_runs(flow_run_filter=chosen, sort=sort, limit=PAGE, offset=len(found))
        if not page:
            break
        found += page
    return [run for run in found if run.labels.get(WORKER_LABEL) in workers]


def _living() -> set[str]:
    """Return the ids of the flow runs that have a process on this machine."""
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
