"""How a stage of the pipeline shows itself: a bar in the terminal, an artifact in Prefect's UI, a result.

The tasks beside this file wrap their work in `shown`. Prefect hears of progress at most once a second, and a
server that does not answer decides nothing over the work.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypedDict
from uuid import UUID

import httpx
from prefect import get_run_logger
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.client.schemas.objects import State, TaskRun
from prefect.context import FlowRunContext
from prefect.exceptions import PrefectException
from prefect.tasks import Task

from tasks.core import screen
from tasks.core.child import Killed
from tasks.core.screen import Progress
from tasks.core.units import counted

ARTIFACT_INTERVAL_S = 1.0
LEFT_ALONE_S = 300.0
"""How long a server that has not answered is told nothing: a minute goes by until Prefect gives a try up."""
_left_alone_until = 0.0
P = ParamSpec("P")


class StageResult(TypedDict):
    """What a stage's task returns: JSON, for the screen, the UI and the next stage."""

    stage: str
    summary: str
    seconds: float
    details: dict[str, Any]


@dataclass
class Shown:
    """A running stage: `progress` to be told how far it is, `result` once it is done."""

    stage: str
    progress: Progress
    started: float = field(default_factory=time.monotonic)

    def result(self, summary: str, mark: str = "✓", **details: Any) -> StageResult:
        """The stage's result; says so on the screen, after `mark`, and in the run's log."""
        seconds = round(time.monotonic() - self.started, 2)
        screen.finished(self.stage, summary, seconds, mark)
        get_run_logger().info("%s: %s (%.1f s)", self.stage, summary, seconds)
        return {"stage": self.stage, "summary": summary, "seconds": seconds, "details": details}


@contextmanager
def shown(stage: str) -> Iterator[Shown]:
    """Show the stage while the block runs; Killed names it where a child of its was killed."""
    with screen.running(stage) as bar:
        artifact = _Artifact(stage)

        def progress(done: int, total: int, note: str) -> None:
            bar(done, total, note)
            artifact.update(done, total)

        try:
            yield Shown(stage, progress)
        except Killed as killed:
            raise _of_stage(stage, killed) from None
        artifact.finish()


def tell(show: Callable[P, Any], *arguments: P.args, **named: P.kwargs) -> Any:
    """What `show` returns of an artifact in Prefect's UI; None where the server does not take it.

    The screen says so once. The server is then left alone for a while.
    """
    global _left_alone_until
    if time.monotonic() < _left_alone_until:
        return None
    try:
        return show(*arguments, **named)
    except (httpx.HTTPError, PrefectException) as error:
        _left_alone_until = time.monotonic() + LEFT_ALONE_S
        _warn(type(error).__name__)
        return None


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
    screen.warn(f"{str(error).splitlines()[0]}; again{wait}, {left} left")
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
        self.last = 0.0

    def update(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self.last < ARTIFACT_INTERVAL_S or not total:
            return
        self.last = now
        share = min(100.0, 100.0 * done / total)
        if self.id is None:
            says = f"Progress of {self.stage}"
            self.id = tell(create_progress_artifact, share, key=_key(self.stage), description=says)
        else:
            tell(update_progress_artifact, self.id, share)

    def finish(self) -> None:
        if self.id is not None:
            tell(update_progress_artifact, self.id, 100.0)


def _key(stage: str) -> str:
    """A key of its own for each flow run, so that runs at the same time do not overwrite one another's."""
    context = FlowRunContext.get()
    run = str(context.flow_run.id)[:8] if context is not None and context.flow_run is not None else "local"
    return f"{stage}-{run}"
