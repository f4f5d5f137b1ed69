"""The evaluations that a run must have, from its config and what it follows, so that every reader can list
the missing ones."""

from __future__ import annotations

from collections.abc import Iterable

from tasks.core.schema import Config
from tasks.runs.folder import RunFolder
from tasks.runs.followed import origins_of


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
