"""How a stage of the pipeline shows itself: in the terminal, in Prefect's UI, in a flow run's log.

The tasks beside this file wrap their work in `shown`. Each stage has one progress artifact, written when ten
seconds and a percent have gone by, because a server on SQLite stands no more, or after five minutes; the log
has a line a minute. Progress is best effort: requests are made in threads of their own, so that a
server that does not answer holds up neither the stage nor its Cancel.
"""

from __future__ import annotations

import contextvars
import functools
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, ParamSpec, TypeVar
from uuid import UUID

import httpx
from prefect import get_run_logger
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.client.schemas.objects import State, TaskRun
from prefect.context import FlowRunContext, TaskRunContext
from prefect.exceptions import MissingContextError, PrefectException
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from prefect.tasks import Task
from pydantic_core import to_jsonable_python

from tasks import control
from tasks.core import child, screen
from tasks.core.child import WITHHELD, Killed
from tasks.core.errors import TarmacError, Withdrawn, first_line
from tasks.core.pace import Pace
from tasks.core.screen import Progress
from tasks.core.units import counted, format_duration

ARTIFACT_INTERVAL_S = 10.0
LONGEST_INTERVAL_S = 300.0
"""Progress is written at least so often, as long as there is any."""
LOG_INTERVAL_S = 60.0
SILENT_S = 60.0
"""A child that has reported nothing for longer is called silent."""
WAIT_S = 0.25
"""How often a request that is waited for is looked at."""
LEFT_ALONE_S = 60.0
"""How long no progress is sent to a server that has not answered."""
PATIENCE_S = 60.0
"""How long the end of a stage waits for a server to take what it has to show."""
_left_alone_until = 0.0
_Logger = logging.Logger | logging.LoggerAdapter[Any]
P = ParamSpec("P")
R = TypeVar("R")
Details = TypeVar("Details")
Effect = Literal["changed", "unchanged", "adopted"]
"""What a stage did: something, nothing as there was nothing to do, or wait for the work of another."""


@dataclass(frozen=True)
class StageResult(Generic[Details]):
    """What a stage's task returns: its line on the screen, and in `details` what the next stages need."""

    stage: str
    summary: str
    seconds: float
    details: Details
    effect: Effect = "changed"

    def to_json(self) -> dict[str, Any]:
        """Return the stage as `--json` of a command lists it."""
        listed = {"stage": self.stage, "summary": self.summary, "seconds": self.seconds}
        return {**listed, "details": to_jsonable_python(self.details) or {}}


@dataclass
class StageJournal:
    """What a flow run has done so far: the stages that have succeeded, and the one that is under way."""

    stages: list[StageResult[Any]] = field(default_factory=list)
    under_way: str | None = None


_journal = StageJournal()


def begin_journal() -> StageJournal:
    """Start the journal of the stages that run from now on."""
    global _journal
    _journal = StageJournal()
    return _journal


