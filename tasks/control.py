"""How a flow run is controlled from inside: it asks the server for its own state, and its stages obey.

Prefect cancels by killing the flow's process from the worker that started it. That fails where the worker is
gone or has lost its server, and it does not reach what outlives the process. So while one of our flows runs,
a thread asks every few seconds whether somebody has cancelled or suspended the run, or started it elsewhere.
The thread only records the answer; the stages call `raise_if_withdrawn` at least once a second and leave by
`Withdrawn` in their own thread, which ends their children in the ordinary way. A server that does not answer
changes nothing: the run goes on.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar, cast
from uuid import UUID

import httpx
from prefect import Task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.context import FlowRunContext, TaskRunContext
from prefect.exceptions import ObjectNotFound, PrefectException
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from prefect.states import Cancelled, Completed

from tasks import events
from tasks.core.errors import NeedsApproval, Withdrawn

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
    """Return why the flow run of this process is to end; None while it may go on."""
    return None if _watch is None else _watch.found


def own_flow_run() -> FlowRun | None:
    """Return the flow run that this code runs in."""
    context = FlowRunContext.get()
    return None if context is None else context.flow_run


def deployed() -> FlowRun | None:
    """Return the flow run that this code runs in if a deployment's form or schedule started it, so that it
    has a page on which a person can be asked."""
    flow_run = own_flow_run()
    return None if flow_run is None or flow_run.deployment_id is None else flow_run


def label(labels: dict[str, str]) -> None:
    """Put these labels on the flow run of this process, as soon as the server takes them."""
    if _watch is not None:
        _watch.labels = labels


@contextmanager
def watching() -> Iterator[None]:
    """Watch the state of the flow run that this block belongs to; outside of one nothing is watched."""
    global _watch
    flow_run = own_flow_run()
    if flow_run is None:
        yield
        return
    _watch = FlowRunWatch(flow_run)
    try:
        yield
    finally:
        _watch.stop()
        _watch = None


class FlowRunWatch:
    """The thread that watches one flow run. `found` stays None as long as the run may go on."""

    def __init__(self, flow_run: FlowRun) -> None:
        self.found: Withdrawn | None = None
        self.labels: dict[str, str] = {}
        self._id, self._flow_id = flow_run.id, flow_run.flow_id
        self._stop = threading.Event()
        work = functools.partial(contextvars.copy_context().run, self._work)  # with Prefect's settings
        threading.Thread(target=work, name="flow-run-state", daemon=True).start()

    def stop(self) -> None:
        """End the thread at its next chance. Nobody waits for it, as it may be asking a dead server."""
        self._stop.set()

    def _work(self) -> None:
        # No retries: they would sleep through the moment in which the server is back.
        with (
            temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}),
            get_client(sync_client=True, httpx_settings={"timeout": TIMEOUT_S}) as client,
        ):
            first: FlowRun | None = None
            events.emit_pulse(events.PULSE, self._id)
            sent = time.monotonic()
            while self.found is None and not self._stop.wait(POLL_S):
                answer = look_up_flow_run(client, self._id, self._flow_id)
                if isinstance(answer, Withdrawn):
                    self.found = answer
                if not isinstance(answer, FlowRun):
                    continue
                first = first or answer
                self.found = withdrawal_of(first, answer)
                if not self.labels.items() <= answer.labels.items():
                    with contextlib.suppress(httpx.HTTPError, PrefectException):  # the next round tries again
                        client.update_flow_run_labels(self._id, {**self.labels})
                if time.monotonic() - sent >= events.INTERVAL_S:
                    sent = time.monotonic()
                    events.emit_pulse(events.PULSE, self._id)
        events.emit_pulse(events.STOPPED, self._id)


def look_up_flow_run(
    client: SyncPrefectClient, flow_run_id: UUID, flow_id: UUID
) -> FlowRun | Withdrawn | None:
    """Return the flow run as the server has it, Withdrawn where somebody has deleted it, and None where the
    server gives no answer. A server that does not know the flow either works on another database, in which
    nobody has deleted anything."""
    try:
        try:
            return client.read_flow_run(flow_run_id)
        except ObjectNotFound:
            client.read_flow(flow_id)
            return Withdrawn("cancelled", "the flow run was deleted")
    except (httpx.HTTPError, PrefectException):
        return None


def withdrawal_of(first: FlowRun, now: FlowRun) -> Withdrawn | None:
    """Return what the flow run's present state means for the process that first saw it as `first`.

    A state that was set by mistake, such as Crashed after a silence, ends no work: it ends only if somebody
    wants that, or has another process do it.
    """
    state = now.state
    if state is None:
        return None
    if state.is_cancelling() or state.is_cancelled():
        return Withdrawn("cancelled", "the flow run was cancelled")
    if state.is_paused():
        return Withdrawn("suspended", "the flow run was suspended", state)
    is_elsewhere = first.infrastructure_pid not in (None, now.infrastructure_pid)
    if state.is_scheduled() or state.is_pending() or now.run_count > first.run_count or is_elsewhere:
        return Withdrawn("superseded", "the flow run was started again; this process leaves it to that one")
    return None


class StageTask(Task[P, R]):
    """A Prefect task that can be withdrawn, or come to a question: its run then ends as Cancelled or as
    NeedsApproval, not as Failed, and the call raises the error. Otherwise it ends as Completed with the
    summary of its result. Results are not cached, because what is done
    is read from the disk."""

    def __init__(self, function: Callable[P, R], **options: Any) -> None:
        super().__init__(_ended_without_failure(function), cache_policy=NO_CACHE, **options)

    def __call__(self, *arguments: P.args, **named: P.kwargs) -> R:  # type: ignore[override]
        result: Any = super().__call__(*arguments, **named)
        if isinstance(result, State):
            if result.name == NEEDS_APPROVAL:
                raise NeedsApproval(result.message)
            if result.is_completed():
                record: Any = result.data
                return cast(R, record.result)
            raise withdrawal() or Withdrawn("cancelled", result.message or "cancelled")
        done: R = result
        return done


def stage(**options: Any) -> Callable[[Callable[P, R]], StageTask[P, R]]:
    """A decorator that makes a function a StageTask; `options` are those of Prefect's `task`."""
    return lambda function: StageTask(function, **options)


def _ended_without_failure(function: Callable[P, R]) -> Callable[P, R]:
    @functools.wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> Any:
        try:
            result = function(*arguments, **named)
            if TaskRunContext.get() is None:
                return result
            return Completed(message=getattr(result, "summary", None), data=result)
        except Withdrawn as withdrawn:
            return Cancelled(message=str(withdrawn))
        except NeedsApproval as question:
            if deployed() is None:
                raise
            return Completed(name=NEEDS_APPROVAL, message=question.reason)

    return call
