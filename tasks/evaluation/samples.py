"""What each sample contributed to the metrics of an evaluation: one Parquet file beside the result.

Two checkpoints that were judged on the same samples differ by far less chance than each varies alone, so a
comparison needs the numbers of each sample. The file holds the values that a metric is the mean of, or the
score and the truth from which it is computed, and how. It has the samples' keys, so it never leaves the
run's folder: no page or tracker reads them from here, and the terminal shows the rows of a key that is asked
for alone.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tasks.evaluation.kinds.statistics import (
    Figures,
    LabelScores,
    auroc,
    mean_by_class,
    mean_of_known,
    median_rank,
    percentile_interval,
    resampled,
)

METADATA = b"tarmac"
TEXTS = ("key", "item", "group")
"""The columns of text; every other one holds numbers."""
Kind = Literal["mean", "mean_by_class", "median_rank", "auroc", "f1", "precision", "average"]


@dataclass(frozen=True)
class Formula:
    """How a metric follows from columns: `mean` of (values) or (values, weights),
    `mean_by_class` of (values, classes), `median_rank` of (ranks), `auroc`, `f1` and `precision` of (scores,
    truth), or the `average` of other metrics."""

    kind: Kind
    columns: Sequence[str]


@dataclass(frozen=True)
class JudgedSamples:
    """The rows of one evaluation, each a sample, a question of one, or a batch."""

    keys: Sequence[str]
    columns: Mapping[str, Figures]
    """[rows] each; NaN in rows that do not count for it."""
    formulas: Mapping[str, Formula]
    """By metric."""
    items: Sequence[str] = ()
    """What tells rows of one key apart; empty where there is one row per key."""
    groups: Sequence[str] = ()
    """What rows are resampled with, such as a patient; where it is empty, with others of their key."""
    data: str = ""
    """The version of the dataset and the split, or another name of the data: rows of one key are the same
    sample only where this is equal."""

    @property
    def together(self) -> list[str]:
        """What each row is resampled with."""
        return [group or key for group, key in zip(self.groups or self.keys, self.keys, strict=True)]

    def names_of(self, metric: str) -> list[tuple[str, str, str]]:
        """Return key, item and group of each row that counts for the metric."""
        items, together = self.items or [""] * len(self.keys), self.together
        rows = np.flatnonzero(self.rows_of(metric)).tolist()
        return [(self.keys[row], items[row], together[row]) for row in rows]

    def rows_of(self, metric: str) -> NDArray[np.bool_]:
        """Return [rows]: whether a row counts for the metric."""
        formula = self.formulas[metric]
        if formula.kind == "average":
            each = np.stack([self.rows_of(name) for name in formula.columns])
            return np.asarray(each.any(axis=0))
        return np.isfinite(self.columns[formula.columns[0]])

    def only(self, rows: NDArray[np.bool_]) -> JudgedSamples:
        """Return some of the rows."""
        places = np.flatnonzero(rows).tolist()
        return replace(
            self,
            keys=[self.keys[row] for row in places],
            items=[self.items[row] for row in places] if self.items else (),
            groups=[self.groups[row] for row in places] if self.groups else (),
            columns={name: values[rows] for name, values in self.columns.items()},
        )

    def figures(self, weights: Figures, metrics: Iterable[str] | None = None) -> dict[str, Figures]:
        """Return [rounds] by metric; `weights` [rounds, rows] is the number of times that each row counts."""
        found: dict[str, Figures] = {}
        for name in self.formulas if metrics is None else metrics:
            self._compute(name, weights, found)
        return {name: found[name] for name in (self.formulas if metrics is None else metrics)}

    def _compute(self, metric: str, weights: Figures, found: dict[str, Figures]) -> Figures:
        if metric in found:
            return found[metric]
        formula = self.formulas[metric]
        if formula.kind == "average":
            each = [self._compute(name, weights, found) for name in formula.columns]
            found[metric] = mean_of_known(np.stack(each, axis=1))
        else:
            columns = [self.columns[name] for name in formula.columns]
            rows = np.isfinite(columns[0])
            if not rows.all():
                weights, columns = weights[:, rows], [column[rows] for column in columns]
            found[metric] = _figure(formula.kind, columns, weights)
        return found[metric]

    def summarise(self, rounds: int) -> tuple[dict[str, float], dict[str, tuple[float, float]]]:
        """Return all metrics and their intervals by a bootstrap of groups."""
        once = self.figures(np.ones((1, len(self.keys))))
        drawn = [self.figures(weights) for weights in resampled(self.together, rounds)]
        intervals = {
            name: percentile_interval(np.concatenate([part[name] for part in drawn])) for name in once
        }
        return (
            {name: float(values[0]) for name, values in once.items()},
            {name: interval for name, interval in intervals.items() if interval is not None},
        )

    def to_bytes(self) -> bytes:
        """Return the content of the file, which is the same for the same rows."""
        import pyarrow as pa  # late, because whoever checks a config imports the evaluators
        import pyarrow.parquet as pq

        empty = [""] * len(self.keys)
        texts = dict(zip(TEXTS, (self.keys, self.items or empty, self.groups or empty), strict=True))
        table = pa.table(
            {name: pa.array(list(values), pa.string()) for name, values in texts.items()}
            | {
                name: pa.array(values, pa.float64(), from_pandas=True)
                for name, values in self.columns.items()
            }
        )
        formulas = {name: [one.kind, *one.columns] for name, one in self.formulas.items()}
        about = json.dumps({"data": self.data, "metrics": formulas}, ensure_ascii=False)
        file = io.BytesIO()
        pq.write_table(table.replace_schema_metadata({METADATA: about.encode()}), file, compression="zstd")
        return file.getvalue()


def _figure(kind: Kind, columns: Sequence[Figures], weights: Figures) -> Figures:
    """Return [rounds]."""
    match kind:
        case "mean":
            weighted = weights * columns[1] if len(columns) > 1 else weights
            count = weighted.sum(1)
            found: Figures = np.divide(
                weighted @ columns[0], count, out=np.full(len(weights), np.nan), where=count > 0
            )
            return found
        case "mean_by_class":
            return mean_by_class(columns[0], columns[1], weights)
        case "median_rank":
            return median_rank(columns[0], weights)
        case "auroc":
            return auroc(columns[1], columns[0], weights)
    label = LabelScores(columns[1], columns[0])
    return label.f1(weights) if kind == "f1" else label.precision(weights)


def read_samples(path: Path) -> JudgedSamples | None:
    """Return what a file holds; None where it is missing or damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
        about = json.loads(table.schema.metadata[METADATA])
        keys, items, groups = (table[name].to_pylist() for name in TEXTS)
        columns = {
            name: table[name].to_numpy().astype(np.float64)
            for name in table.column_names
            if name not in TEXTS
        }
        formulas = {name: Formula(kind, of) for name, (kind, *of) in about["metrics"].items()}
        return JudgedSamples(keys, columns, formulas, items, groups, about["data"])
    except (OSError, pa.ArrowException, ValueError, KeyError, TypeError):
        return None
