"""What the evaluations of a run said about one sample, by the tables that they keep beside their results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter

from tasks.evaluation.results import Prediction, files_of, read_predictions, read_result
from tasks.evaluation.samples import JudgedSamples, read_samples
from tasks.runs.folder import RunFolder


@dataclass(frozen=True)
class SampleJudgement:
    """One row of an evaluation about a sample: its figures by column, and whether its answer is right:
    None where no column says so. `item` distinguishes several rows of a sample."""

    step: int
    task: str
    is_right: bool | None
    figures: Mapping[str, float]
    item: str = ""
    predictions: Sequence[Prediction] = ()


@dataclass
class RunJudgements:
    """All of a run; `unrecorded` are results without a table of samples, `elsewhere` those that judged other
    samples, each as (step, task)."""

    judgements: list[SampleJudgement] = field(default_factory=list)
    unrecorded: list[tuple[int, str]] = field(default_factory=list)
    elsewhere: list[tuple[int, str]] = field(default_factory=list)

    def to_json(self) -> Any:
        """Return the object that `--json` prints."""
        return TypeAdapter(RunJudgements).dump_python(self, mode="json")


def judgements_of(run: RunFolder, version: str, key: str) -> RunJudgements:
    """Return what each evaluation of a run said about the sample of a version (12 digits), task by task and
    step by step."""
    found = RunJudgements()
    for path in files_of(run):
        result = read_result(path)
        if result is None:
            continue
        place = (result.step, result.task)
        judged = read_samples(run.judged_samples(*place))
        if judged is None:
            found.unrecorded.append(place)
            continue
        said = read_predictions(run, *place).get(key, ())
        rows = _about(judged, key) if judged.data.partition(" ")[0] == version else []
        found.judgements += [
            SampleJudgement(*place, is_right, figures, item, said) for is_right, figures, item in rows
        ]
        if not rows:
            found.elsewhere.append(place)
    found.judgements.sort(key=lambda one: (one.task, one.step))
    return found


def _about(judged: JudgedSamples, key: str) -> list[tuple[bool | None, dict[str, float], str]]:
    """Return rightness, figures and item of the rows about a sample. Rows of batches, whose values have
    weights, bear the key of their first sample and are about none."""
    weighted = {
        column
        for one in judged.formulas.values()
        if one.kind == "mean" and len(one.columns) > 1
        for column in one.columns
    }
    found = []
    for row in (row for row, own in enumerate(judged.keys) if own == key):
        figures = {
            name: float(values[row])
            for name, values in judged.columns.items()
            if name not in weighted and math.isfinite(values[row])
        }
        if figures:
            found.append((_is_right(judged, figures), figures, judged.items[row] if judged.items else ""))
    return found


def _is_right(judged: JudgedSamples, figures: Mapping[str, float]) -> bool | None:
    """Return whether the first metric that counts the row calls it right; None for scores of labels, where a
    sample is right in some and wrong in others."""
    if any(one.kind == "auroc" for one in judged.formulas.values()):
        return None
    hits = (figures.get(one.columns[0]) for one in judged.formulas.values() if one.kind == "mean")
    first = next((hit for hit in hits if hit is not None), None)
    return first == 1.0 if first in (0.0, 1.0) else None
