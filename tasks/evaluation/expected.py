"""The evaluations that a run must have, from its config alone, so that every reader can list the
missing ones."""

from __future__ import annotations

from tasks.core.schema import Config


def expected(config: Config) -> list[tuple[int, str]]:
    """Return step and task name: each task of the config every `evaluate.every` steps, at the last step, and
    at step 0 where that is evaluated.

    It is empty without an `evaluate` block. The steps must be known (`plan` turns epochs into steps).
    """
    tasks = [] if config.evaluate is None else config.evaluate.tasks
    return [(step, task.name) for step in config.evaluated_steps for task in tasks]
