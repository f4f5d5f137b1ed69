"""Findings told by prompts: the figures are scikit-learn's, the intervals those of resampled patients."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score, precision_score, roc_auc_score

from tasks.core.errors import DataError
from tasks.core.schema import TaskSpec
from tasks.evaluation import evaluators
from tasks.evaluation.contract import Embedded, Embeddings, Members
from tasks.evaluation.kinds.multilabel import CT_RATE, MultiLabel
from tasks.evaluation.kinds.statistics import auroc, percentile_interval, resampled
from tasks.evaluation.paired import PairedDifference, paired_differences
from tasks.evaluation.samples import read_samples

LABELS = ("Nodule", "Cardiomegaly", "Emphysema")


@dataclass
class ByHand:
    """A volume's embedding leans by `leaning[sample][label]` from "not present" to "present"."""

    truth: np.ndarray
    leaning: np.ndarray
    labels: Sequence[str] = LABELS
    patients: Sequence[str] | None = None
    scale: float = 4.0
    asked: list[Sequence[str]] = field(default_factory=list)

    def held_out(self) -> str:
        return "val"

    def logit_scale(self) -> float:
        return self.scale

    def members(self, place: int) -> Members:
        cells = [None if np.isnan(value) else int(value) for value in self.truth[place]]
        facts: dict[str, Any] = {"labels": dict(zip(self.labels, cells, strict=True))}
        facts["volume_name"] = f"scan_{place}.nii.gz"
        if self.patients is not None:
            facts["patient"] = self.patients[place]
        return {"json": json.dumps(facts, sort_keys=True).encode()}

    def embed_images(self, split: str, extract: Callable[[Members], str]) -> Iterator[Embedded]:
        for start in range(0, len(self.truth), 7):
            places = range(start, min(start + 7, len(self.truth)))
            rows = np.concatenate([self.leaning[places.start : places.stop], np.ones((len(places), 1))], 1)
            keys = [f"key_{place}" for place in places]
            extracted = [extract(self.members(place)) for place in places]
            yield Embedded(keys, rows.astype(np.float32), extracted)

    def embed_texts(self, texts: Sequence[str]) -> Embeddings:
        self.asked.append(texts)
        rows = np.zeros((len(texts), len(self.labels) + 1), np.float32)
        for row, text in zip(rows, texts, strict=True):
            axis = next(place for place, label in enumerate(self.labels) if label in text)
            row[axis] = -1 if "not" in text else 1
        return rows


def subject(samples: int = 60, **others: Any) -> ByHand:
    draws = np.random.default_rng(3)
    truth = (draws.random((samples, len(LABELS))) < [0.3, 0.5, 0.2]).astype(float)
    leaning = 0.4 * (truth - 0.5) + draws.normal(0, 0.4, truth.shape)
    return ByHand(
        truth, leaning.astype(np.float32).round(1).astype(float), **others
    )  # rounded: some are equal


def partial(samples: int = 60, **others: Any) -> ByHand:
    """Some labels are unknown, and of the first two samples all are."""
    judged = subject(samples, **others)
    unknown = np.random.default_rng(5).random(judged.truth.shape) < [0.1, 0.3, 0.0]
    unknown[:2] = True
    judged.truth[unknown] = np.nan
    return judged


def threshold_of(scores: np.ndarray, truth: np.ndarray) -> float:
    """CT-CLIP's rule, by scikit-learn's confusion matrix."""
    best, chosen = 10000.0, 0.0
    for threshold in np.linspace(0, 1, 100):
        (tn, fp), (fn, tp) = confusion_matrix(truth, scores > threshold, labels=[0, 1])
        far = np.sqrt((1 - tp / (tp + fn)) ** 2 + (fp / (fp + tn)) ** 2)
        if far <= best:
            best, chosen = far, threshold
    return chosen


