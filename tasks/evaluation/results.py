"""The files that an evaluation writes: its result, and its predictions for the first samples.

This module does without torch, so that agent, status and report can read them. The predictions are written
before the result: where there is a result, there are predictions.
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
"""The version of all evaluators; it rises when they would give other numbers for the same checkpoint."""
VERSIONS = {"lmms_eval": "2"}
"""The versions of kinds of evaluation that have changed alone."""

SELF_NAMED = "lmms_eval"
"""The task whose metrics start with the name of their benchmark, such as `mmstar_average`."""

ASIDE = ".unusable"
"""The suffix of a file that holds no valid result and was moved aside."""

KEPT_PREDICTIONS = 24
"""How many of the first samples have their predictions kept."""

Number = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
"""A number that is not finite is null in the file, because JSON has no word for it, and is read as NaN."""
Read = TypeVar("Read", bound=BaseModel)


class EvaluationResult(BaseModel):
    """The content of `evaluations/step_<N>/<task>.json`; the first of `metrics` stands for the task."""

    model_config = ConfigDict(frozen=True)

    task: str
    step: int
    checkpoint: str
    """The checkpoint's path, relative to the run's folder."""
    metrics: dict[str, Number]
    intervals: dict[str, tuple[Number, Number]] = {}
    """The 95 % confidence interval by metric, where it is known."""
    chance: dict[str, Number] = {}
    """The value by metric that guessing would give."""
    split: str = ""
    """The split that was evaluated; empty where another program did not record it."""
    samples: int
    samples_by_label: dict[str, int] = {}
    """The number of samples in which each label is known; empty for a task without labels."""
    notes: list[str] = []
    """Further sentences that a reader of the figures has to know."""
    seconds: float
    versions: dict[str, str]
    question: str = ""
    """The token by which the run's agent recognises the answer to its question; empty when another process
    asked."""


class StepSummary(BaseModel):
    """The content of `eval_results/step_<N>.json`: a step's results, as nanoVLM's trainer reads them."""

    model_config = ConfigDict(frozen=True)

    global_step: int
    results: dict[str, Number]
    """Values by full name."""


class Prediction(BaseModel):
    """The prediction of an evaluation for one sample."""

    model_config = ConfigDict(frozen=True)

    key: str
    label: str
    predicted: str
    question: str = ""
    """The question, where a sample has several."""
    score: float | None = None
    """The model's probability that the answer is yes, where it gives one."""


def full_name(task: str, metric: str) -> str:
    """Return a metric's name among those of all tasks, as in `eval_results/`: `<task>_<metric>`, or the
    metric alone where it names its benchmark. A task with a name of its own always has it in front, so no
    two collide."""
    return metric if task == SELF_NAMED else f"{task}_{metric}"


def version_of(kind: str) -> str:
    """Return the version of a kind of evaluation."""
    return VERSIONS.get(kind, VERSION)


def is_right(prediction: Prediction) -> bool:
    """Whether the label is the predicted one; answers in words are compared without case and outer spaces."""
    if not prediction.question:
        return prediction.predicted == prediction.label
    return plain(prediction.predicted) == plain(prediction.label)


def plain(text: str) -> str:
    """Return an answer without case and outer spaces, for comparison."""
    return text.strip().casefold()


PREDICTIONS = TypeAdapter(list[Prediction])


def write_result(
    run: RunFolder,
    result: EvaluationResult,
    predictions: Sequence[Prediction],
    files: Mapping[str, bytes] | None = None,
    by_sample: bytes | None = None,
) -> None:
    """Write all files; the result is written last and atomically. `by_sample` is what each sample contributed
    to it; without that a file of an earlier result is removed."""
    of_samples = run.judged_samples(result.step, result.task)
    if by_sample is None:
        of_samples.unlink(missing_ok=True)
    else:
        write_atomic(of_samples, by_sample)
    for name, content in (files or {}).items():
        write_atomic(run.evaluation_files(result.step, result.task) / name, content)
    shown = PREDICTIONS.dump_json(list(predictions), indent=2) + b"\n"
    write_atomic(run.predictions(result.step, result.task), shown)
    write_atomic(run.evaluation(result.step, result.task), result.model_dump_json(indent=2) + "\n")


def read_result(path: Path) -> EvaluationResult | None:
    """Return the result in a file; None where it is missing or invalid."""
    found = examine_result(path)
    return found if isinstance(found, EvaluationResult) else None


def examine_result(path: Path) -> EvaluationResult | str:
    """Return the result in a file, or the reason why there is none. OSError where the file cannot
    be read now."""
    result = _examine(path, EvaluationResult)
    if isinstance(result, str):
        return result
    if not result.metrics:
        return "metrics: is empty"
    if (path.parent.name, path.stem) != (f"step_{result.step}", result.task):
        return f"it is about {result.task} of step {result.step}, but its path is not"
    return result


def examine_summary(path: Path) -> StepSummary | str:
    """Return the summary in a file of `eval_results/`, or the reason why there is none."""
    summary = _examine(path, StepSummary)
    if isinstance(summary, StepSummary) and path.name != f"step_{summary.global_step}.json":
        return f"it is about step {summary.global_step}, but its name is not"
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
        return f"{where}: {first['msg']}" if where else f"it is torn or not JSON: {first['msg']}"


def set_aside(path: Path) -> Path:
    """Rename a file in its folder, so that no reader of results takes it for one."""
    aside = path.with_name(path.name + ASIDE)
    os.replace(path, aside)
    return aside


def files_of(run: RunFolder) -> list[Path]:
    """List the files of `evaluations/` that should hold a result, whichever program wrote them."""
    found = run.evaluations.glob("step_*/*.json")
    return sorted(path for path in found if not path.name.endswith(".predictions.json"))


def read_predictions(run: RunFolder, step: int, task: str) -> dict[str, list[Prediction]]:
    """Return the predictions by sample key, in the order of its questions; empty where none were kept."""
    try:
        rows = PREDICTIONS.validate_json(run.predictions(step, task).read_bytes())
    except (FileNotFoundError, ValidationError):
        return {}
    found: dict[str, list[Prediction]] = {}
    for row in rows:
        found.setdefault(row.key, []).append(row)
    return found
