"""Which evaluations a run must have: pure, from the config alone, so that anyone can tell what is missing."""

from __future__ import annotations

from tasks.core.schema import Config


def expected(config: Config) -> list[tuple[int, str]]:
    """Step and task name: every `evaluate.every` steps and at the last step, each task of the config.

    Empty without an `evaluate` block. The steps must be known (`plan` turns epochs into steps).
    """
    if config.evaluate is None or config.train is None:
        return []
    assert config.train.steps is not None, "epochs are turned into steps when a run is planned"
    steps = config.evaluate.steps(config.train.steps)
    return [(step, task.name) for step in steps for task in config.evaluate.tasks]