def test_figures_are_those_of_scikit_learn() -> None:
    judged = subject()
    outcome = MultiLabel(resamples=100).evaluate(judged)
    leaning = judged.leaning.astype(np.float32).astype(np.float64)
    scores = 1 / (1 + np.exp(-2 * judged.scale * leaning))
    expected: dict[str, list[float]] = {}
    for place, label in enumerate(LABELS):
        truth, score = judged.truth[:, place], scores[:, place]
        said = score > threshold_of(score, truth)
        figures = {
            "auroc": roc_auc_score(truth, score),
            "f1": f1_score(truth, said, average="weighted"),
            "accuracy": accuracy_score(truth, said),
            "precision": precision_score(truth, said),
        }
        for metric, value in figures.items():
            assert outcome.metrics[f"{metric}_{label}"] == pytest.approx(value, abs=1e-9), (metric, label)
            expected.setdefault(metric, []).append(value)
    for metric, values in expected.items():
        assert outcome.metrics[f"{metric}_mean"] == pytest.approx(np.mean(values), abs=1e-9)
    assert next(iter(outcome.metrics)) == "auroc_mean" and outcome.chance["auroc_mean"] == 0.5
    assert (outcome.samples, outcome.split, list(outcome.notes)) == (60, "val", [])
    assert len(judged.asked) == 1 and len(judged.asked[0]) == 6, "each prompt is embedded once"
    assert judged.asked[0][:2] == ["Cardiomegaly is present.", "Cardiomegaly is not present."]


def test_each_label_is_judged_on_the_samples_in_which_it_is_known() -> None:
    judged = partial()
    outcome = MultiLabel(resamples=100).evaluate(judged)
    leaning = judged.leaning.astype(np.float32).astype(np.float64)
    scores, means = 1 / (1 + np.exp(-2 * judged.scale * leaning)), []
    for place, label in enumerate(LABELS):
        known = np.isfinite(judged.truth[:, place])
        truth, score = judged.truth[known, place], scores[known, place]
        said = score > threshold_of(score, truth)
        means.append(roc_auc_score(truth, score))
        assert outcome.metrics[f"auroc_{label}"] == pytest.approx(means[-1], abs=1e-9)
        assert outcome.metrics[f"f1_{label}"] == pytest.approx(f1_score(truth, said, average="weighted"))
        assert outcome.metrics[f"accuracy_{label}"] == pytest.approx(accuracy_score(truth, said))
        assert outcome.metrics[f"precision_{label}"] == pytest.approx(precision_score(truth, said))
        assert outcome.samples_by_label[label] == known.sum()
    assert outcome.metrics["auroc_mean"] == pytest.approx(np.mean(means), abs=1e-9)
    assert outcome.samples == 58 and outcome.samples_by_label["Emphysema"] == 58
    lacking = int(np.isnan(judged.truth[2:]).any(axis=1).sum())
    assert outcome.notes == [
        "2 of 60 samples of split val have no known label and counted in nothing",
        f"{lacking} of 58 samples of split val lack some of the labels: a label's figures are those of the "
        "samples in which it is known",
    ]
    shown = {(one.key, one.question) for one in outcome.predictions}
    assert ("key_0", "Nodule") not in shown and ("key_2", "Emphysema") in shown
    assert len(shown) == np.isfinite(judged.truth[2:26]).sum()
    with np.load(io.BytesIO(outcome.files["labels_weights.npz"])) as saved:
        assert np.isnan(saved["data"]).sum() == np.isnan(judged.truth[2:]).sum()


def test_an_interval_is_as_wide_as_that_of_the_known_samples_alone() -> None:
    judged = partial(400)
    intervals = MultiLabel().evaluate(judged).intervals
    for place, label in enumerate(LABELS):
        known = np.isfinite(judged.truth[:, place])
        alone = ByHand(judged.truth[known][:, [place]], judged.leaning[known][:, [place]], [label])
        expected = MultiLabel().evaluate(alone).intervals[f"auroc_{label}"]
        assert intervals[f"auroc_{label}"] == pytest.approx(expected, abs=0.015)


