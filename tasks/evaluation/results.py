"""The files an evaluation leaves: its result, and what it said of the first samples, for a reader to look at.

Free of torch, so that agent, status and report can read them. The predictions are written before the result:
where a result stands, they do too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, TypeAdapter, ValidationError

from tasks.core.files import write_atomic
from tasks.runs.folder import RunFolder

VERSION = "1"
"""Of all evaluators; raised when one of them would give other numbers than before for the same checkpoint."""

SPEAK_FOR_THEMSELVES = "lmms_eval"
"""The task whose metrics are known by the benchmark's name that they begin with, such as `mmstar_average`."""

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
    notes: list[str] = []
    """What a reader has to know beside the figures, a sentence each."""
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
    question: str = ""
    """What was asked, where a sample has several questions."""
    score: float | None = None
    """How probable the model finds that the answer is yes, where it says so."""


def full_name(task: str, metric: str) -> str:
    """A metric's name among those of all tasks, as in `eval_results/`: `<task>_<metric>`, and by itself where
    it names its benchmark; a name of its own that a task is given stands in front, so no two collide."""
    return metric if task == SPEAK_FOR_THEMSELVES else f"{task}_{metric}"


def is_right(prediction: Prediction) -> bool:
    """The very label; of an answer in words its letters, but for case and outer spaces."""
    if not prediction.question:
        return prediction.predicted == prediction.label
    return plain(prediction.predicted) == plain(prediction.label)


def plain(text: str) -> str:
    """What is left of an answer when case and outer spaces do not count."""
    return text.strip().casefold()


PREDICTIONS = TypeAdapter(list[Prediction])


def write(
    run: RunFolder,
    result: EvaluationResult,
    predictions: Sequence[Prediction],
    files: Mapping[str, bytes] | None = None,
) -> None:
    """Write all files; the result appears last and whole."""
    for name, content in (files or {}).items():
        write_atomic(run.evaluation_files(result.step, result.task) / name, content)
    shown = PREDICTIONS.dump_json(list(predictions), indent=2) + b"\n"
    write_atomic(run.predictions(result.step, result.task), shown)
    write_atomic(run.evaluation(result.step, result.task), result.model_dump_json(indent=2) + "\n")


def read(path: Path) -> EvaluationResult | None:
    """The result in a file; None when it is not there or does not parse: either way there is none."""
    try:
        return EvaluationResult.model_validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def read_predictions(run: RunFolder, step: int, task: str) -> dict[str, list[Prediction]]:
    """By key of the sample, in the order of its questions; empty when none were kept."""
    try:
        rows = PREDICTIONS.validate_json(run.predictions(step, task).read_bytes())
    except (FileNotFoundError, ValidationError):
        return {}
    found: dict[str, list[Prediction]] = {}
    for row in rows:
        found.setdefault(row.key, []).append(row)
    return found
