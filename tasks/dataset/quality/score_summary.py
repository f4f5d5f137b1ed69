"""Summarises the scores of a version: arrays in, the record of `scored` out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.dataset.quality.assessment import Found, ShownSample
from tasks.dataset.quality.columns import SampleRow
from tasks.dataset.quality.examine import SHOWN, name_examples
from tasks.dataset.quality.scored import SUMMARY, ScoreSummary, keep_scores
from tasks.dataset.scores import CLIP_SCORE, OTHERS, SIMILARITY, ScoreTable, VersionSamples

QUANTILES = {"lowest": 0.0, "1 %": 0.01, "10 %": 0.1, "median": 0.5, "90 %": 0.9, "highest": 1.0}
BARS = 32
SAME = 1e-4
"""Scores that differ by less are equal up to rounding."""
THRESHOLDS = (0.9, 0.95, 0.98, 0.99)

Floats = NDArray[np.float32]


def summarise(
    version: Path, model: str, samples: VersionSamples, table: ScoreTable, threshold: float | None
) -> ScoreSummary:
    """Summarise the scores of a version and keep the summary. `threshold` is that of semantic duplicates,
    None where none are looked for."""
    places: list[tuple[str, int]] = []
    parts: dict[str, list[Floats]] = {name: [] for name in (CLIP_SCORE, OTHERS, SIMILARITY)}
    rows: dict[str, int] = {}
    for one in samples:
        split, count = one.shard.split, len(one.keys)
        places.append((split, rows.get(split, 0)))
        rows[split] = rows.get(split, 0) + count
        for name, found in parts.items():
            found.append(table.of(name, one.contents))
    starts = np.cumsum([0, *(len(part) for part in parts[CLIP_SCORE])])
    clip, others, similar = (np.concatenate([np.empty(0, np.float32), *part]) for part in parts.values())

    def examples(numbers: Sequence[int], notes: Floats) -> list[ShownSample]:
        shown = []
        for one in numbers:
            shard = int(np.searchsorted(starts, one, side="right")) - 1
            split, row = places[shard]
            place = SampleRow(split, row + one - int(starts[shard]))
            shown.append(ShownSample(*place, note=f"{float(notes[one]):.3f}"))
        return shown

    order = np.argsort(clip, kind="stable")
    order = order[~np.isnan(clip[order])]
    is_judged = ~np.isnan(clip) & ~np.isnan(others)
    wrong = np.flatnonzero(is_judged & (clip < others - SAME))
    worst = wrong[np.argsort((clip - others)[wrong], kind="stable")]
    edges, heights = _histogram(clip[order])
    summary = ScoreSummary(
        version.resolve().name,
        model,
        len(clip),
        len(order),
        _figures(clip[order]),
        _figures(others[is_judged]),
        edges,
        heights,
        Found(len(wrong), int(is_judged.sum()), examples(worst[:SHOWN].tolist(), clip)),
        examples(order[:SHOWN].tolist(), clip),
        examples(order[::-1][:SHOWN].tolist(), clip),
        *_repeated(similar, threshold, examples),
    )
    named: Any = asdict(summary)
    name_examples(version, named)
    keep_scores(version, named)
    return SUMMARY.validate_python(named)


def _repeated(
    similar: Floats, threshold: float | None, examples: Any
) -> tuple[dict[str, float], list[ShownSample]]:
    """Return the shares of samples with a similarity above each threshold, and the most similar ones."""
    is_known = ~np.isnan(similar)
    if threshold is None or not is_known.any():
        return {}, []
    shares = {
        f"{limit:g}": float((similar[is_known] > limit).mean()) for limit in sorted({*THRESHOLDS, threshold})
    }
    above = np.flatnonzero(is_known & (similar > threshold))
    most = above[np.argsort(-similar[above], kind="stable")]
    return shares, examples(most[:SHOWN].tolist(), similar)


def _figures(values: Floats) -> dict[str, float]:
    if not len(values):
        return {}
    return {name: round(float(np.quantile(values, share)), 6) for name, share in QUANTILES.items()}


def _histogram(values: Floats) -> tuple[list[float], list[int]]:
    if not len(values) or values.min() == values.max():
        return [], []
    heights, edges = np.histogram(values.astype(np.float64), BARS)
    return edges.tolist(), heights.tolist()
