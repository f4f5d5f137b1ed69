"""The numbers of a version as charts and a table: statistics per sample, sizes of shards, tokens per caption.

Every numeric column of `samples/` is shown, whatever a modality keeps there; those in TITLES have a title and
a unit. Counts and extremes are of all samples. Quantiles and bars are of at most KEPT of them, taken at even
steps, so that memory does not grow with the dataset.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tasks.core.charts import BarLayout, Bars, layout_bars, ticks
from tasks.core.errors import DataError
from tasks.core.screen import Progress, no_progress
from tasks.core.units import count, counted, number, percent
from tasks.dataset.layout import samples_name
from tasks.dataset.preview.samples import SampleReader, spread
from tasks.dataset.tables import DAMAGED, ShardRecord, read_pieces

KEPT = 200_000
"""Values per column, of which quantiles and bars are made: a share of 1 % is right to within 0.1 %."""
LARGEST = 1e15
"""Magnitudes beyond are counted as this."""
TAIL = 0.005
"""Of the values at either end that a chart leaves out where they lie far from the rest."""
BARS = 24
"""About so many make a histogram."""
MOST_SHARDS = 48
"""Shards that get a bar each; of more there is a histogram."""
FIGURES: Mapping[str, float] = {"lowest": 0.0, "1 %": 0.01, "median": 0.5, "99 %": 0.99, "highest": 1.0}
"""The columns of the table, as quantiles."""
PLACES = ("shard", "row")
"""Columns that say where a sample is, not what it is."""

CountTokens = Callable[[str], int]
CONTEXT = 77
"""Tokens that CLIP's text encoder reads; the rest of a caption is cut off."""
CAPTIONS = 2000
"""Captions, spread evenly, whose tokens are counted."""
TOKENIZED = ("image_text", "reinforced")

TITLES: Mapping[str, tuple[str, str]] = {
    "width": ("Width", "pixels"),
    "height": ("Height", "pixels"),
    "caption_length": ("Caption length", "characters"),
    "images": ("Images per sample", "images"),
    "turns": ("Turns per sample", "turns"),
    "user_length": ("Length of what the user says", "characters"),
    "assistant_length": ("Length of what the assistant says", "characters"),
    "captions": ("Captions per sample", "captions"),
    "augmentations": ("Augmentations per sample", "augmentations"),
}
VOLUME_TITLES: Mapping[str, tuple[str, str]] = {
    "depth": ("Depth", "slices"),
    "height": ("Height", "voxels"),
    "width": ("Width", "voxels"),
    "spacing_z": ("Distance of slices", "mm"),
    "spacing_y": ("Distance of rows", "mm"),
    "spacing_x": ("Distance of columns", "mm"),
    "hu_min": ("Lowest voxel", "HU"),
    "hu_p01": ("1 % of the voxels lie at or below", "HU"),
    "hu_p50": ("Half of the voxels lie at or below", "HU"),
    "hu_p99": ("99 % of the voxels lie at or below", "HU"),
    "hu_max": ("Highest voxel", "HU"),
    "pad_fraction": ("Share that is padding", "of the volume"),
    "caption_length": ("Report length", "characters"),
}


class Distribution:
    """A number over many things, streamed in. `total`, `missing` (not finite) and the extremes are of all of
    them, `values` every `step`-th of the finite ones, in order."""

    def __init__(self, step: int = 1, values: NDArray[Any] | None = None) -> None:
        self.step = step
        self.total = self.missing = 0
        self.lowest, self.highest = np.inf, -np.inf
        self._parts = [np.empty(0)]
        if values is not None:
            self.add(values)

    def add(self, values: NDArray[Any]) -> None:
        """Count these."""
        finite = np.clip(values[np.isfinite(values)].astype(np.float64), -LARGEST, LARGEST)
        self.lowest = float(finite.min(initial=self.lowest))
        self.highest = float(finite.max(initial=self.highest))
        self._parts.append(finite[-self.total % self.step :: self.step])
        self.total += len(finite)
        self.missing += len(values) - len(finite)

    @property
    def values(self) -> NDArray[np.float64]:
        self._parts = [np.concatenate(self._parts)]
        return self._parts[0]

    @property
    def is_whole(self) -> bool:
        return bool((np.rint(self.values) == self.values).all())

    def quantile(self, share: float) -> float:
        """The smallest value that at least this share lies at or below; exact at 0 and 1."""
        if share in (0.0, 1.0):
            return self.highest if share else self.lowest
        return float(np.quantile(self.values, share, method="inverted_cdf"))


