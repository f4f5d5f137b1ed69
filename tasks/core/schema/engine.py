"""The `engine` block: where each stage runs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tasks.core.schema.block import Block, Duration


class BuildEngine(Block):
    """Where the build runs."""

    kind: Literal["local"] = "local"
    workers: Annotated[int, Field(ge=1)] = 2


class TrainEngine(Block):
    """Where the training runs."""

    kind: Literal["local"] = "local"
    time: Duration = 48 * 3600
    """After this the job is ended; the next start resumes it."""


class EvaluateEngine(Block):
    """Where the evaluations run."""

    kind: Literal["local"] = "local"
    jobs: Annotated[int, Field(ge=1)] = 1
    """How many run at once."""
    time: Duration = 3600


class Engines(Block):
    """Where each stage runs."""

    build: BuildEngine = BuildEngine()
    train: TrainEngine = TrainEngine()
    evaluate: EvaluateEngine = EvaluateEngine()
