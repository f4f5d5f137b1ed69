"""How a flow run is controlled from inside: it asks the server for its own state, and its stages obey.

Prefect cancels by killing the flow's process from the worker that started it. That fails where the worker
is gone or has lost its server, and it does not reach what outlives the process. So while one of our flows
runs, a thread looks every few seconds whether somebody has cancelled or suspended the run, or started it
elsewhere. It only remembers that; the stages call `raise_if_withdrawn` at least once a second and leave by
`Withdrawn` in their own thread, which ends their children in the ordinary way. A server that does not answer
decides nothing.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, ParamSpec, TypeVar
from uuid import UUID

import httpx
from prefect import Task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterDeploymentId,
    FlowRunFilterExpectedStartTime,
)
from prefect.client.schemas.objects import FlowRun, State
from prefect.context import FlowRunContext
from prefect.exceptions import ObjectNotFound, PrefectException
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from prefect.states import Cancelled, Completed
from prefect.types import KeyValueLabels

from tasks import pulse
from tasks.core.errors import NeedsApproval, Withdrawn

# fmt: off
__all__ = [
    "NEEDS_APPROVAL", "StageTask", "Withdrawn", "deployed", "raise_if_withdrawn", "stage", "watching",
    "withdrawal",
]
# fmt: on

NEEDS_APPROVAL = "NeedsApproval"
"""The state of what waits for a person: of a flow run, and of the task that has found what to ask."""
POLL_S = 4.0
TIMEOUT_S = 10.0
P = ParamSpec("P")
R = TypeVar("R")
_watch: FlowRunWatch | None = None


def raise_if_withdrawn() -> None:
    """Raise Withdrawn if the flow run of this process is to end; costs nothing, so call it often."""
    if (found := withdrawal()) is not None:
        raise found


def withdrawal() -> Withdrawn | None:
    """Why the flow run of this process is to end; None while it may go on."""
    return None if _watch is None else _watch.found


def deployed() -> FlowRun | None:
    """The flow run that this code runs in, where a deployment's form or its schedule started it, so that it
    has a page on which a person can be asked."""
    context = FlowRunContext.get()
    flow_run = None if context is None else context.flow_run
    return None if flow_run is None or flow_run.deployment_id is None else flow_run


def label(labels: dict[str, str]) -> None:
    """Have the flow run of this process carry these labels, as soon as the server takes them."""
    if _watch is not None:
        _watch.labels = labels


def due_again() -> datetime | None:
    """When the schedule of this process's flow run was due last before a worker took the run; None where that
    is the run's own time. For each time a run was planned, and all are due once no worker has listened."""
    flow_run = deployed()
    if flow_run is None or not flow_run.auto_scheduled or flow_run.run_count > 1:
        return None
    assert flow_run.deployment_id is not None
    found: list[FlowRun] = []
    with contextlib.suppress(httpx.HTTPError, PrefectException), get_client(sync_client=True) as client:
        states = client.read_flow_run_states(flow_run.id)
        taken = min((one.timestamp for one in states if one.is_pending()), default=datetime.now(UTC))
        due = {"after_": flow_run.expected_start_time, "before_": taken}
        chosen = FlowRunFilter(
            deployment_id=FlowRunFilterDeploymentId(any_=[flow_run.deployment_id]),
            expected_start_time=FlowRunFilterExpectedStartTime.model_validate(due),
        )
        found = client.read_flow_runs(flow_run_filter=chosen)
    alike = [one for one in found if one.auto_scheduled and one.parameters == flow_run.parameters]
    times = [one.expected_start_time for one in alike if one.expected_start_time and one.id != flow_run.id]
    return max(times, default=None)


@contextmanager
def watching() -> Iterator[None]:
    """Watch the state of the flow run that this block belongs to; outside of one nothing is watched."""
    global _watch
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        yield
        return
    _watch = FlowRunWatch(context.flow_run)
    try:
        yield
    finally:
        _watch.stop()
        _watch = None