class Shown:
    """A running stage: its work reports to `progress`, and makes a `result` once it is done."""

    def __init__(self, stage: str, bar: Progress) -> None:
        self.stage, self.bar = stage, bar
        self.summary = ""
        self.started = self.logged = self.reported = time.monotonic()
        self.phase = "start"
        self.pace = Pace(time.monotonic)
        self.artifact = _ProgressArtifact(stage)
        self.silence_s = self.stalled_s = 0.0

    def progress(
        self,
        done: int,
        total: int,
        note: str,
        detail: str = "",
        stalled_s: float = 0.0,
        cause: str = "",
        is_at_work: bool = True,
    ) -> None:
        """Show how far the stage is; `detail` is one more figure, such as `loss 1.48`. A stage that
        is stalled shows for how long and why, and the log reports when it goes on. One that is not at work,
        as it waits to be started again, shows no rate and promises no end."""
        control.raise_if_withdrawn()
        self.reported, self.phase = time.monotonic(), note
        if stalled_s:
            stalled = f"stalled for {format_duration(stalled_s)}{f': {cause}' if cause else ''}"
            detail = " · ".join(filter(None, (detail, stalled)))
        elif self.stalled_s:
            was = format_duration(self.stalled_s)
            get_run_logger().info("%s: goes on at %s after %s", self.stage, f"{done:,}", was)
        self.stalled_s = stalled_s
        self.bar(done, total, ", ".join(part for part in (note, detail) if part))
        stands = stalled_s > 0 or not is_at_work
        self.pace.update(done, total, note, detail, stands)
        self.artifact.update(self.pace, stands)
        if time.monotonic() - self.logged >= LOG_INTERVAL_S:
            self.logged = time.monotonic()
            get_run_logger().info("%s: %s", self.stage, str(self.pace))

    def call(self, target: str, arguments: Mapping[str, Any], is_private: bool) -> Any:
        """Return what `child.call` returns; the child ends with the flow run, and its silence is reported."""
        self.reported = time.monotonic()

        def idle() -> None:
            control.raise_if_withdrawn()
            silent_s = time.monotonic() - self.reported
            self.silent(silent_s if silent_s > SILENT_S else 0.0, self.phase)

        return child.call(target, arguments, self.progress, on_idle=idle, is_private=is_private)

    def silent(self, seconds: float, phase: str) -> None:
        """Warn that the work has reported nothing for so long; 0 once it reports again. The next warning
        of the same silence comes when it has lasted twice as long."""
        if seconds and seconds >= 2 * self.silence_s:
            screen.warn(f"{self.stage}: silent for {seconds:.0f} s in phase {phase}")
            self.silence_s = seconds
        elif not seconds:
            self.silence_s = 0.0

    def leave(self, error: BaseException) -> None:
        """Have the artifact promise no end of a stage that is left by an error before its own."""
        word = error.kind if isinstance(error, Withdrawn) else "failed"
        if word == "superseded":
            return  # another process shows it by now
        self.pace.stop()
        self.artifact.finish(f"{self.pace} · {word}", self.pace.percent)

    def result(
        self, summary: str, details: Details, effect: Effect = "changed", mark: str = "✓"
    ) -> StageResult[Details]:
        """Return the stage's result, after showing it on the screen, behind `mark`, and in the run's log."""
        self.summary = summary
        seconds = round(time.monotonic() - self.started, 2)
        screen.finished(self.stage, summary, seconds, mark)
        get_run_logger().info("%s: %s (%.1f s)", self.stage, summary, seconds)
        result = StageResult(self.stage, summary, seconds, details, effect)
        _journal.stages.append(result)
        return result


@contextmanager
def shown(stage: str) -> Iterator[Shown]:
    """Show the stage while the block runs; where its child process was killed, Killed names the stage."""
    control.raise_if_withdrawn()
    forward_logs()
    _journal.under_way = stage
    with screen.running(stage) as bar:
        running = Shown(stage, bar)
        try:
            yield running
        except Killed as killed:  # whose message begins with the name of the child's function
            how = str(killed).partition(" ")[2].replace("SIGKILL", "SIGKILL (is memory short?)", 1)
            running.leave(killed)
            raise Killed(f"{stage} {how}") from None
        except Exception as error:
            running.leave(error)
            raise
        running.artifact.finish(running.summary)
    _journal.under_way = None


def forward_logs() -> None:
    """From now on put what Tarmac's library logs into the flow run's log, and its warnings on the screen."""
    for name in ("tasks", "flows"):
        logger = logging.getLogger(name)
        if not any(isinstance(handler, _RunLogHandler) for handler in logger.handlers):
            logger.addHandler(_RunLogHandler())
            printer = screen.Printer()
            printer.addFilter(lambda record: record.name != screen.logger.name)  # which prints its own
            logger.addHandler(printer)
            logger.setLevel(logging.INFO)
    logging.getLogger("prefect.task_runs").addFilter(_is_unexpected)
    if FlowRunContext.get() is not None and TaskRunContext.get() is None:
        _RunLogHandler.of_flow = get_run_logger()


def _is_unexpected(record: logging.LogRecord) -> bool:
    """Return False for Prefect's traceback of an error that explains itself: the flow logs its message."""
    return record.exc_info is None or not isinstance(record.exc_info[1], TarmacError)


class _RunLogHandler(logging.Handler):
    """Logs in the task run or flow run that this code runs in. A thread of the library runs in none; its
    records go to the flow run that `forward_logs` was called in last."""

    of_flow: ClassVar[_Logger | None] = None

    def emit(self, record: logging.LogRecord) -> None:
        is_private = getattr(record, "is_private", False)
        text = f"{record.name}: {WITHHELD}" if is_private else record.getMessage()
        try:
            logger: _Logger | None = get_run_logger()
        except MissingContextError:
            logger = self.of_flow
        if logger is not None:
            logger.log(record.levelno, "%s", text)


