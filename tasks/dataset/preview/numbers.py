"""The numbers of a version as charts and a table: statistics per sample, sizes of shards, tokens per caption.

Every numeric column of `samples/` is shown, whatever a modality keeps there; those in TITLES have a title and
a unit. Counts and extremes cover all samples. Quantiles and bars cover at most KEPT samples, taken at even
steps, so that memory does not grow with the dataset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tasks.core.charts import BarLayout, Bars, layout_bars
from tasks.core.errors import DataError
from tasks.core.screen import Progress, no_progress
from tasks.core.units import count, counted, number, percent
from tasks.dataset.quality.examine import CONTEXT, CountTokens, some_captions
from tasks.dataset.version.layout import samples_name
from tasks.dataset.version.tables import DAMAGED, ShardRecord, read_pieces

KEPT = 200_000
"""Values per column that quantiles and bars are made of: a share of 1 % is right to within 0.1 %."""
LARGEST = 1e15
"""Larger magnitudes are counted as this."""
TAIL = 0.005
"""The share of values at either end that a chart leaves out if they lie far from the rest."""
BARS = 24
"""The most bars in a histogram."""
MOST_SHARDS = 48
"""Shards that get a bar each; more of them get a histogram."""
FIGURES: Mapping[str, float] = {"lowest": 0.0, "1 %": 0.01, "median": 0.5, "99 %": 0.99, "highest": 1.0}
"""The columns of the table, as quantiles."""
PLACES = ("shard", "row")
"""Columns that say where a sample is, not what it is."""

TOKENIZED = ("image_text", "reinforced")

TITLES: Mapping[str, tuple[str, str]] = {
    "width": ("Width", "pixels"),
    "height": ("Height", "pixels"),
    "contrast": ("Contrast", "levels"),
    "sharpness": ("Sharpness", "as a ratio"),
    "border": ("Plain border", "of the area"),
    "frames": ("Pictures per file", "pictures"),
    "caption_length": ("Caption length", "characters"),
    "caption_words": ("Words that say something", "words"),
    "images": ("Images per sample", "images"),
    "turns": ("Turns per sample", "turns"),
    "user_length": ("Length of the user's turns", "characters"),
    "assistant_length": ("Length of the assistant's turns", "characters"),
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
    "caption_words": ("Words that say something", "words"),
}
NOTES: Mapping[str, str] = {
    "contrast": "The standard deviation of brightness, of 255 levels; about 0 is one colour.",
    "sharpness": "About 0.5 is sharp, 0.25 has no detail of the size of a pixel, 1 is noise.",
    "border": "What plain bars and frames take.",
    "caption_words": "Without names of files, identifiers and words such as “image”.",
}
"""How to read a number, where its name does not say."""


class Distribution:
    """The distribution of a stream of numbers. `total`, `missing` (not finite) and the extremes cover all
    numbers, `values` holds every `step`-th finite one, in order."""

    def __init__(self, step: int = 1, values: NDArray[Any] | None = None) -> None:
        self.step = step
        self.total = self.missing = 0
        self.lowest, self.highest = np.inf, -np.inf
        self._parts = [np.empty(0)]
        if values is not None:
            self.add(values)

    def add(self, values: NDArray[Any]) -> None:
        """Count these values."""
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

    @property
    def figures(self) -> list[str]:
        """The FIGURES as the table shows them."""
        found = [self.quantile(share) for share in FIGURES.values()]
        return [count(value) if self.is_whole else number(value, 4) for value in found]

    def quantile(self, share: float) -> float:
        """Return the smallest value that at least this share lies at or below; exact at 0 and 1."""
        if share in (0.0, 1.0):
            return self.highest if share else self.lowest
        return float(np.quantile(self.values, share, method="inverted_cdf"))


def merged(some: Sequence[Distribution]) -> Distribution:
    """Return one distribution of them all; their steps must be equal."""
    whole = Distribution(values=np.concatenate([one.values for one in some]))
    whole.step = some[0].step
    whole.total, whole.missing = sum(one.total for one in some), sum(one.missing for one in some)
    whole.lowest, whole.highest = min(one.lowest for one in some), max(one.highest for one in some)
    return whole


@dataclass(frozen=True)
class NumberColumn:
    """One number per sample, by split."""

    name: str
    title: str
    unit: str
    splits: Mapping[str, Distribution]


def read_distributions(
    version: Path, splits: Sequence[str], modality: str, progress: Progress = no_progress
) -> list[NumberColumn]:
    """Return the columns of these splits that hold any number; DataError if a table cannot be read."""
    found: dict[str, dict[str, Distribution]] = {}
    schemas = {split: _schema(version / samples_name(split)) for split in splits}
    done, total = 0, sum(rows for _, rows in schemas.values())
    for split, (names, _) in schemas.items():
        for piece in read_pieces(version / samples_name(split), names):
            named = {
                name: piece.column(name).cast(pa.float64()).fill_null(np.nan).to_numpy(zero_copy_only=False)
                for name in names
            }
            if "images" in named:  # a conversation without images has no sides
                for side in {"width", "height"} & named.keys():
                    named[side] = np.where(named["images"] == 0, np.nan, named[side])
            for name, values in named.items():
                of_splits = found.setdefault(name, {})
                of_splits.setdefault(split, Distribution(1 + total // KEPT)).add(values)
            done += piece.num_rows
            progress(done, total, "rows")
    known = VOLUME_TITLES if modality == "volume_report" else TITLES
    order = {name: place for place, name in enumerate(known)}
    return [
        NumberColumn(name, *known.get(name, (name.replace("_", " "), name)), found[name])
        for name in sorted(found, key=lambda name: (order.get(name, len(order)), name))
        if any(values.total for values in found[name].values())
    ]


def _schema(path: Path) -> tuple[list[str], int]:
    """Return the names of a sample table's statistics, and its number of rows."""
    try:
        metadata = pq.read_metadata(path)
        fields = (one for one in metadata.schema.to_arrow_schema() if one.name not in PLACES)
        is_number = (pa.types.is_signed_integer, pa.types.is_floating)  # unsigned ones are hashes
        return [one.name for one in fields if any(is_(one.type) for is_ in is_number)], metadata.num_rows
    except DAMAGED as error:
        problem = str(error).partition("\n")[0][:160]
        raise DataError(f"{path}: cannot be read ({problem}); see `tarmac verify`") from None


