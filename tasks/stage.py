"""How a stage of the pipeline shows itself: in the terminal, in Prefect's UI, in a flow run's log.

The tasks beside this file wrap their work in `shown`. Each stage has one progress artifact, written when ten
seconds and a percent have gone by, because a server on SQLite stands no more; the log has a line a minute. A
server that does not answer decides nothing over the work.
"""

from __future__ import annotations

import functools
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
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
from tasks.core.errors import TarmacError, first_line
from tasks.core.pace import Pace
from tasks.core.screen import Progress
from tasks.core.units import counted, format_duration

ARTIFACT_INTERVAL_S = 10.0
LOG_INTERVAL_S = 60.0
SILENT_S = 60.0
"""A child that has reported nothing for longer is called silent."""
LEFT_ALONE_S = 60.0
"""How long a server that has not answered hears of no progress."""
_left_alone_until = 0.0
_Logger = logging.Logger | logging.LoggerAdapter[Any]
P = ParamSpec("P")
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
        """The stage as `--json` of a command lists it."""
        listed = {"stage": self.stage, "summary": self.summary, "seconds": self.seconds}
        return {**listed, "details": to_jsonable_python(self.details) or {}}


@dataclass
class StageJournal:
    """What a flow run has done so far: the stages that have ended well, and the one that is under way."""

    stages: list[StageResult[Any]] = field(default_factory=list)
    under_way: str | None = None


_journal = StageJournal()


@contextmanager
def recorded() -> Iterator[StageJournal]:
    """The journal of the stages that the block runs."""
    global _journal
    _journal = StageJournal()
    yield _journal


@dataclass
class Shown:
    """A running stage: `progress` to be told how far it is, `result` once it is done."""

    stage: str
    bar: Progress
    summary: str = ""

    def __post_init__(self) -> None:
        self.started = self.logged = self.heard = time.monotonic()
        self.phase = "start"
        self.pace = Pace(time.monotonic)
        self.artifact = _Artifact(self.stage)
        self.silence_s = self.stalled_s = 0.0

    def progress(self, done: int, total: int, note: str, detail: str = "", stalled_s: float = 0.0) -> None:
        """Show how far the stage is; `detail` is one more figure, such as `loss 1.48`. A stage that
        is stalled shows for how long, and the log says when it goes on."""
        control.raise_if_withdrawn()
        self.heard, self.phase = time.monotonic(), note
        if stalled_s:
            detail = " · ".join(filter(None, (detail, f"stalled for {format_duration(stalled_s)}")))
        elif self.stalled_s:
            was = format_duration(self.stalled_s)
            get_run_logger().info("%s: goes on at %s after %s", self.stage, f"{done:,}", was)
        self.stalled_s = stalled_s
        self.bar(done, total, ", ".join(part for part in (note, detail) if part))
        self.pace.heard(done, total, note, detail, stalled_s > 0)
        self.artifact.update(self.pace, stalled_s > 0)
        if time.monotonic() - self.logged >= LOG_INTERVAL_S:
            self.logged = time.monotonic()
            get_run_logger().info("%s: %s", self.stage, str(self.pace))

    def call(self, target: str, arguments: Mapping[str, Any], is_private: bool) -> Any:
        """What `child.call` returns; the child ends with the flow run, and a silent one is warned of."""
        self.heard = time.monotonic()

        def idle() -> None:
            control.raise_if_withdrawn()
            silent_s = time.monotonic() - self.heard
            self.silent(silent_s if silent_s > SILENT_S else 0.0, self.phase)

        return child.call(target, arguments, self.progress, on_idle=idle, is_private=is_private)

    def silent(self, seconds: float, phase: str) -> None:
        """Warn that nothing has been heard of the work for so long; 0 once it speaks again. The next warning
        of the same silence comes when it has lasted twice as long."""
        if seconds and seconds >= 2 * self.silence_s:
            screen.warn(f"{self.stage}: silent for {seconds:.0f} s in phase {phase}")
            self.silence_s = seconds
        elif not seconds:
            self.silence_s = 0.0

    def result(
        self, summary: str, details: Details, effect: Effect = "changed", mark: str = "✓"
    ) -> StageResult[Details]:
        """The stage's result; says so on the screen, after `mark`, and in the run's log."""
        self.summary = summary
        seconds = round(time.monotonic() - self.started, 2)
        screen.finished(self.stage, summary, seconds, mark)
        get_run_logger().info("%s: %s (%.1f s)", self.stage, summary, seconds)
        result = StageResult(self.stage, summary, seconds, details, effect)
        _journal.stages.append(result)
        return result


@contextmanager
def shown(stage: str) -> Iterator[Shown]:
    """Show the stage while the block runs; Killed names it where a child of its was killed."""
    control.raise_if_withdrawn()
    listen()
    _journal.under_way = stage
    with screen.running(stage) as bar:
        running = Shown(stage, bar)
        try:
            yield running
        except Killed as killed:
            raise _of_stage(stage, killed) from None
        running.artifact.finish(running.summary)
    _journal.under_way = None


