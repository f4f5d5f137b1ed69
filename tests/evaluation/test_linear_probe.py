"""Linear probes: their figures are scikit-learn's, and the result says what they were fitted on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import StandardScaler

from tasks.core.errors import DataError
from tasks.core.schema import TaskSpec
from tasks.evaluation import evaluators
from tasks.evaluation.contract import Embedded, Embeddings, Members
from tasks.evaluation.kinds import linear_probe
from tasks.evaluation.kinds.linear_probe import LinearProbe
from tests.evaluation.test_multilabel import LABELS, ByHand

WIDTH = 8
COUNTS = {"train": 400, "val": 200}


@dataclass
class Tower(ByHand):
    """Its embeddings lean along a hidden direction for the first label, weakly for the second, and not at all
    for the third; nothing in them is near a prompt."""

    fixed: tuple[int, ...] = ()
    """Places of labels that every training sample has."""
    unknown: bool = False
    """Whether every third training sample and every fourth held-out one lack the first label."""

    def embed_images(self, split: str, extract: Callable[[Members], str]) -> Iterator[Embedded]:
        truth, embeddings = drawn(split, self.fixed)
        if self.unknown:
            truth[:: {"train": 3, "val": 4}[split], 0] = np.nan
        other = Tower(truth, embeddings, patients=[f"patient_{n // 2}" for n in range(len(truth))])
        for start in range(0, len(truth), 90):
            places = range(start, min(start + 90, len(truth)))
            extracted = [extract(other.members(place)) for place in places]
            yield Embedded(
                [f"{split}_{n}" for n in places], embeddings[places.start : places.stop], extracted
            )

    def embed_texts(self, texts: Any) -> Embeddings:
        raise AssertionError("a probe asks nothing in words")


def drawn(split: str, fixed: tuple[int, ...] = ()) -> tuple[np.ndarray, Embeddings]:
    draws = np.random.default_rng(COUNTS[split])
    truth = (draws.random((COUNTS[split], len(LABELS))) < [0.5, 0.3, 0.5]).astype(float)
    hidden = np.random.default_rng(7).normal(0, 1, (2, WIDTH))
    leaning = (truth[:, :2] - 0.5) @ (hidden * [[2.0], [0.5]])
    rows = leaning + draws.normal(0, 1, (len(truth), WIDTH))
    if split == "train":
        truth[:, list(fixed)] = 1
    return truth, (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def subject(*fixed: int) -> Tower:
    truth, embeddings = drawn("val")
    return Tower(truth, embeddings, fixed=fixed)


def strength_of(note: str) -> float:
    return float(note.rpartition("C = ")[2].split()[0])


def test_it_finds_what_the_embeddings_know() -> None:
    outcome = LinearProbe(resamples=200).evaluate(subject())
    known, weak, unknown = (outcome.metrics[f"auroc_{label}"] for label in LABELS)
    assert known > 0.95 and 0.6 < weak < known and 0.4 < unknown < 0.6
    low, high = outcome.intervals[f"auroc_{LABELS[2]}"]
    assert low < 0.5 < high
    assert outcome.notes[0].startswith("classifiers were fitted on 400 samples of split train with C = ")
    assert outcome.notes[0].endswith("(the best of five)")
    assert (outcome.samples, outcome.split, outcome.chance["auroc_mean"]) == (200, "val", 0.5)
    assert "aurocs.xlsx" in outcome.files


def test_its_figures_are_those_of_a_fit_by_hand() -> None:
    outcome = LinearProbe(resamples=100, samples=300).evaluate(subject())
    (truth, rows), (asked_truth, asked) = drawn("train"), drawn("val")
    scaler = StandardScaler().fit(rows[:300])
    for place, label in enumerate(LABELS):
        layer = LogisticRegression(C=strength_of(outcome.notes[0]), class_weight="balanced", max_iter=1000)
        layer.fit(scaler.transform(rows[:300]), truth[:300, place])
        expected = roc_auc_score(asked_truth[:, place], layer.decision_function(scaler.transform(asked)))
        assert outcome.metrics[f"auroc_{label}"] == pytest.approx(expected, abs=2e-3)


def test_a_probe_is_fitted_where_its_label_is_known() -> None:
    outcome = LinearProbe(resamples=100).evaluate(Tower(*drawn("val"), unknown=True))
    whole = LinearProbe(resamples=100).evaluate(subject())
    assert outcome.metrics[f"auroc_{LABELS[0]}"] > 0.95
    (known, rows), (truth, asked) = drawn("train"), drawn("val")
    fitted_on = np.arange(len(known)) % 3 > 0
    scaler = StandardScaler().fit(rows[fitted_on])
    layer = LogisticRegression(C=strength_of(outcome.notes[0]), class_weight="balanced", max_iter=1000)
    layer.fit(scaler.transform(rows[fitted_on]), known[fitted_on, 0])
    scores = layer.decision_function(scaler.transform(asked))
    judged = np.arange(len(truth)) % 4 > 0
    expected = roc_auc_score(truth[judged, 0], scores[judged])
    assert outcome.metrics[f"auroc_{LABELS[0]}"] == pytest.approx(expected, abs=2e-3)
    assert outcome.samples_by_label == {LABELS[0]: 150, LABELS[1]: 200, LABELS[2]: 200}
    assert strength_of(outcome.notes[0]) == strength_of(whole.notes[0])
    assert outcome.metrics[f"auroc_{LABELS[1]}"] == whole.metrics[f"auroc_{LABELS[1]}"], (
        "others are as before"
    )


def test_a_label_without_two_sides_is_guessed_and_named() -> None:
    outcome = LinearProbe(resamples=100).evaluate(subject(0))
    assert outcome.metrics[f"auroc_{LABELS[0]}"] == 0.5
    assert [note for note in outcome.notes if note.startswith(f"{LABELS[0]}: ")]
    with pytest.raises(DataError, match=r"split train has no label .* give the task more samples"):
        LinearProbe(resamples=100).evaluate(subject(0, 1, 2))


def test_the_strength_that_nothing_chooses_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_probe, "CHOSEN_ON", 10**9)
    outcome = LinearProbe(resamples=100).evaluate(subject())
    assert outcome.notes[0].endswith("with C = 0.01 (too few samples to choose it)")


def test_the_config_takes_it() -> None:
    task = TaskSpec.model_validate({"kind": "linear_probe", "samples": 100, "labels": ["Nodule"]})
    probe = evaluators.load_evaluator(task)
    assert isinstance(probe, LinearProbe) and probe.samples == 100
    with pytest.raises(Exception, match="present"):
        evaluators.load_evaluator(TaskSpec.model_validate({"kind": "linear_probe", "present": "{}"}))
