"""What a report shows of CT models: slices with the findings that are told, and every label's figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.dataset.building.builder import build
from tasks.dataset.examples.phantoms import phantoms
from tasks.evaluation.results import EvaluationResult, Prediction
from tasks.loader.indexed import IndexedReader
from tasks.reporting.gallery import read_items
from tasks.reporting.scores import headline_of, task_views
from tests.dataset.examples.test_phantoms import config


@pytest.fixture(scope="module")
def version(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("findings")
    (folder / "raw").mkdir()
    phantoms(folder / "raw", 4)
    return build(config(folder / "raw", folder / "data", "engine.build.workers=1")).version


def prediction(key: str, is_right: bool) -> list[Prediction]:
    said = "present" if is_right else "not present"
    return [Prediction(key=key, question="Lung nodule", label="present", predicted=said, score=0.62)]


def test_a_scan_is_shown_by_three_slices_with_what_is_told_of_it(version: Path) -> None:
    keys = [IndexedReader(version, "train").read(row).key for row in range(2)]
    right, wrong, *others = read_items(
        version, "train", {keys[0]: prediction(keys[0], True), keys[1]: prediction(keys[1], False)}
    )
    for item in (right, wrong):
        pictures = [item.image, *item.others]
        assert len(set(pictures)) == 3 and all(str(uri).startswith("data:image/jpeg") for uri in pictures)
        assert "Pleural effusion is" in item.caption and not item.is_conversation
    assert (right.right, wrong.right) == (True, False) and others[0].right is None


def test_a_damaged_scan_is_shown_without_slices(version: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = IndexedReader.read

    def torn(self: IndexedReader, number: int) -> object:
        sample = whole(self, number)
        sample.members["volume.b2nd"] = sample.members["volume.b2nd"][:-20]
        return sample

    monkeypatch.setattr(IndexedReader, "read", torn)
    item = read_items(version, "train", {})[0]
    assert item.image is None and "volume cannot be decoded" in item.caption


def result(step: int, nodule: float) -> EvaluationResult:
    return EvaluationResult(
        task="multilabel",
        step=step,
        checkpoint="c",
        metrics={"auroc_mean": nodule, "auroc_Lung nodule": nodule, "f1_mean": 0.5, "f1_Lung nodule": 0.5},
        intervals={"auroc_mean": (0.5, 0.9), "auroc_Lung nodule": (0.4, 0.8)},
        chance={"auroc_mean": 0.5},
        split="val",
        samples=20,
        samples_by_label={"Cardiomegaly": 20, "Lung nodule": 14},
        notes=["Cardiomegaly: no sample has it"],
        seconds=1,
        versions={},
    )


def test_a_table_of_many_metrics_takes_the_whole_width() -> None:
    many = result(1, 0.7).model_copy(update={"task": "other", "metrics": dict.fromkeys("abcd", 0.5)})
    assert [view.is_wide for view in task_views([result(1, 0.7), many])] == [False, True]


def test_labels_have_a_table_of_their_own() -> None:
    [view] = task_views([result(1, 0.7), result(2, 0.6)], best_step=1)
    assert [name for name, _ in view.metrics] == ["auroc_mean", "f1_mean"]
    assert view.labels is not None and view.labels.step == 1
    [(label, cells)] = view.labels.rows
    assert (label, cells[0], cells[3]) == ("Lung nodule", (0.7, (0.4, 0.8)), (None, (None, None)))
    assert view.labels.samples["Lung nodule"] == 14
    assert view.labels.notes == ["Cardiomegaly: no sample has it"]
    assert task_views([result(1, 0.7), result(2, 0.6)])[0].labels.step == 2  # type: ignore[union-attr]
    headline = headline_of([result(1, 0.7)], None, 1)
    assert (
        str(headline)
        == "Findings: Mean AUROC 0.700 (0.500 to 0.900 at 95 %; 20 held-out samples; chance 0.50)"
    )
