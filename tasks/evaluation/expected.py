"""The evaluations that a run must have, from its config and what it follows, so that every reader can list
the missing ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tasks.core.files import digest
from tasks.core.schema import Config
from tasks.evaluation import results
from tasks.runs.folder import RunFolder
from tasks.runs.followed import Origin, origins_of
from tasks.runs.ledger import Key


@dataclass(frozen=True)
class WantedEvaluation:
    """One evaluation that the config asks for; `uid` is the digest of checkpoint, task and arguments."""

    step: int
    task: str
    uid: str

    @property
    def key(self) -> Key:
        return self.step, self.task


def expected(config: Config, followed: Iterable[int] | None = None) -> list[tuple[int, str]]:
    """Return step and task name: each task of the config every `evaluate.every` steps, at the last step, and
    at step 0 where that is evaluated; or at each step of `followed`, which a run has taken that follows
    another trainer.

    It is empty without an `evaluate` block. The steps must be known (`plan` turns epochs into steps).
    """
    tasks = [] if config.evaluate is None else config.evaluate.tasks
    steps = config.evaluated_steps if followed is None else followed
    return [(step, task.name) for step in steps for task in tasks]


def expected_of(run: RunFolder, config: Config) -> list[tuple[int, str]]:
    """Return the same for a run's folder, whose config this is."""
    return expected(config, sorted(origins_of(run)) if run.followed.exists() else None)


def wanted_of(
    run_id: str, config: Config, origins: Mapping[int, Origin] | None = None
) -> list[WantedEvaluation]:
    """Return every evaluation the config asks for. A step of a run names one checkpoint, as runs are exact;
    one of another trainer may be written again, so there its origin counts too."""
    if config.evaluate is None:
        return []
    tasks = {task.name: task for task in config.evaluate.tasks}
    content = {step: [origin.digest] for step, origin in (origins or {}).items()}
    return [
        WantedEvaluation(
            step, name, digest([run_id, step, task.model_dump(mode="json"), version, *content.get(step, [])])
        )
        for step, name in expected(config, None if origins is None else sorted(origins))
        for task in [tasks[name]]
        for version in [results.version_of(task.kind)]
    ]
