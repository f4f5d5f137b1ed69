"""How a stage of the pipeline shows itself: a bar in the terminal, an artifact in Prefect's UI, a result.

The tasks beside this file wrap their work in `shown`. Prefect hears of progress at most once a second.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypedDict
from uuid import UUID

from prefect import get_run_logger
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.client.schemas.objects import State, TaskRun
from prefect.context import FlowRunContext
from prefect.tasks import Task

from tasks.core import screen
from tasks.core.child import Killed
from tasks.core.progress import Progress

ARTIFACT_INTERVAL_S = 1.0


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

    def result(self, summary: str, **details: Any) -> StageResult:
        """The stage's result; says so on the screen and in the run's log."""
        seconds = round(time.monotonic() - self.started, 2)
        screen.finished(self.stage, summary, seconds)
        get_run_logger().info("%s: %s (%.1f s)", self.stage, summary, seconds)
        return {"stage": self.stage, "summary": summary, "seconds": seconds, "details": details}


@contextmanager
def shown(stage: str) -> Iterator[Shown]:
    """Show the stage while the block runs."""
    with screen.running(stage) as bar:
        artifact = _Artifact(stage)

        def progress(done: int, total: int, note: str) -> None:
            bar(done, total, note)
            artifact.update(done, total)

        yield Shown(stage, progress)
        artifact.finish()


def is_transient(task: Task[Any, Any], run: TaskRun, state: State[Any]) -> bool:
    """Whether trying again can help: what was killed may live, what went wrong would go wrong again."""
    return isinstance(state.result(raise_on_failure=False), Killed)


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
            self.id = _created(
                create_progress_artifact(share, key=_key(self.stage), description=f"Progress of {self.stage}")
            )
        else:
            update_progress_artifact(self.id, share)

    def finish(self) -> None:
        if self.id is not None:
            update_progress_artifact(self.id, 100.0)


def _created(value: Any) -> UUID:
    assert isinstance(value, UUID)
    return value


def _key(stage: str) -> str:
    """A key of its own for each flow run, so that runs at the same time do not overwrite one another's."""
    context = FlowRunContext.get()
    run = str(context.flow_run.id)[:8] if context is not None and context.flow_run is not None else "local"
    return f"{stage}-{run}"