class FlowRunWatch:
    """The thread that looks at one flow run. `found` stays None as long as the run may go on."""

    def __init__(self, flow_run: FlowRun) -> None:
        self.found: Withdrawn | None = None
        self.labels: dict[str, str] = {}
        self._id, self._flow_id = flow_run.id, flow_run.flow_id
        self._stop = threading.Event()
        context = contextvars.copy_context()  # Prefect's settings are in it
        self._thread = threading.Thread(
            target=context.run, args=(self._work,), name="flow-run-state", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End the thread at its next chance; it is not waited for, as it may be asking a dead server."""
        self._stop.set()

    def _work(self) -> None:
        # No retries: they would sleep through the moment in which the server is back.
        with (
            temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}),
            get_client(sync_client=True, httpx_settings={"timeout": TIMEOUT_S}) as client,
        ):
            first: FlowRun | None = None
            pulse.send(pulse.PULSE, self._id)
            sent = time.monotonic()
            while self.found is None and not self._stop.wait(POLL_S):
                seen = look_up_flow_run(client, self._id, self._flow_id)
                if isinstance(seen, Withdrawn):
                    self.found = seen
                if not isinstance(seen, FlowRun):
                    continue
                first = first or seen
                self.found = withdrawal_of(first, seen)
                if not self.labels.items() <= seen.labels.items():
                    _label(client, self._id, self.labels)
                if time.monotonic() - sent >= pulse.INTERVAL_S:
                    sent = time.monotonic()
                    pulse.send(pulse.PULSE, self._id)
        pulse.send(pulse.STOPPED, self._id)


def look_up_flow_run(
    client: SyncPrefectClient, flow_run_id: UUID, flow_id: UUID
) -> FlowRun | Withdrawn | None:
    """The flow run as the server has it, Withdrawn where somebody has deleted it; None where the server does
    not say. One without its flow, too, works on another database, where nobody has deleted anything."""
    try:
        try:
            return client.read_flow_run(flow_run_id)
        except ObjectNotFound:
            client.read_flow(flow_id)
            return Withdrawn("cancelled", "the flow run was deleted")
    except (httpx.HTTPError, PrefectException):
        return None


def _label(client: SyncPrefectClient, flow_run_id: UUID, labels: dict[str, str]) -> None:
    values: KeyValueLabels = {**labels}
    with contextlib.suppress(httpx.HTTPError, PrefectException):  # the next look tries again
        client.update_flow_run_labels(flow_run_id, values)


def withdrawal_of(first: FlowRun, seen: FlowRun) -> Withdrawn | None:
    """What a look at the flow run means for the process that first saw it as `first`.

    A state that somebody has set by mistake, such as Crashed after a silence, ends no work: only who wants it
    to end, or has it done by another process, does.
    """
    state = seen.state
    if state is None:
        return None
    if state.is_cancelling() or state.is_cancelled():
        return Withdrawn("cancelled", "the flow run was cancelled")
    if state.is_paused():
        return Withdrawn("suspended", "the flow run was suspended", state)
    is_elsewhere = first.infrastructure_pid not in (None, seen.infrastructure_pid)
    if state.is_scheduled() or state.is_pending() or seen.run_count > first.run_count or is_elsewhere:
        return Withdrawn("superseded", "the flow run was started again; this process leaves it to that one")
    return None


class StageTask(Task[P, R]):
    """A Prefect task that can be withdrawn, or come to a question: its run then ends as Cancelled or as
    NeedsApproval, not as Failed, and the flow hears of it by an error. Its results are not cached, as the
    disk knows what is done."""

    def __init__(self, function: Callable[P, R], **options: Any) -> None:
        super().__init__(_ended_without_failure(function), cache_policy=NO_CACHE, **options)

    def __call__(self, *arguments: P.args, **named: P.kwargs) -> R:  # type: ignore[override]
        result: Any = super().__call__(*arguments, **named)
        if isinstance(result, State):
            if result.name == NEEDS_APPROVAL:
                raise NeedsApproval(result.message)
            raise withdrawal() or Withdrawn("cancelled", result.message or "cancelled")
        done: R = result
        return done


def stage(**options: Any) -> Callable[[Callable[P, R]], StageTask[P, R]]:
    """A decorator that makes a function a Stage; `options` are those of Prefect's `task`."""
    return lambda function: StageTask(function, **options)


def _ended_without_failure(function: Callable[P, R]) -> Callable[P, R]:
    @functools.wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> Any:
        try:
            return function(*arguments, **named)
        except Withdrawn as withdrawn:
            return Cancelled(message=str(withdrawn))
        except NeedsApproval as question:
            if deployed() is None:
                raise
            return Completed(name=NEEDS_APPROVAL, message=question.reason)

    return call
