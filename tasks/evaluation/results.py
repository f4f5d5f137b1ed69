"""The files an evaluation leaves: its result, and what it said of the first samples, for a reader to look at.

Free of torch, so that agent, status and report can read them. The predictions are written before the result:
where a result stands, they do too.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, TypeAdapter, ValidationError

from tasks.core.files import write_atomic
from tasks.runs.folder import RunFolder

VERSION = "1"
"""Of all evaluators; raised when one of them would give other numbers than before for the same checkpoint."""

SPEAK_FOR_THEMSELVES = "lmms_eval"
"""The task whose metrics are known by the benchmark's name that they begin with, such as `mmstar_average`."""

ASIDE = ".unusable"
"""The end of the name of a file that was no result and was moved aside."""

KEPT_PREDICTIONS = 24
"""Of how many of the first samples what was said of them is kept."""

Number = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
"""What is not finite stands as null in the file, as JSON has no word for it, and is read as NaN."""


Read = TypeVar("Read", bound=BaseModel)


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
    split: str = ""
    """What it was evaluated on; empty where another program did not say."""
    samples: int
    notes: list[str] = []
    """What a reader has to know beside the figures, a sentence each."""
    seconds: float
    versions: dict[str, str]
    question: str = ""
    """What the run's agent asked, in a word of its own; empty when somebody else did."""


class StepSummary(BaseModel):
    """The content of `eval_results/step_<N>.json`: a step's results, as nanoVLM's trainer reads them."""

    model_config = ConfigDict(frozen=True)

    global_step: int
    results: dict[str, Number]
    """By full name."""


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


def write_result(
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


def read_result(path: Path) -> EvaluationResult | None:
    """The result in a file; None when it is not there or is none: either way there is none."""
    found = examine_result(path)
    return found if isinstance(found, EvaluationResult) else None


def examine_result(path: Path) -> EvaluationResult | str:
    """The result in a file, or in words why there is none. OSError where that cannot be found out now."""
    result = _examine(path, EvaluationResult)
    if isinstance(result, str):
        return result
    if not result.metrics:
        return "metrics: is empty"
    if (path.parent.name, path.stem) != (f"step_{result.step}", result.task):
        return f"it is about {result.task} of step {result.step}, which its path is not"
    return result


def examine_summary(path: Path) -> StepSummary | str:
    """The same of a file of `eval_results/`."""
    summary = _examine(path, StepSummary)
    if isinstance(summary, StepSummary) and path.name != f"step_{summary.global_step}.json":
        return f"it is about step {summary.global_step}, which its name is not"
    return summary


def _examine(path: Path, kind: type[Read]) -> Read | str:
    try:
        return kind.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return "it is missing"
    except (PermissionError, IsADirectoryError) as error:
        return f"it cannot be read: {error.strerror}"
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        return f"{where}: {first['msg']}" if where else f"it is torn or no JSON: {first['msg']}"


def set_aside(path: Path) -> Path:
    """Move a file out of the way of all who read results, beside where it was."""
    aside = path.with_name(path.name + ASIDE)
    os.replace(path, aside)
    return aside


def files_of(run: RunFolder) -> list[Path]:
    """The files of `evaluations/` that should hold a result, whoever wrote them."""
    found = run.evaluations.glob("step_*/*.json")
    return sorted(path for path in found if not path.name.endswith(".predictions.json"))


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