def test_what_is_unknown_is_kept_apart_in_the_file_of_samples(tmp_path: Path) -> None:
    """A comparison pairs two checkpoints on the known samples of each label."""
    judged, better = partial(), partial()
    better.leaning = np.where(np.isnan(better.truth), better.leaning, better.leaning + better.truth)
    kept = []
    for number, one in enumerate((judged, better)):
        outcome = MultiLabel(resamples=100).evaluate(one)
        assert outcome.by_sample is not None
        (tmp_path / f"{number}.parquet").write_bytes(outcome.by_sample.to_bytes())
        found = read_samples(tmp_path / f"{number}.parquet")
        assert found is not None and len(found.keys) == 58
        again = found.figures(np.ones((1, 58)))
        assert {name: values[0] for name, values in again.items()} == pytest.approx(dict(outcome.metrics))
        kept.append(found)
    pairs = paired_differences(*kept, kept[0].formulas)
    for place, label in enumerate(LABELS):
        pair = pairs[f"auroc_{label}"]
        assert isinstance(pair, PairedDifference) and pair.is_shown
        assert pair.units == np.isfinite(judged.truth[:, place]).sum()
    nulls = pq.read_table(tmp_path / "0.parquet")["score_Cardiomegaly"].null_count
    assert nulls == np.isnan(judged.truth[2:, 1]).sum() > 0


def test_a_label_that_is_known_in_one_class_or_never_is_named() -> None:
    judged = partial()
    judged.truth[:, 1] = np.where(judged.truth[:, 1] == 1, np.nan, judged.truth[:, 1])
    judged.truth[:, 0] = np.nan
    outcome = MultiLabel(resamples=100).evaluate(judged)
    assert outcome.notes[-2:] == [
        "Cardiomegaly: no sample of split val in which it is known has it, so it has no figures and counts in "
        "no mean",
        "Nodule: it is known in no sample of split val, so it has no figures and counts in no mean",
    ]
    assert outcome.samples_by_label["Nodule"] == 0 and "auroc_Nodule" not in outcome.metrics
    judged.truth[:] = np.nan
    with pytest.raises(DataError, match="split val has no label that some of its 60 samples have"):
        MultiLabel().evaluate(judged)


def test_weighted_auroc_is_scikit_learns_of_repeated_samples() -> None:
    draws = np.random.default_rng(0)
    truth, scores = draws.integers(0, 2, 40).astype(float), draws.random(40).round(1)
    for weights in resampled(range(40), 20):
        for row, found in zip(weights, auroc(truth, scores, weights), strict=True):
            drawn = np.repeat(np.arange(40), row.astype(int))
            assert len(drawn) == 40
            assert found == pytest.approx(roc_auc_score(truth[drawn], scores[drawn]), abs=1e-12)
    assert (
        np.isnan(auroc(truth, scores, truth[None])).all() and percentile_interval(np.array([np.nan])) is None
    )


def test_intervals_come_from_samples_that_were_drawn_anew() -> None:
    """Of some width, around the figure, narrower for more samples, the same each time."""
    few, many = (MultiLabel().evaluate(subject(samples)) for samples in (40, 600))
    for outcome in (few, many):
        for name, value in outcome.metrics.items():
            low, high = outcome.intervals[name]
            assert low < value < high or (low <= value <= high and name.startswith("precision")), name
    widths = [float(np.diff(one.intervals["auroc_mean"])[0]) for one in (few, many)]
    assert 0.5 > widths[0] > 2 * widths[1] > 0
    assert MultiLabel().evaluate(subject(40)).intervals == few.intervals


def test_scans_of_a_patient_are_drawn_together() -> None:
    """Ten copies of each scan say no more than one of each."""
    once = subject(40)
    copies = ByHand(np.tile(once.truth, (10, 1)), np.tile(once.leaning, (10, 1)))
    copies.patients = [f"p{place % 40}" for place in range(400)]
    alone, grouped = (MultiLabel().evaluate(one).intervals["auroc_mean"] for one in (once, copies))
    copies.patients = None
    blind = MultiLabel().evaluate(copies).intervals["auroc_mean"]
    assert np.diff(grouped) == pytest.approx(np.diff(alone), rel=0.2)
    assert np.diff(blind) < 0.5 * np.diff(grouped)
    for weights in resampled(["a", "a", "b"], 50):
        assert (weights[:, 0] == weights[:, 1]).all() and (weights[:, 0] + weights[:, 2] == 2).all()


def test_a_label_of_one_class_is_named_and_has_no_figure() -> None:
    judged = subject()
    judged.truth[:, 1] = 0
    outcome = MultiLabel(resamples=100).evaluate(judged)
    assert outcome.notes == [
        "Cardiomegaly: no sample of split val has it, so it has no figures and counts in no mean"
    ]
    assert not any("Cardiomegaly" in name for name in outcome.metrics)
    assert all(np.isfinite(value) for value in outcome.metrics.values())
    judged.truth[:] = 1
    with pytest.raises(DataError, match="split val has no label that some of its 60 samples have"):
        MultiLabel().evaluate(judged)


