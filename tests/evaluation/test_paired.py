"""Paired differences: beside scipy's bootstrap and McNemar's test, and what they say in known cases."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from tasks.evaluation.kinds.statistics import wilson_interval
from tasks.evaluation.paired import PairedDifference, paired_differences
from tasks.evaluation.samples import Formula, JudgedSamples


def right_or_wrong(values: np.ndarray, groups: list[str] | None = None) -> JudgedSamples:
    keys = [f"sample {n}" for n in range(len(values))]
    return JudgedSamples(
        keys, {"top1": values}, {"top1": Formula("mean", ["top1"])}, groups=groups or (), data="v val"
    )


def judged(seed: int, samples: int = 400) -> tuple[JudgedSamples, JudgedSamples]:
    """Two models of 80 and 85 %, which find the same samples hard."""
    draws = np.random.default_rng(seed)
    hardness = draws.normal(size=samples)
    each = [(hardness + 0.3 * draws.normal(size=samples) < limit).astype(float) for limit in (0.85, 1.05)]
    return right_or_wrong(each[0]), right_or_wrong(each[1])


def difference(one: JudgedSamples, two: JudgedSamples, metric: str = "top1") -> PairedDifference:
    found = paired_differences(one, two, [metric])[metric]
    assert isinstance(found, PairedDifference), found
    return found


def test_it_is_the_interval_of_scipys_paired_bootstrap() -> None:
    one, two = judged(0)
    ours = difference(one, two)
    theirs = stats.bootstrap(
        (one.columns["top1"], two.columns["top1"]),
        lambda a, b, axis: b.mean(axis) - a.mean(axis),
        paired=True,
        method="percentile",
        n_resamples=20_000,
        rng=np.random.default_rng(1),
    ).confidence_interval
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.004)
    assert ours.value == pytest.approx(two.columns["top1"].mean() - one.columns["top1"].mean())
    assert ours.low < ours.value < ours.high and ours.units == 400
    assert difference(one, two) == ours, "the same each time"
    back = difference(two, one)
    assert (back.value, back.low, back.high) == pytest.approx((-ours.value, -ours.high, -ours.low))


def test_ranking_is_computed_anew_in_each_draw_as_scipy_does() -> None:
    draws = np.random.default_rng(3)
    truth = (draws.random(150) < 0.4).astype(float)
    scores = [truth + draws.normal(0, width, 150) for width in (1.4, 0.9)]
    formulas = {"auroc": Formula("auroc", ["score", "truth"])}
    keys = [str(n) for n in range(150)]
    one, two = (JudgedSamples(keys, {"score": each, "truth": truth}, formulas) for each in scores)
    ours = difference(one, two, "auroc")
    theirs = stats.bootstrap(
        (truth, *scores),
        lambda t, a, b: roc_auc_score(t, b) - roc_auc_score(t, a),
        paired=True,
        vectorized=False,
        method="percentile",
        n_resamples=500,
        rng=np.random.default_rng(1),
    ).confidence_interval
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.025)
    assert ours.value == pytest.approx(roc_auc_score(truth, scores[1]) - roc_auc_score(truth, scores[0]))


def test_its_verdict_is_mcnemars_but_for_borderline_cases() -> None:
    """The exact test asks whether among the samples that one alone gets right both are as frequent."""
    agree, shown = 0, 0
    for seed in range(40):
        one, two = judged(seed, samples=250)
        lost, won = (int(((a == 1) & (b == 0)).sum()) for a, b in (
            (one.columns["top1"], two.columns["top1"]), (two.columns["top1"], one.columns["top1"])
        ))  # fmt: skip
        p = stats.binomtest(won, won + lost).pvalue
        is_shown = difference(one, two).is_shown
        agree += is_shown == (p < 0.05) or 0.02 < p < 0.12
        shown += is_shown
    assert agree == 40 and shown > 0


def test_pairs_show_what_two_intervals_hide() -> None:
    """One answers ten more samples than the other, and one that the other does is lost."""
    first, second = (np.arange(200) < 150).astype(float), (np.arange(200) < 160).astype(float)
    second[0] = 0
    (_, high), (low, _) = (wilson_interval(int(each.sum()), 200) for each in (first, second))
    assert low < high, "apart, the intervals overlap"
    assert difference(right_or_wrong(first), right_or_wrong(second)).low > 0


def test_no_difference_is_shown_where_there_is_none() -> None:
    """In 95 % of repetitions, which is what the interval promises."""
    shown = 0
    for seed in range(50):
        draws = np.random.default_rng(seed)
        hardness = draws.normal(size=300)
        each = [(hardness + 0.5 * draws.normal(size=300) < 0.9).astype(float) for _ in range(2)]
        shown += difference(right_or_wrong(each[0]), right_or_wrong(each[1])).is_shown
    assert shown <= 7, "more than 5 % by more than chance"
    same = difference(right_or_wrong(each[0]), right_or_wrong(each[0]))
    assert (same.value, same.low, same.high, same.is_shown) == (0, 0, 0, False)


def test_groups_are_drawn_whole() -> None:
    """Ten copies of each sample say no more than one."""
    one, two = judged(2, samples=60)
    groups = [f"patient {n % 60}" for n in range(600)]
    copies = [right_or_wrong(np.tile(each.columns["top1"], 10), groups) for each in (one, two)]
    alone, grouped = difference(one, two), difference(*copies)
    assert (grouped.low, grouped.high) == pytest.approx((alone.low, alone.high), abs=0.01)
    assert grouped.units == 60
    blind = difference(*(replace(each, groups=()) for each in copies))
    assert blind.high - blind.low < 0.5 * (grouped.high - grouped.low)


def test_only_the_same_samples_of_the_same_data_are_paired() -> None:
    one, two = judged(0, samples=20)
    reasons = {
        "the data differ (v val, w val)": replace(two, data="w val"),
        "the samples differ (20 and 20, 19 of them in both)": replace(two, keys=["another", *two.keys[1:]]),
        "the samples differ (20 and 19, 19 of them in both)": two.only(np.arange(20) > 0),
        "it is computed otherwise": replace(two, formulas={"top1": Formula("median_rank", ["top1"])}),
        "what each sample contributes to it is not known": replace(two, formulas={}),
    }
    for reason, other in reasons.items():
        assert paired_differences(one, other, ["top1"]) == {"top1": reason}
    few = [each.only(np.arange(20) < 9) for each in (one, two)]
    assert paired_differences(*few, ["top1"]) == {"top1": "9 groups of samples are too few for an interval"}


@pytest.mark.proof
def test_a_large_split_takes_seconds() -> None:
    """Fifty thousand samples of a thousand classes, as ImageNet has."""
    draws = np.random.default_rng(0)
    formulas = {"top1": Formula("mean", ["top1"]), "per_class": Formula("mean_by_class", ["top1", "class"])}
    classes = draws.integers(0, 1000, 50_000).astype(float)
    keys = [str(n) for n in range(50_000)]
    each = [
        JudgedSamples(
            keys, {"top1": (draws.random(50_000) < share).astype(float), "class": classes}, formulas
        )
        for share in (0.70, 0.71)
    ]
    began = time.process_time()
    found = paired_differences(each[0], each[1], formulas)
    assert time.process_time() - began < 60
    assert all(isinstance(one, PairedDifference) and one.is_shown for one in found.values())