def best_effort(ask: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R | None:
    """Return what a request to Prefect's server returns; None where the server does not take it within
    PATIENCE_S, or the flow run is withdrawn meanwhile. The first failure is shown."""
    answer = _in_background(functools.partial(ask, *arguments, **named))
    deadline, before = time.monotonic() + PATIENCE_S, control.withdrawal()
    while not answer.done() and control.withdrawal() is before and time.monotonic() < deadline:
        wait([answer], WAIT_S)
    return _taken(answer)


def _taken(answer: Future[R]) -> R | None:
    """Return the answer to a request; None where there is none yet, or the server did not take it."""
    if not answer.done():
        _warn("no answer")
        return None
    try:
        return answer.result()
    except (httpx.HTTPError, PrefectException) as error:
        _warn(type(error).__name__)
        return None


def _in_background(ask: Callable[[], R]) -> Future[R]:
    """Make a request in a thread of its own, on behalf of the task run or flow run of this one."""
    answer: Future[R] = Future()

    def work() -> None:
        try:
            answer.set_result(ask())
        except Exception as error:  # noqa: BLE001 - whoever takes the answer gets it
            answer.set_exception(error)

    target = functools.partial(contextvars.copy_context().run, work)
    threading.Thread(target=target, name="request", daemon=True).start()
    return answer


@functools.cache
def _warn(why: str) -> None:
    screen.warn(f"Prefect's server does not accept updates ({why}); the work goes on")


def is_transient(task: Task[Any, Any], run: TaskRun, state: State[Any]) -> bool:
    """Whether trying again can help: what was killed may live, what went wrong would go wrong again.

    Prefect asks this while tries are left, and then waits without a message; so the wait is reported here.
    """
    error = state.result(raise_on_failure=False)
    if not isinstance(error, Killed):
        return False
    tried, given = max(run.run_count, 1), task.retry_delay_seconds or 0
    delays_s = given if isinstance(given, list) else [given]
    delay_s = delays_s[min(tried, len(delays_s)) - 1]
    wait = f" in {delay_s:.0f} s" if delay_s else ""
    left = counted(task.retries + 1 - tried, "try", "tries")
    screen.warn(f"{first_line(error)}; again{wait}, {left} left")
    return True


class _ProgressArtifact:
    """A progress artifact that appears with the first progress."""

    def __init__(self, stage: str) -> None:
        self.stage = stage
        self.id: UUID | None = None
        self.last_s = -LONGEST_INTERVAL_S
        self.percent = -1.0
        self.text = ""
        self.was_stalled = False
        self._request: Future[Any] | None = None

    def update(self, pace: Pace, is_stalled: bool) -> None:
        """Write how far the stage is, if enough time has passed and something has changed."""
        percent, text = pace.percent, str(pace)
        since_s = time.monotonic() - self.last_s
        # Where nothing grows, as while the stage waits or lists files, the text shows what is new.
        is_still = percent == self.percent == 0 or is_stalled or self.was_stalled
        is_new = text != self.text and (is_still or since_s >= LONGEST_INTERVAL_S)
        if since_s >= ARTIFACT_INTERVAL_S and (is_new or (not is_still and percent - self.percent >= 1)):
            self.last_s, self.was_stalled = time.monotonic(), is_stalled
            self.percent, self.text = percent, text
            if self._is_free():
                self._write()

    def finish(self, text: str, percent: float = 100.0) -> None:
        if self._request is not None:
            wait([self._request], control.TIMEOUT_S)
            self._take_answer()
        if self.id is not None:
            best_effort(update_progress_artifact, self.id, percent, description=text)

    def _is_free(self) -> bool:
        """Whether another request may be made: none is under way, and the server is not left alone."""
        if self._request is not None and self._request.done():
            self._take_answer()
        return self._request is None and time.monotonic() >= _left_alone_until

    def _take_answer(self) -> None:
        """Take the answer to the last request; a server without one is left alone for a while, because the
        text is out of date soon."""
        global _left_alone_until
        assert self._request is not None
        answer, self._request = _taken(self._request), None
        self.id = self.id or answer
        if answer is None:
            _left_alone_until = time.monotonic() + LEFT_ALONE_S

    def _write(self) -> None:
        """Send it, with one retry only: what is written next is newer."""
        if self.id is None:
            flow_run = control.own_flow_run()
            # Each flow run has a key of its own, so that simultaneous runs do not overwrite each other's.
            key = f"{self.stage}-{'local' if flow_run is None else str(flow_run.id)[:8]}"
            send = functools.partial(create_progress_artifact, self.percent, key=key)
        else:
            send = functools.partial(update_progress_artifact, self.id, self.percent)
        with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 1}):
            self._request = _in_background(functools.partial(send, description=self.text))


def artifact_key(what: str, name: str) -> str:
    """Return a key as Prefect takes it, of small letters, digits and dashes, such as `samples-digits-clip`.
    Artifacts of one key are shown as the history of one thing."""
    return "-".join(re.findall("[a-z0-9]+", f"{what} {name}".lower()))
