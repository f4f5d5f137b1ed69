"""The evaluations that a run must have, from its config alone, so that every reader can list the
missing ones."""

from __future__ import annotations

from tasks.core.schema import Config


def expected(config: Config) -> list[tuple[int, str]]:
    """Return step and task name: each task of the config every `evaluate.every` steps and at the last step.

    It is empty without an `evaluate` block. The steps must be known (`plan` turns epochs into steps).
    """
    if config.evaluate is None or config.train is None:
        return []
    assert config.train.steps is not None, "epochs are turned into steps when a run is planned"
    steps = config.evaluate.steps(config.train.steps)
    return [(step, task.name) for step in steps for task in config.evaluate.tasks]