def listen() -> None:
    """From now on have what Tarmac's library logs in the flow run's log, and its warnings on the screen."""
    for name in ("tasks", "flows"):
        logger = logging.getLogger(name)
        if not any(isinstance(handler, _ToRun) for handler in logger.handlers):
            logger.addHandler(_ToRun())
            printer = screen.Printer()
            printer.addFilter(lambda record: record.name != screen.logger.name)  # which prints its own
            logger.addHandler(printer)
            logger.setLevel(logging.INFO)
    logging.getLogger("prefect.task_runs").addFilter(_is_unexpected)
    if FlowRunContext.get() is not None and TaskRunContext.get() is None:
        _ToRun.of_flow = get_run_logger()


def _is_unexpected(record: logging.LogRecord) -> bool:
    """False for Prefect's traceback of an error that explains itself: the flow logs it as it is."""
    return record.exc_info is None or not isinstance(record.exc_info[1], TarmacError)


class _ToRun(logging.Handler):
    """Logs in the task run or flow run that this code runs in. A thread of the library runs in none: what it
    says goes to the flow run that this process has listened for last."""

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


def tell(show: Callable[P, Any], *arguments: P.args, **named: P.kwargs) -> Any:
    """What `show` returns of an artifact in Prefect's UI; None where the server does not take it, which the
    screen says once.

    A server that is away is waited for, a minute or so, as Prefect does.
    """
    try:
        return show(*arguments, **named)
    except (httpx.HTTPError, PrefectException) as error:
        _warn(type(error).__name__)
        return None


def _tell_in_passing(show: Callable[P, Any], *arguments: P.args, **named: P.kwargs) -> Any:
    """The same of what is out of date soon: a server that is away is not waited for, because the stage would
    hear of nothing meanwhile, and is then left alone for a while."""
    global _left_alone_until
    if time.monotonic() < _left_alone_until:
        return None
    with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 1}):
        answer = tell(show, *arguments, **named)
    if answer is None:
        _left_alone_until = time.monotonic() + LEFT_ALONE_S
    return answer


@functools.cache
def _warn(why: str) -> None:
    screen.warn(f"Prefect's server does not take what it is told ({why}); the work goes on")


def is_transient(task: Task[Any, Any], run: TaskRun, state: State[Any]) -> bool:
    """Whether trying again can help: what was killed may live, what went wrong would go wrong again.

    Prefect asks while tries are left, and waits in silence then; so the wait is told here.
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


def _of_stage(stage: str, killed: Killed) -> Killed:
    """The error with the stage's name in the place of the function's, with which a child's begins."""
    told = str(killed).partition(" ")[2]
    return Killed(f"{stage} {told.replace('SIGKILL', 'SIGKILL (is memory short?)', 1)}")


class _Artifact:
    """A progress artifact that appears with the first progress."""

    def __init__(self, stage: str) -> None:
        self.stage = stage
        self.id: UUID | None = None
        self.last_s = -ARTIFACT_INTERVAL_S
        self.percent = -1.0
        self.says = ""
        self.was_stalled = False

    def update(self, pace: Pace, is_stalled: bool) -> None:
        now, percent, says = time.monotonic(), pace.percent, str(pace)
        # Where nothing grows, while somebody is waited for or files are listed, the text is the news.
        is_still = percent == self.percent == 0 or is_stalled or self.was_stalled
        is_news = says != self.says if is_still else percent - self.percent >= 1
        if now - self.last_s >= ARTIFACT_INTERVAL_S and is_news:
            self.last_s, self.was_stalled = now, is_stalled
            self._write(percent, says)

    def finish(self, says: str) -> None:
        if self.id is not None:
            tell(update_progress_artifact, self.id, 100.0, description=says)

    def _write(self, percent: float, says: str) -> None:
        self.percent, self.says = percent, says
        if self.id is None:
            key = _key(self.stage)
            self.id = _tell_in_passing(create_progress_artifact, percent, key=key, description=says)
        else:
            _tell_in_passing(update_progress_artifact, self.id, percent, description=says)


def _key(stage: str) -> str:
    """A key of its own for each flow run, so that runs at the same time do not overwrite one another's."""
    context = FlowRunContext.get()
    run = str(context.flow_run.id)[:8] if context is not None and context.flow_run is not None else "local"
    return f"{stage}-{run}"


def artifact_key(what: str, name: str) -> str:
    """`samples-digits-clip`: a key as Prefect takes it, of small letters, digits and dashes; artifacts of one
    key are shown as one thing's history."""
    return "-".join(re.findall("[a-z0-9]+", f"{what} {name}".lower()))