def test_arguments_change_the_outcome() -> None:
    judged = subject()
    task = TaskSpec(kind="multilabel", labels=["Nodule"], present="There is {}.", absent="There is not {}.")
    outcome = evaluators.load_evaluator(task).evaluate(judged)
    assert judged.asked == [["There is Nodule.", "There is not Nodule."]]
    assert [name for name in outcome.metrics if name.startswith("auroc")] == ["auroc_mean", "auroc_Nodule"]
    judged.patients = ["one"] * 30 + ["two"] * 30
    wide, narrow = (
        MultiLabel(group=group, resamples=200).evaluate(judged).intervals for group in ("patient", "nobody")
    )
    assert wide != narrow and narrow != MultiLabel(group="nobody").evaluate(judged).intervals


def test_files_are_ct_clips_in_its_order_of_labels() -> None:
    labels = ("Zebra", "Lung nodule", "Atelectasis")
    judged = subject(labels=labels)
    judged.truth[:, 0] = 0
    outcome = MultiLabel(resamples=100).evaluate(judged)
    files = outcome.files
    assert set(files) == {"labels_weights.npz", "predicted_weights.npz", "accessions.txt", "aurocs.xlsx"}
    arrays = {
        name: np.load(io.BytesIO(files[f"{name}_weights.npz"]))["data"] for name in ("labels", "predicted")
    }
    np.testing.assert_array_equal(arrays["labels"], judged.truth[:, ::-1])
    assert (
        roc_auc_score(arrays["labels"][:, 0], arrays["predicted"][:, 0])
        == outcome.metrics["auroc_Atelectasis"]
    )
    assert files["accessions.txt"].decode().splitlines()[:2] == ["scan_0.nii.gz", "scan_1.nii.gz"]
    with zipfile.ZipFile(io.BytesIO(files["aurocs.xlsx"])) as archive:
        sheet = ElementTree.fromstring(archive.read("xl/worksheets/sheet1.xml"))
    cells = ["".join(cell.itertext()) for cell in sheet.iter() if cell.tag.endswith("}c")]
    assert cells[:3] == ["Atelectasis_auc", "Lung nodule_auc", "Zebra_auc"] and cells[5] == ""
    assert [float(cell) for cell in cells[3:5]] == [
        outcome.metrics[f"auroc_{label}"] for label in ("Atelectasis", "Lung nodule")
    ]
    assert len(CT_RATE) == len(set(CT_RATE)) == 18


def test_what_is_said_of_the_first_scans_is_kept_with_its_score() -> None:
    judged = subject()
    outcome = MultiLabel(resamples=100).evaluate(judged)
    first = [one for one in outcome.predictions if one.key == "key_0"]
    assert [one.question for one in first] == ["Cardiomegaly", "Emphysema", "Nodule"]
    truth = dict(zip(LABELS, judged.truth[0], strict=True))
    assert all(one.label == ("present" if truth[one.question] else "not present") for one in first)
    assert {one.predicted for one in outcome.predictions} == {"present", "not present"}
    assert all(one.score is not None and 0 < one.score < 1 for one in first)


def test_a_sample_without_a_label_is_named() -> None:
    judged = subject()
    judged.truth[9, 2] = -1
    with pytest.raises(
        DataError,
        match=r"val: sample 'key_9' has 'Emphysema': -1 .* dataset\.source\.labels.*with its missing: skip",
    ):
        MultiLabel().evaluate(judged)
    with pytest.raises(DataError, match="val: sample 'key_0' has 'Nodul': nothing in its json"):
        MultiLabel(labels=["Nodul"]).evaluate(subject())


def test_samples_that_cannot_be_judged_show_before_the_training() -> None:
    judged = subject()
    assert MultiLabel().problem("val", iter([judged.members(0)])) == ""
    assert "have no labels" in MultiLabel().problem("val", iter([{"txt": b"clear"}]))
    asked = MultiLabel(labels=["Nodule", "Nodul"]).problem("val", iter([judged.members(0)]))
    assert "have no 'Nodul'; there are: Cardiomegaly, Emphysema, Nodule" in asked
