"""Zero-shot classification on embeddings that are made by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tasks.core.errors import DataError, UsageError
from tasks.core.schema import TaskSpec
from tasks.evaluation import evaluators
from tasks.evaluation.contract import Embedded, Embeddings, Members
from tasks.evaluation.kinds.statistics import wilson_interval
from tasks.evaluation.kinds.zero_shot import ClassReader, ZeroShot, class_embeddings, rank_classes
from tasks.evaluation.results import KEPT_PREDICTIONS

NAMES = ("ant", "bee", "cat", "dog", "elk", "fox", "gnu")


@dataclass(frozen=True)
class ByHand:
    """Class n lies along axis n. A sample is (label, class it looks like most, then the next…)."""

    samples: Sequence[tuple[str, Sequence[int]]]
    names: Sequence[str] = NAMES
    field: str = "label"
    batch_size: int = 3

    def held_out(self) -> str:
        return "val"

    def embed_images(self, split: str, extract: Callable[[Members], str]) -> Iterator[Embedded]:
        assert split == "val"
        for start in range(0, len(self.samples), self.batch_size):
            part = self.samples[start : start + self.batch_size]
            rows = np.zeros((len(part), len(self.names)), np.float32)
            for row, (_, ranked) in zip(rows, part, strict=True):
                row[list(ranked)] = np.linspace(1, 0.5, len(ranked))
            members = [{"json": json.dumps({self.field: label}).encode()} for label, _ in part]
            keys = [f"sample_{start + place}" for place in range(len(part))]
            yield Embedded(keys, rows, [extract(sample) for sample in members])

    def embed_texts(self, texts: Sequence[str]) -> Embeddings:
        rows = np.zeros((len(texts), len(self.names)), np.float32)
        for row, text in zip(rows, texts, strict=True):
            row[next(place for place, name in enumerate(self.names) if name in text)] = 1
        return rows


def test_counts_what_is_right() -> None:
    samples = [
        ("ant", [0]),
        ("ant", [1, 0]),
        ("ant", [0]),
        ("ant", [0]),
        ("bee", [2, 3, 4, 5, 6, 1]),
        ("cat", [2]),
    ]
    outcome = ZeroShot(classes=list(NAMES)).evaluate(ByHand(samples))
    assert list(outcome.metrics) == ["top1", "top5", "mean_per_class"]
    assert outcome.metrics["top1"] == pytest.approx(4 / 6)
    assert outcome.metrics["top5"] == pytest.approx(5 / 6)
    assert outcome.metrics["mean_per_class"] == pytest.approx((3 / 4 + 0 + 1) / 3)
    assert outcome.intervals == {"top1": wilson_interval(4, 6), "top5": wilson_interval(5, 6)}
    assert outcome.chance == pytest.approx({"top1": 1 / 7, "top5": 5 / 7, "mean_per_class": 1 / 7})
    assert (outcome.split, outcome.samples) == ("val", 6)
    shown = [(said.key, said.label, said.predicted) for said in outcome.predictions]
    assert shown[:2] == [("sample_0", "ant", "ant"), ("sample_1", "ant", "bee")]


def test_a_model_that_tells_nothing_apart_has_found_nothing() -> None:
    """To give equally near classes to the one that sorts first would be right for most samples here."""
    outcome = ZeroShot().evaluate(ByHand([*[("ant", [])] * 6, *[("bee", [])] * 2, *[("cat", [])] * 2]))
    assert outcome.metrics == {"top1": 0.0, "mean_per_class": 0.0}
    assert [said.predicted != said.label for said in outcome.predictions] == [True] * 10


def test_of_equally_near_classes_the_true_one_comes_last() -> None:
    images = np.array([[1, 1, 0], [1, 1, 0], [0, 0, 1]], np.float32)
    ranked = rank_classes(images, np.eye(3, dtype=np.float32), np.array([0, 1, 0]))
    assert ranked.tolist() == [[1, 0, 2], [0, 1, 2], [2, 1, 0]]


@pytest.mark.parametrize("side", ["images", "texts"])
def test_embeddings_that_are_not_finite_are_an_error(monkeypatch: pytest.MonkeyPatch, side: str) -> None:
    subject = ByHand([("ant", [0]), ("bee", [1])])
    if side == "texts":
        whole = ByHand.embed_texts
        monkeypatch.setattr(ByHand, "embed_texts", lambda self, texts: whole(self, texts) * np.nan)
    else:
        monkeypatch.setattr(np, "linspace", lambda first, last, count: np.full(count, np.inf))
    name = "ant" if side == "texts" else "sample_0"
    with pytest.raises(
        DataError, match=f"2 embeddings not finite, first that of '{name}': the model's weights"
    ):
        ZeroShot().evaluate(subject)


def test_few_classes_have_no_top5() -> None:
    outcome = ZeroShot().evaluate(ByHand([("ant", [0]), ("bee", [1])]))
    assert outcome.metrics == {"top1": 1.0, "mean_per_class": 1.0}
    assert outcome.chance["top1"] == 0.5


def test_only_the_first_predictions_are_kept() -> None:
    outcome = ZeroShot().evaluate(ByHand([("ant", [0]), ("bee", [0])] * 20))
    assert len(outcome.predictions) == KEPT_PREDICTIONS
    assert outcome.metrics["top1"] == 0.5


def test_label_may_be_another_field() -> None:
    assert ZeroShot(label="kind").evaluate(ByHand([("ant", [0]), ("bee", [1])], field="kind")).samples == 2


def test_a_sample_without_label_is_named_with_the_fix() -> None:
    with pytest.raises(DataError, match=r"val: sample 'sample_1' has no label.*'label'.*evaluate\.tasks"):
        ZeroShot().evaluate(ByHand([("ant", [0]), ("", [1]), ("bee", [1])]))


@pytest.mark.parametrize("members", [{}, {"json": b"[1]"}, {"json": b"{}"}, {"json": b'{"label": null}'}])
def test_no_label_is_no_word(members: Members) -> None:
    assert ClassReader("label")(members) == ""


def test_a_label_that_is_no_word_is_taken_as_written() -> None:
    assert ClassReader("label")({"json": b'{"label": 7}'}) == "7"


def test_a_label_beside_the_classes_is_named() -> None:
    with pytest.raises(DataError, match="'sample_1' has the label 'cat', which is none of the 2 classes"):
        ZeroShot(classes=["ant", "bee"]).evaluate(ByHand([("ant", [0]), ("cat", [2])]))


def test_one_class_is_no_choice() -> None:
    with pytest.raises(UsageError, match=r"one class only, 'ant'.*classes"):
        ZeroShot().evaluate(ByHand([("ant", [0]), ("ant", [1])]))


def test_templates_are_averaged_as_unit_vectors() -> None:
    prompts = np.array([[1, 0], [0, 1], [0.6, 0.8], [0.6, 0.8]], np.float32)
    assert class_embeddings(prompts, 2) == pytest.approx(np.array([[0.5**0.5, 0.5**0.5], [0.6, 0.8]]))


@pytest.mark.parametrize(
    ("task", "says"),
    [
        ({"kind": "zero_shoot"}, r"evaluate\.tasks: unknown kind 'zero_shoot'; did you mean zero_shot\?"),
        ({"kind": "zero_shot", "lable": "x"}, r"zero_shot: lable: unknown argument; did you mean label\?"),
        ({"kind": "zero_shot", "templates": ["no place"]}, r"zero_shot: templates\.0: .*not 'no place'"),
        ({"kind": "zero_shot", "classes": ["one"]}, "zero_shot: classes: .*at least 2"),
        (
            {"kind": "zero_shot", "classes": ["a", "b", "a"]},
            "zero_shot: classes: 'a' is listed twice; name",
        ),
    ],
)
def test_wrong_tasks_are_told_with_the_fix(task: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        evaluators.load_evaluator(TaskSpec.model_validate(task))


def test_a_task_of_the_config_becomes_its_evaluator() -> None:
    task = TaskSpec.model_validate({"kind": "zero_shot", "name": "animals", "label": "animal"})
    assert evaluators.load_evaluator(task) == ZeroShot(label="animal")