def merged(some: Sequence[Distribution]) -> Distribution:
    """All of them together; their steps are alike."""
    whole = Distribution(values=np.concatenate([one.values for one in some]))
    whole.step = some[0].step
    whole.total, whole.missing = sum(one.total for one in some), sum(one.missing for one in some)
    whole.lowest, whole.highest = min(one.lowest for one in some), max(one.highest for one in some)
    return whole


@dataclass(frozen=True)
class NumberColumn:
    """One number of every sample, by split."""

    name: str
    title: str
    unit: str
    splits: Mapping[str, Distribution]


@dataclass(frozen=True)
class FigureRow:
    """One number of one split in the FIGURES."""

    title: str
    unit: str
    split: str
    values: Sequence[str]
    missing: int


def read_columns(
    version: Path, splits: Sequence[str], modality: str, progress: Progress = no_progress
) -> list[NumberColumn]:
    """The numeric columns of these splits; DataError when a table cannot be read."""
    found: dict[str, dict[str, Distribution]] = {}
    schemas = {split: _schema(version / samples_name(split)) for split in splits}
    done, total = 0, sum(rows for _, rows in schemas.values())
    for split, (names, _) in schemas.items():
        for piece in read_pieces(version / samples_name(split), names):
            for name, values in _statistics(piece).items():
                of_splits = found.setdefault(name, {})
                of_splits.setdefault(split, Distribution(1 + total // KEPT)).add(values)
            done += piece.num_rows
            progress(done, total, "rows")
    known = VOLUME_TITLES if modality == "volume_report" else TITLES
    order = {name: place for place, name in enumerate(known)}
    return [
        NumberColumn(name, *known.get(name, (name.replace("_", " "), name)), found[name])
        for name in sorted(found, key=lambda name: (order.get(name, len(order)), name))
    ]


def _schema(path: Path) -> tuple[list[str], int]:
    """The columns of a table of samples that are statistics, and its rows."""
    try:
        metadata = pq.read_metadata(path)
        fields = metadata.schema.to_arrow_schema()
        numeric = [
            one.name for one in fields if pa.types.is_integer(one.type) or pa.types.is_floating(one.type)
        ]
        return [name for name in numeric if name not in PLACES], metadata.num_rows
    except DAMAGED as error:
        problem = str(error).partition("\n")[0][:160]
        raise DataError(f"{path}: cannot be read ({problem}); see `tarmac verify`") from None


def _statistics(piece: Any) -> dict[str, NDArray[np.float64]]:
    """A piece's columns by name, what is missing as NaN; a conversation without images has no sides."""
    named = {
        name: piece.column(name).cast(pa.float64()).fill_null(np.nan).to_numpy(zero_copy_only=False)
        for name in piece.schema.names
    }
    if "images" in named:
        for side in {"width", "height"} & named.keys():
            named[side] = np.where(named["images"] == 0, np.nan, named[side])
    return named


def token_lengths(version: Path, samples: Mapping[str, int], count_tokens: CountTokens) -> Distribution:
    """The tokens of captions spread evenly over all splits; one that cannot be read is left out."""
    found = []
    total = sum(samples.values())
    for split, number_of in samples.items():
        try:
            reader = SampleReader(version, split)
        except DataError:
            continue  # the gallery says so
        for row in spread(min(number_of, len(reader)), max(1, CAPTIONS * number_of // max(1, total))):
            with suppress(DataError, KeyError):  # the gallery and verify report such samples
                found.append(count_tokens(reader.read(row).members["txt"].decode("utf-8", "replace")))
    return Distribution(values=np.array(found))


def table_rows(columns: Sequence[NumberColumn]) -> list[FigureRow]:
    """The table of all numbers, split by split."""
    rows = []
    for column in columns:
        for split, values in column.splits.items():
            if values.total:
                found = [values.quantile(share) for share in FIGURES.values()]
                figures = [count(value) if values.is_whole else number(value, 4) for value in found]
                rows.append(FigureRow(column.title, column.unit, split, figures, values.missing))
    return rows


def column_charts(columns: Sequence[NumberColumn]) -> list[BarLayout]:
    """A histogram of each column that has more than one value, all splits together."""
    charts = (
        histogram(column.title, column.unit, merged(list(column.splits.values()))) for column in columns
    )
    return [chart for chart in charts if chart is not None]


def histogram(
    title: str,
    unit: str,
    values: Distribution,
    thing: str = "sample",
    lines: Sequence[tuple[str, float]] = (),
    note: str = "",
) -> BarLayout | None:
    """The distribution of a number; None where all are the same, since the table shows that."""
    if not values.total or values.lowest == values.highest:
        return None
    edges, is_single = _edges(values)
    heights, _ = np.histogram(values.values, edges)
    outside = [
        f"{count(len(beyond) * values.step)} {side} (to {number(end)})"
        for side, beyond, end in (
            ("below", values.values[values.values < edges[0]], values.lowest),
            ("above", values.values[values.values > edges[-1]], values.highest),
        )
        if len(beyond)
    ]
    notes = [
        note,
        f"Not drawn: {' and '.join(outside)}." if outside else "",
        f"Bars are of one {thing} in {values.step:,}." if values.step > 1 else "",
    ]
    middle = values.quantile(0.5)
    return layout_bars(
        Bars(
            title,
            f"{title}: {counted(values.total, thing)} from {number(values.lowest)} to "
            f"{number(values.highest)} {unit}, half of them at or below {number(middle)}.",
            unit,
            f"{thing}s",
            edges,
            heights.tolist(),
            names=_bar_names(edges, unit, is_single),
            lines=[("median", middle), *lines],
            note=" ".join(filter(None, notes)),
            is_whole=values.is_whole,
        )
    )


def _edges(values: Distribution) -> tuple[list[float], bool]:
    """Round edges without the tails that would squeeze everything else; whether each bar is one whole number,
    which then stands in its middle."""
    low, high = values.quantile(TAIL), values.quantile(1 - TAIL)
    room = high - low
    low = values.lowest if values.lowest >= low - room else low
    high = values.highest if values.highest <= high + room else high
    if values.is_whole and high - low <= BARS:
        return [low + step - 0.5 for step in range(int(high - low) + 2)], True
    least = 1e-6 * max(abs(low), abs(high), 1e-300)
    if high - low < least:
        low, high = low - least, high + least
    return ticks(low, high, outside=True, about=BARS), False


def _bar_names(edges: Sequence[float], unit: str, is_single: bool) -> list[str]:
    if is_single:
        return [f"{count(start + 0.5)} {unit}" for start in edges[:-1]]
    return [f"{number(start, 4)} to {number(end, 4)} {unit}" for start, end in pairwise(edges)]


def token_chart(values: Distribution) -> BarLayout | None:
    """Lengths of captions beside what the text encoder reads; what lies beyond is cut off in training."""
    if not values.total:
        return None
    note = f"CLIP's tokenizer on {counted(values.total, 'caption')}."
    if long := float((values.values > CONTEXT).mean()):
        note += f" {percent(long)} are longer than the {CONTEXT} that CLIP reads: their end is cut off."
    lines = [(f"CLIP reads {CONTEXT}", CONTEXT)]
    return histogram("Tokens per caption", "tokens", values, "caption", lines, note)


def shard_charts(shards: Sequence[ShardRecord]) -> list[BarLayout]:
    """Samples and size per shard: a bar each while they can be told apart, else how they are distributed."""
    charts: list[BarLayout | None] = []
    for title, unit, heights in (
        ("Samples per shard", "samples", [float(shard.samples) for shard in shards]),
        ("Size of a shard", "MB", [shard.bytes / 1e6 for shard in shards]),
    ):
        if len(shards) > MOST_SHARDS:
            charts.append(histogram(title, unit, Distribution(values=np.array(heights)), "shard"))
        elif heights:
            charts.append(_bar_per_shard(title, unit, shards, heights))
    return [chart for chart in charts if chart is not None]


def _bar_per_shard(
    title: str, unit: str, shards: Sequence[ShardRecord], heights: Sequence[float]
) -> BarLayout:
    starts = [
        (shard.split, place + 0.5)
        for place, (before, shard) in enumerate(pairwise(shards))
        if shard.split != before.split
    ]
    names = [shard.name for shard in shards]
    edges = [place - 0.5 for place in range(len(names) + 1)]
    described = (
        f"{title}: {counted(len(heights), 'shard')}, {number(min(heights))} to {number(max(heights))}."
    )
    return layout_bars(
        Bars(title, described, "shards in order", unit, edges, heights, names, starts, is_whole=True)
    )
