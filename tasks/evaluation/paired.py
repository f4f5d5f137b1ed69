"""The difference between two evaluations of the same samples, and its uncertainty.

Both checkpoints find the same samples hard, so their figures vary together: the difference is far more
certain than the two intervals suggest, and only a bootstrap of both at once shows that. Each round draws
samples, or groups of them, with replacement, computes the metric of both evaluations over what it drew, and
takes the difference; the interval is the central 95 % of the rounds. Metrics of ranking are computed anew in
every round. The interval covers the choice of the samples alone, not that of a seed.

Source: B. Efron, R. Tibshirani, "An introduction to the bootstrap" (1993), chapters 13.3 (percentile
interval) and 8 (a pair as the unit that is drawn); P. Koehn, "Statistical significance tests for machine
translation evaluation" (2004), for metrics that are no means.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tasks.evaluation.kinds.statistics import percentile_interval, resampled
from tasks.evaluation.samples import JudgedSamples

ROUNDS = 2000
LEAST_UNITS = 10
"""With fewer things to draw, a percentile interval is much too narrow."""


@dataclass(frozen=True)
class PairedDifference:
    """The metric of the other evaluation minus that of the reference, and its 95 % interval; `units` is the
    number of samples or groups that were drawn from."""

    value: float
    low: float
    high: float
    units: int

    @property
    def is_shown(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0


def paired_differences(
    reference: JudgedSamples, other: JudgedSamples, metrics: Iterable[str], rounds: int = ROUNDS
) -> dict[str, PairedDifference | str]:
    """Return the difference by metric, or the reason why the two cannot be paired."""
    found: dict[str, PairedDifference | str] = {}
    alike: dict[bytes, list[str]] = {}
    for name in metrics:
        reason = why_unpaired(reference, other, name)
        if reason:
            found[name] = reason
        else:  # metrics of the same rows share their draws, which makes them cheap
            alike.setdefault(reference.rows_of(name).tobytes() + other.rows_of(name).tobytes(), []).append(
                name
            )
    for names in alike.values():
        one, two = (judged.only(judged.rows_of(names[0])) for judged in (reference, other))
        found |= _differences(one, two, names, rounds)
    return found


def why_unpaired(reference: JudgedSamples, other: JudgedSamples, metric: str) -> str:
    """Return why the figures of a metric cannot be compared sample by sample; empty where they can."""
    if metric not in reference.formulas or metric not in other.formulas:
        return "what each sample contributes to it is not known"
    if reference.data != other.data:
        return f"the data differ ({reference.data or 'unknown'}, {other.data or 'unknown'})"
    if reference.formulas[metric] != other.formulas[metric]:
        return "it is computed otherwise"
    mine, its = reference.names_of(metric), other.names_of(metric)
    if mine != its:
        common = len({*mine} & {*its})
        return f"the samples differ ({len(mine):,} and {len(its):,}, {common:,} of them in both)"
    units = len({group for _, _, group in mine})
    return f"{units:,} groups of samples are too few for an interval" if units < LEAST_UNITS else ""


def _differences(
    one: JudgedSamples, two: JudgedSamples, names: Sequence[str], rounds: int
) -> Mapping[str, PairedDifference | str]:
    once = np.ones((1, len(one.keys)))
    mine, its = one.figures(once, names), two.figures(once, names)
    drawn: dict[str, list[np.ndarray]] = {name: [] for name in names}
    for weights in resampled(one.together, rounds):
        of_one, of_two = one.figures(weights, names), two.figures(weights, names)
        for name in names:
            drawn[name].append(of_two[name] - of_one[name])
    found: dict[str, PairedDifference | str] = {}
    for name in names:
        interval = percentile_interval(np.concatenate(drawn[name]))
        if interval is None:
            found[name] = "no draw of the samples gives it a figure"
            continue
        value = float(its[name][0] - mine[name][0])
        found[name] = PairedDifference(value, *interval, len(set(one.together)))
    return found