def token_lengths(version: Path, samples: Mapping[str, int], count_tokens: CountTokens) -> Distribution:
    """Count the tokens of captions spread evenly over all splits; unreadable captions are left out, and those
    of a split without a sound index, which the gallery reports."""
    found: list[int] = []
    for split, number_of in samples.items():
        with suppress(DataError):
            _, captions = some_captions(version, {split: number_of}, sum(samples.values()))
            found += map(count_tokens, captions)
    return Distribution(values=np.array(found))


def column_charts(columns: Sequence[NumberColumn]) -> list[BarLayout]:
    """Return a histogram, over all splits, of each column that has more than one value."""
    of_all = ((column, merged(list(column.splits.values()))) for column in columns)
    charts = (
        histogram(column.title, column.unit, values, note=NOTES.get(column.name, ""))
        for column, values in of_all
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
    """Return the histogram of a number; None if all values are equal, since the table shows that."""
    if not values.total or values.lowest == values.highest:
        return None
    edges = _edges(values)
    heights, _ = np.histogram(values.values, edges)
    beyond = (
        ("below", int((values.values < edges[0]).sum()), values.lowest),
        ("above", int((values.values > edges[-1]).sum()), values.highest),
    )
    outside = [f"{count(some * values.step)} {side} (to {number(end)})" for side, some, end in beyond if some]
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
            names=[f"{_bar_name(low, high, values.is_whole)} {unit}" for low, high in pairwise(edges)],
            lines=[("median", middle), *lines],
            note=" ".join(filter(None, notes)),
            is_whole=values.is_whole,
        )
    )


def _edges(values: Distribution) -> list[float]:
    """Return the edges of a histogram without tails that would squeeze the rest. Each bar of whole numbers
    covers as many of them as its neighbours, from half below the first to half above the last."""
    low, high = values.quantile(TAIL), values.quantile(1 - TAIL)
    room = high - low
    low = values.lowest if values.lowest >= low - room else low
    high = values.highest if values.highest <= high + room else high
    if values.is_whole:
        width = np.ceil((high - low + 1) / BARS)
        bars = np.ceil((high - low + 1) / width)
        low, high = low - 0.5, low - 0.5 + bars * width
    else:
        bars = BARS
        least = 1e-6 * max(abs(low), abs(high), 1e-300)
        if high - low < least:
            low, high = low - least, high + least
    edges: list[float] = np.histogram_bin_edges([], int(bars), (low, high)).tolist()
    return edges


def _bar_name(low: float, high: float, is_whole: bool) -> str:
    if not is_whole:
        return f"{number(low, 4)} to {number(high, 4)}"
    first, last = count(low + 0.5), count(high - 0.5)
    return first if first == last else f"{first} to {last}"


def token_chart(values: Distribution) -> BarLayout | None:
    """Return the histogram of caption lengths with the encoder's limit, beyond which training cuts captions
    off."""
    if not values.total:
        return None
    note = f"CLIP's tokenizer on {counted(values.total, 'caption')}."
    if long := float((values.values > CONTEXT).mean()):
        note += f" {percent(long)} are longer than the {CONTEXT} that CLIP reads: their end is cut off."
    lines = [(f"CLIP reads {CONTEXT}", CONTEXT)]
    return histogram("Tokens per caption", "tokens", values, "caption", lines, note)


def shard_charts(shards: Sequence[ShardRecord]) -> list[BarLayout]:
    """Return charts of samples and size per shard: a bar per shard, or a histogram if there are many."""
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
    span = f"{number(min(heights))} to {number(max(heights))}"
    described = f"{title}: {counted(len(heights), 'shard')}, {span}."
    return layout_bars(
        Bars(title, described, "shards in order", unit, edges, heights, names, starts, is_whole=True)
    )
