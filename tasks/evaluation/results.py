"""The files an evaluation leaves: its result, and what it said of the first samples, for a reader to look at.

Free of torch, so that agent, status and report can read them. The predictions are written before the result:
where a result stands, they do too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, TypeAdapter, ValidationError

from tasks.core.files import write_atomic
from tasks.runs.folder import RunFolder

VERSION = "1"
"""Of all evaluators; raised when one of them would give other numbers than before for the same checkpoint."""

KEPT_PREDICTIONS = 24
"""Of how many of the first samples what was said of them is kept."""

Number = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
"""What is not finite stands as null in the file, as JSON has no word for it, and is read as NaN."""


class EvaluationResult(BaseModel):
    """The content of `evaluations/step_<N>/<task>.json`; the first of `metrics` stands for the task."""

    model_config = ConfigDict(frozen=True)

    task: str
    step: int
    checkpoint: str
    """Relative to the run's folder."""
    metrics: dict[str, Number]
    intervals: dict[str, tuple[Number, Number]] = {}
    """95 % confidence interval by metric, where one is known."""
    chance: dict[str, Number] = {}
    """By metric, what guessing would give."""
    split: str
    """What it was evaluated on."""
    samples: int
    seconds: float
    versions: dict[str, str]
    question: str = ""
    """What the run's agent asked, in a word of its own; empty when somebody else did."""


class Prediction(BaseModel):
    """What an evaluation said of one sample."""

    model_config = ConfigDict(frozen=True)

    key: str
    label: str
    predicted: str


PREDICTIONS = TypeAdapter(list[Prediction])


def write(run: RunFolder, result: EvaluationResult, predictions: Sequence[Prediction]) -> None:
    """Write both files; the result appears last and whole."""
    shown = PREDICTIONS.dump_json(list(predictions), indent=2) + b"\n"
    write_atomic(run.predictions(result.step, result.task), shown)
    write_atomic(run.evaluation(result.step, result.task), result.model_dump_json(indent=2) + "\n")


def read(path: Path) -> EvaluationResult | None:
    """The result in a file; None when it is not there or does not parse: either way there is none."""
    try:
        return EvaluationResult.model_validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def read_predictions(run: RunFolder, step: int, task: str) -> dict[str, Prediction]:
    """By key of the sample; empty when none were kept."""
    try:
        rows = PREDICTIONS.validate_json(run.predictions(step, task).read_bytes())
    except (FileNotFoundError, ValidationError):
        return {}
    return {row.key: row for row in rows}
