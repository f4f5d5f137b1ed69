"""What the evaluations of a run said about one sample: rows about it, and none about batches or other data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tasks.evaluation.judgements import judgements_of
from tasks.evaluation.results import EvaluationResult, Prediction, write_result
from tasks.evaluation.samples import Formula, JudgedSamples
from tasks.runs.folder import RunFolder

VERSION = "0123456789ab"
NAN = np.nan
ZERO_SHOT = JudgedSamples(
    ["a", "b"],
    {"top1": np.array([1.0, 0.0]), "top5": np.array([1.0, 1.0]), "class": np.array([3.0, 4.0])},
    {"top1": Formula("mean", ["top1"]), "mean_per_class": Formula("mean_by_class", ["top1", "class"])},
    data=f"{VERSION} val",
)
RETRIEVAL = JudgedSamples(
    ["a", "a"],
    {"image_to_text_R@1": np.array([0.0, NAN]), "text_to_image_R@1": np.array([NAN, 1.0])},
    {name: Formula("mean", [name]) for name in ("image_to_text_R@1", "text_to_image_R@1")},
    ["image", "caption"],
    data=f"{VERSION} val",
)
LABELS = JudgedSamples(
    ["a"],
    {"score_x": np.array([0.25]), "truth_x": np.array([1.0]), "accuracy_x": np.array([0.0])},
    {"auroc_x": Formula("auroc", ["score_x", "truth_x"]), "accuracy_x": Formula("mean", ["accuracy_x"])},
    data=f"{VERSION} val",
)
QUESTIONS = JudgedSamples(
    ["a", "a", "a"],
    {
        "exact_match": np.array([1.0, 0.0, NAN]),
        "loss": np.array([NAN, NAN, 2.0]),
        "weight": np.array([NAN, NAN, 9.0]),
    },
    {"exact_match": Formula("mean", ["exact_match"]), "loss": Formula("mean", ["loss", "weight"])},
    ["question 0", "question 1", "batch 0 of 8 samples"],
    data=f"{VERSION} val",
)


def write(run: RunFolder, step: int, task: str, judged: JudgedSamples | None, said: str = "") -> None:
    result = EvaluationResult(
        task=task, step=step, checkpoint="c", metrics={"m": 1.0}, samples=2, seconds=1.0, versions={}
    )
    predictions = [Prediction(key="a", label="cat", predicted=said)] if said else []
    write_result(run, result, predictions, by_sample=None if judged is None else judged.to_bytes())


@pytest.mark.parametrize(
    ("judged", "right", "items"),
    [
        (ZERO_SHOT, [True], [""]),
        (RETRIEVAL, [False, True], ["image", "caption"]),
        (LABELS, [None], [""]),
        (QUESTIONS, [True, False], ["question 0", "question 1"]),
    ],
)
def test_each_kind_says_what_it_knows(
    tmp_path: Path, judged: JudgedSamples, right: list[bool | None], items: list[str]
) -> None:
    run = RunFolder(tmp_path)
    write(run, 100, "task", judged)
    found = judgements_of(run, VERSION, "a").judgements
    assert [one.is_right for one in found] == right and [one.item for one in found] == items
    assert all("loss" not in one.figures and one.figures for one in found)


def test_steps_are_in_order_with_what_was_predicted(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for step, said in ((1000, "cat"), (200, "dog")):
        write(run, step, "zero_shot", ZERO_SHOT, said)
    found = judgements_of(run, VERSION, "a").judgements
    assert [(one.step, one.predictions[0].predicted) for one in found] == [(200, "dog"), (1000, "cat")]


def test_a_key_of_another_version_is_another_sample(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    write(run, 100, "zero_shot", ZERO_SHOT, "cat")
    write(run, 100, "command", None)
    other = judgements_of(run, "ba9876543210", "a")
    assert not other.judgements and other.elsewhere == [(100, "zero_shot")]
    assert other.unrecorded == [(100, "command")]
    assert judgements_of(run, VERSION, "z").elsewhere == [(100, "zero_shot")]
