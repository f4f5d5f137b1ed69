"""From counted numbers to bar charts and table rows. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.core.charts import BarLayout, Bars, layout_bars
from tasks.core.units import count, counted, number, percent
from tasks.dataset.preview.columns import Column, Shards
from tasks.dataset.preview.histogram import Histogram, View

SHARES = (("lowest", 0.0), ("1 %", 0.01), ("median", 0.5), ("99 %", 0.99), ("highest", 1.0))


@dataclass(frozen=True)
class Row:
    """One number of one split in five figures."""

    title: str
    unit: str
    split: str
    values: Sequence[str]
    missing: int


def histogram_chart(
    title: str,
    unit: str,
    values: Histogram,
    thing: str = "sample",
    lines: Sequence[tuple[str, float]] = (),
    note: str = "",
) -> BarLayout | None:
    """The distribution of a number; None where all are the same, since that is a sentence."""
    if not values.total or values.lowest == values.highest:
        return None
    view = values.view()
    middle = values.quantile(0.5)
    described = (
        f"{title}: {counted(values.total, thing)} from {number(values.lowest)} to {number(values.highest)} "
        f"{unit}, half of them at or below {number(middle)}."
    )
    notes = [text for text in (note, _tails(view, values)) if text]
    if "median" not in [label for label, _ in lines]:
        lines = [("median", middle), *lines]
    return layout_bars(
        Bars(
            title,
            described,
            unit,
            f"{thing}s",
            view.edges,
            view.heights,
            names=_names(view, unit),
            lines=lines,
            note=" ".join(notes),
            is_whole=values.is_whole,
        )
    )


def token_chart(title: str, unit: str, values: Histogram, context: int) -> BarLayout | None:
    """Lengths of captions beside what the text encoder reads; what lies beyond is cut off in training."""
    if not values.total:
        return None
    long = values.count_above(context) / values.total
    note = f"CLIP's tokenizer on {counted(values.total, 'caption')}."
    if long:
        note += f" {percent(long)} are longer than the {context} that CLIP reads: their end is cut off."
    return histogram_chart(title, unit, values, "caption", [(f"CLIP reads {context}", context)], note)


def shard_charts(shards: Shards) -> list[BarLayout]:
    """Samples and bytes a shard: a bar each while they can be told apart, then how they are distributed."""
    megabytes = [size / 1e6 for size in shards.bytes]
    if not shards.is_complete:
        # Bytes stay bytes here, because a histogram cannot be scaled; the axis says 20M.
        charts = [
            histogram_chart("Samples a shard", "samples", shards.all_samples, "shard"),
            histogram_chart("Bytes a shard", "bytes", shards.all_bytes, "shard"),
        ]
        return [chart for chart in charts if chart is not None]
    starts = [
        (name.partition("/")[0], place - 0.5)
        for place, name in enumerate(shards.names)
        if place and name.endswith("/000000.tar")
    ]
    edges = [place - 0.5 for place in range(len(shards.names) + 1)]

    def chart(title: str, unit: str, heights: Sequence[float]) -> BarLayout | None:
        if not heights:
            return None
        told = f"{title}: {counted(len(heights), 'shard')}, {number(min(heights))} to {number(max(heights))}."
        return layout_bars(
            Bars(title, told, "shards in order", unit, edges, heights, shards.names, starts, is_whole=True)
        )

    charts = [chart("Samples a shard", "samples", shards.samples), chart("Size of a shard", "MB", megabytes)]
    return [drawing for drawing in charts if drawing is not None]


def rows(columns: Sequence[Column]) -> list[Row]:
    """The table of all numbers, split by split."""
    return [
        Row(column.title, column.unit, split, _figures(values), values.missing)
        for column in columns
        for split, values in column.splits.items()
        if values.total
    ]


def _figures(values: Histogram) -> list[str]:
    found = [values.quantile(share) for _, share in SHARES]
    return [count(value) if values.is_whole else number(value, 4) for value in found]


def _tails(view: View, values: Histogram) -> str:
    outside = [
        f"{count(number_of)} {side} (to {number(end)})"
        for number_of, side, end in (
            (view.below, "below", values.lowest),
            (view.above, "above", values.highest),
        )
        if number_of
    ]
    return f"Not drawn: {' and '.join(outside)}." if outside else ""


def _names(view: View, unit: str) -> list[str]:
    if view.is_single:
        return [f"{count(start + 0.5)} {unit}" for start in view.edges[:-1]]
    pairs = zip(view.edges[:-1], view.edges[1:], strict=True)
    return [f"{number(start, 4)} to {number(end, 4)} {unit}" for start, end in pairs]
