"""What each sample contributed is what the metrics are made of, for every evaluator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tasks.evaluation import results
from tasks.evaluation.contract import EvaluationOutcome
from tasks.evaluation.evaluators import EVALUATORS
from tasks.evaluation.kinds import lmms_eval
from tasks.evaluation.kinds.linear_probe import LinearProbe
from tasks.evaluation.kinds.multilabel import MultiLabel
from tasks.evaluation.kinds.retrieval import Retrieval
from tasks.evaluation.kinds.validation_loss import ValidationLoss
from tasks.evaluation.kinds.vlm import Vlm
from tasks.evaluation.kinds.zero_shot import ZeroShot
from tasks.evaluation.results import EvaluationResult
from tasks.evaluation.samples import Formula, JudgedSamples, read_samples
from tasks.runs.folder import RunFolder
from tests.evaluation import test_linear_probe, test_multilabel, test_retrieval, test_vlm, test_zero_shot


def retrieved() -> EvaluationOutcome:
    rng = np.random.default_rng(0)
    images = rng.normal(size=(60, 4))
    texts = images + rng.normal(size=images.shape)
    places = {f"image {n}": row for n, row in enumerate(images)} | {
        f"text {n // 2}": row for n, row in enumerate(texts)
    }
    pairs = [(f"image {n}", f"text {n // 2}") for n in range(60)]
    return Retrieval().evaluate(test_retrieval.ByHand(pairs, places))


def classified() -> EvaluationOutcome:
    names = test_zero_shot.NAMES
    draws = np.random.default_rng(1)
    seen = [(names[n % 5], draws.permutation(7)[: draws.integers(1, 7)].tolist()) for n in range(50)]
    return ZeroShot(classes=list(names)).evaluate(test_zero_shot.ByHand(seen))


def benchmarked() -> EvaluationOutcome:
    figures = {"metrics": {"a_score": 0.25, "a_other": 2.0}, "samples": 4}
    log = {"documents": list("wxyz"), "hashes": list("1234"), "columns": {"a_score": [0.0, 1.0, 0.0, 0.0]}}
    return EvaluationOutcome(figures["metrics"], "", 4, by_sample=lmms_eval.judged_documents([log]))  # type: ignore[arg-type]


EVALUATED: dict[str, Callable[[], EvaluationOutcome]] = {
    "zero_shot": classified,
    "retrieval": retrieved,
    "multilabel": lambda: MultiLabel(resamples=100).evaluate(
        test_multilabel.subject(patients=[f"p{n // 2}" for n in range(60)])
    ),
    "linear_probe": lambda: LinearProbe(resamples=100).evaluate(test_linear_probe.subject()),
    "validation_loss": lambda: ValidationLoss().evaluate(test_vlm.Said()),
    "vlm": lambda: Vlm().evaluate(test_vlm.Said()),
    "lmms_eval": benchmarked,
}
UNKNOWN = {"a_other"}
"""A metric of another program that is no mean over its documents."""


def test_every_evaluator_is_here_but_the_one_that_knows_no_samples() -> None:
    assert EVALUATED.keys() == EVALUATORS.keys() - {"command"}


@pytest.mark.parametrize("kind", EVALUATED)
def test_a_metric_is_what_its_samples_give(kind: str, tmp_path: Path) -> None:
    outcome = EVALUATED[kind]()
    assert outcome.by_sample is not None
    content = outcome.by_sample.to_bytes()
    assert content == EVALUATED[kind]().by_sample.to_bytes(), "the same each time"  # type: ignore[union-attr]
    path = tmp_path / "a.samples.parquet"
    path.write_bytes(content)
    judged = read_samples(path)
    assert judged is not None and judged.formulas.keys() == outcome.metrics.keys() - UNKNOWN
    found = judged.figures(np.ones((1, len(judged.keys))))
    for name in judged.formulas:
        assert found[name][0] == pytest.approx(outcome.metrics[name], abs=1e-12), name
    table = pd.read_parquet(path)  # as anybody reads it
    assert not table.duplicated(["key", "item"]).any()
    for name, formula in judged.formulas.items():
        if formula == Formula("mean", [name]):
            assert table[name].mean() == pytest.approx(outcome.metrics[name], abs=1e-12)


def test_groups_are_those_of_the_intervals() -> None:
    judged = EVALUATED["multilabel"]().by_sample
    assert judged is not None and judged.together[:4] == ["p0", "p0", "p1", "p1"]
    assert judged.summarise(100)[1] == EVALUATED["multilabel"]().intervals
    asked = EVALUATED["vlm"]().by_sample
    assert asked is not None and asked.together == ["a", "a", "b", "c", "batch 0", "batch 1"]
    assert list(asked.items[:2]) == ["question 0", "question 1"]


def test_figures_of_drawn_samples_are_those_of_their_repetition() -> None:
    """Whatever the formula: a sample that counts twice is a sample that is there twice."""
    draws = np.random.default_rng(5)
    for kind in ("zero_shot", "retrieval", "multilabel"):
        judged = EVALUATED[kind]().by_sample
        assert judged is not None
        rows = len(judged.keys)
        for _ in range(5):
            weights = draws.multinomial(rows, np.full(rows, 1 / rows)).astype(float)
            drawn = np.repeat(np.arange(rows), weights.astype(int))
            columns = {name: column[drawn] for name, column in judged.columns.items()}
            repeated = JudgedSamples([judged.keys[n] for n in drawn], columns, judged.formulas)
            ours, theirs = judged.figures(weights[None]), repeated.figures(np.ones((1, rows)))
            for name, formula in judged.formulas.items():
                if formula.kind not in ("f1", "precision", "average"):  # whose threshold is all samples'
                    assert ours[name][0] == pytest.approx(theirs[name][0], abs=1e-12), name
        ranks = judged.columns.get("image_to_text_rank")
        if ranks is not None:
            known = ranks[np.isfinite(ranks)]
            once = judged.figures(np.ones((1, rows)), ["image_to_text_median_rank"])
            assert once["image_to_text_median_rank"][0] == np.floor(np.median(known))


def test_the_file_is_there_before_the_result_and_goes_with_the_next(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    judged = EVALUATED["zero_shot"]().by_sample
    assert judged is not None
    result = EvaluationResult(
        task="a", step=1, checkpoint="", metrics={"top1": 0.5}, samples=1, seconds=0.1, versions={}
    )
    run.evaluation(1, "a").mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        results.write_result(run, result, [], by_sample=judged.to_bytes())
    assert read_samples(run.judged_samples(1, "a")) is not None, "it was written before the result failed"
    run.evaluation(1, "a").rmdir()
    results.write_result(run, result, [], by_sample=judged.to_bytes())
    assert results.files_of(run) == [run.evaluation(1, "a")], "no reader of results takes it for one"
    results.write_result(run, result, [])
    assert not run.judged_samples(1, "a").exists(), "what another evaluation left is not this one's"


def test_a_missing_or_damaged_file_holds_nothing(tmp_path: Path) -> None:
    assert read_samples(tmp_path / "none.parquet") is None
    judged = EVALUATED["zero_shot"]().by_sample
    assert judged is not None
    content = judged.to_bytes()
    for broken in (b"", content[:-9], content[: len(content) // 2], b"PAR1" + content[50:]):
        (tmp_path / "torn.parquet").write_bytes(broken)
        assert read_samples(tmp_path / "torn.parquet") is None
