"""The figures and curves of docs/scale.md, computed from what benchmarks kept: `python -m tests.benchmarks.scale_page`.

The prose of the page is written by hand; what stands between its markers is written here. An estimate is a formula over
kept constants, so a new measurement changes every line that rests on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tasks.dataset.version.layout import MOST_SHARDS
from tests.benchmarks.results import KEPT, at, read
from tests.docs.pictures import svg, text
from tests.system.foreign_env import ROOT

PAGE = ROOT / "docs/scale.md"
PICTURES = ROOT / "docs/assets"
PAIRS = 2 * 10**9
SHARD_BYTES = 1e9
HOUR = 3600.0
DRAWN = {
    "plan": "",
    "index": "6 3",
    "verify --quick": "2 3",
    "preflight": "9 3 2 3",
    "first batch, windows": "1 4",
}
"""The operations that the curves show, each with its dashes; the loader's others lie on the last."""


def points(operation: str, key: str) -> list[tuple[int, float, float, float]]:
    """Samples, and the median, lowest and highest of a figure, as they were kept."""
    case = read(KEPT, "scale")[operation]
    found = []
    for name, row in case["rows"].items():
        if key in row:
            low, high = case["ranges"].get(name, {}).get(key) or (row[key], row[key])
            found.append((int(name.replace(",", "")), row[key], low, high))
    return found


def slope(operation: str, key: str) -> float:
    """What a sample adds, between the two largest numbers that were measured."""
    (few, low, *_), (many, high, *_) = points(operation, key)[-2:]
    return (high - low) / (many - few)


def last(operation: str, key: str) -> float:
    return points(operation, key)[-1][1]


def extended(operation: str, key: str) -> float:
    """A figure for PAIRS samples, along the line through the two largest."""
    return last(operation, key) + (PAIRS - points(operation, key)[-1][0]) * slope(operation, key)


def room(key: str) -> float:
    return at(f"room/256 x 256/a sample/{key}")


def core_build() -> float:
    """Samples that a core builds per second where it decodes each picture."""
    return at("build/20,000 JPEGs/tarmac, decode, 2 workers/samples_per_s") / 2


class Estimate(NamedTuple):
    """A line of the table: what it takes, how much, the formula, and where its constants come from."""

    what: str
    much: str
    formula: str
    source: str


def estimates() -> Iterator[Estimate]:
    tars, total = room("tar_bytes"), PAIRS * room("tar_bytes")
    yield Estimate("shards on the disk", data(total), f"N × {tars:,.0f} bytes", "room: tar")
    yield Estimate(
        "number of tars, with `shard: {bytes: 1GB}`",
        f"{total / SHARD_BYTES:,.0f}",
        f"shards ÷ 1 GB; a split may have {MOST_SHARDS:,}",
        "room: tar",
    )
    index = room("index_bytes")
    yield Estimate(
        "the index, one file",
        data(PAIRS * 24),
        "N × 24 bytes",
        f"its format; room: {index:.1f} with the header",
    )
    for key, what in (
        ("samples_bytes", "the table of samples"),
        ("inputs_bytes", "`inputs.arrow`, for the next build"),
    ):
        yield Estimate(
            what, data(PAIRS * room(key)), f"N × {room(key):,.0f} bytes", f"room: {key.split('_')[0]}"
        )
    row = slope("plan", "seconds")
    yield Estimate(
        "listing the source, one process",
        spoken(PAIRS * row),
        f"N × {row * 1e6:.0f} µs",
        "scale: plan, from 10^5 to 10^6",
    )
    cores = PAIRS / core_build() / HOUR
    yield Estimate(
        "building, each picture decoded", f"{cores:,.0f} core-hours", f"N ÷ {core_build():,.0f} per second and core",
        "build: decode, 2 workers",
    )  # fmt: skip
    head = at("build/20,000 JPEGs/tarmac, header, 1 worker/samples_per_s")
    yield Estimate(
        "building, each picture's header read", f"{PAIRS / head / HOUR:,.0f} core-hours",
        f"N ÷ {head:,.0f} per second and core", "build: header, 1 worker",
    )  # fmt: skip
    span = slope("index", "seconds")
    yield Estimate(
        "indexing tars of others, beside reading them", spoken(PAIRS * span), f"N × {span * 1e6:.0f} µs",
        "scale: index, from 10^5 to 10^6; tars of 2 KB a sample",
    )  # fmt: skip
    rate = at("verify/4 GB/tarmac, the command/mb_per_s")
    yield Estimate(
        "verifying every byte, on two cores", spoken(total / (rate * 1e6)), f"shards ÷ {rate:,.0f} MB/s",
        "verify: 4 GB, from the page cache",
    )  # fmt: skip
    for operation in ("verify --quick", "preflight"):
        seconds, memory = extended(operation, "seconds"), extended(operation, "peak_mb")
        yield Estimate(
            f"`{operation}`",
            f"{spoken(seconds)}, {data(memory * 1e6)} of memory",
            f"{last(operation, 'seconds'):.2f} s and {last(operation, 'peak_mb'):,.0f} MB at 10^8, and "
            f"{slope(operation, 'seconds') * 1e9:.0f} ns and {slope(operation, 'peak_mb') * 1e6:.2f} bytes per sample more",
            f"scale: {operation}, from 10^7 to 10^8",
        )
    for operation, what in (
        ("first batch, windows", "the first batch of a rank"),
        ("resume", "resuming in the third epoch"),
    ):
        yield Estimate(
            what,
            f"{last(operation, 'seconds'):.2f} s, {last(operation, 'grown_mb'):.0f} MB more",
            "as at 10^9",
            f"scale: {operation}",
        )
    cost = at("clip_loading/256x256/tarmac/cpu_ms")
    yield Estimate(
        "loading an epoch for a ViT-B-32", f"{PAIRS * cost / 1000 / HOUR:,.0f} core-hours", f"N × {cost:.2f} ms of a core",
        "clip_loading: 256x256",
    )  # fmt: skip
    paid = cores + PAIRS * cost / 1000 / HOUR
    yield Estimate(
        "money: a build and an epoch's loading",
        f"{paid:,.0f} core-hours × your price",
        "the sum of both lines",
        "above",
    )


def spoken(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 2 * HOUR else f"{seconds / HOUR:.1f} h"


def data(size: float) -> str:
    units = ("bytes", "KB", "MB", "GB", "TB")
    power = min(int(math.log10(size) // 3), len(units) - 1) if size >= 1 else 0
    shown = size / 1000**power
    return f"{shown:.0f} {units[power]}" if shown >= 10 else f"{shown:.1f} {units[power]}"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(
        [
            f"| {' | '.join(headings)} |",
            "|---" * len(headings) + "|",
            *(f"| {' | '.join(row)} |" for row in rows),
        ]
    )


def measured_table() -> str:
    """Seconds and memory by operation, a column for each power of ten."""
    cases = read(KEPT, "scale")
    powers = range(3, 10)
    rows = []
    for operation in cases:
        for key, heading, form in (
            ("seconds", "s", ".2f"),
            ("peak_mb", "MB", ",.0f"),
            ("grown_mb", "MB more", ".1f"),
        ):
            found = {samples: value for samples, value, *_ in points(operation, key)}
            if not found or (key == "peak_mb" and points(operation, "grown_mb")):
                continue
            rows.append(
                [
                    f"{operation}, {heading}",
                    *(format(found[10**p], form) if 10**p in found else "" for p in powers),
                ]
            )
    return table(["", *(f"10^{power}" for power in powers)], rows)


def estimate_table() -> str:
    return table(["what", "for 2 × 10^9 pairs", "formula", "constant"], [[*one] for one in estimates()])


def workers_table() -> str:
    """By engine and number of workers: the start, the work, and how much quicker it is than on one."""
    rows = []
    for engine, case in read(KEPT, "workers").items():
        first = case["rows"]["1 worker"]["busy_s"]
        for name, row in case["rows"].items():
            rows.append(
                [
                    f"{engine}, {name}",
                    f"{row['first_s']:.2f}",
                    f"{row['busy_s']:.2f}",
                    f"{first / row['busy_s']:.2f}",
                    f"{row['item_ms']:.2f}",
                ]
            )
    headings = ["", "s until the first item begins", "s of work", "x as fast as 1", "ms per empty item"]
    missing = [engine for engine in ("local", "slurm", "dask") if engine not in read(KEPT, "workers")]
    said = f"\n\nNot measured yet: {', '.join(missing)}." if missing else ""
    return table(headings, rows) + said


def circumstances() -> str:
    """When, where and at which load all of it was measured."""
    lines = []
    for name in ("scale", "workers", "room"):
        for case, one in read(KEPT, name).items():
            rounds = "1 round" if one["rounds"] == 1 else f"{one['rounds']} rounds"
            loads = f"load {one['load_before']} to {one['load_after']}"
            lines.append(f"- `{name}`, {case}: {rounds}, {loads}, {one['date']}, commit {one['commit']}")
    return "\n".join(lines)


BLOCKS: Mapping[str, Callable[[], str]] = {
    "measured": measured_table,
    "estimates": estimate_table,
    "workers": workers_table,
    "circumstances": circumstances,
}


def page(written: str) -> str:
    """The page with its blocks as the kept figures have them."""
    for name, block in BLOCKS.items():
        begin, end = f"<!-- {name}: python -m tests.benchmarks.scale_page -->\n", f"<!-- end of {name} -->"
        before, rest = written.split(begin)
        written = before + begin + "\n" + block() + "\n\n" + end + rest.split(end)[1]
    return written


# The curves: both axes are logarithmic, so a line of slope 1 is what grows with the samples.
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 680, 400, 70, 490, 56, 350


def curves(title: str, key: str, unit: str) -> str:
    """A line for each operation with its marks, and the lowest and highest as a bar through each."""
    found = {operation: points(operation, key) for operation in DRAWN}
    values = [low for one in found.values() for _, _, low, _ in one] + [
        high for one in found.values() for *_, high in one
    ]
    bottom, top = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))

    def x(samples: float) -> float:
        return round(LEFT + (math.log10(samples) - 3) / 6 * (RIGHT - LEFT), 1)

    def y(value: float) -> float:
        return round(BOTTOM - (math.log10(value) - bottom) / (top - bottom) * (BOTTOM - TOP), 1)

    parts = [text(20, 28, title, "name")]
    for power in range(3, 10):
        parts.append(f'<path class="arrow" stroke-opacity=".25" d="M{x(10**power)} {TOP}V{BOTTOM}"/>')
        parts.append(text(x(10**power) - 14, BOTTOM + 20, f"10^{power}"))
    for power in range(bottom, top + 1):
        parts.append(f'<path class="arrow" stroke-opacity=".25" d="M{LEFT} {y(10.0**power)}H{RIGHT}"/>')
        parts.append(text(16, y(10.0**power) + 4, f"{10.0**power:g} {unit}"))
    parts.append(text(LEFT + 180, BOTTOM + 42, "samples"))
    labels: list[float] = []
    for operation in sorted(found, key=lambda one: y(found[one][-1][1])):
        one = found[operation]
        line = "L".join(f"{x(samples)} {y(value)}" for samples, value, *_ in one)
        parts.append(f'<path class="arrow" stroke-dasharray="{DRAWN[operation]}" d="M{line}"/>')
        for samples, value, low, high in one:
            parts.append(f'<path class="arrow" d="M{x(samples)} {y(low)}V{y(high)}"/>')
            parts.append(f'<circle class="key" cx="{x(samples)}" cy="{y(value)}" r="3"/>')
        at_y = max(y(one[-1][1]) + 4, labels[-1] + 16 if labels else 0)
        labels.append(at_y)
        parts.append(
            f'<path class="arrow" stroke-dasharray="{DRAWN[operation]}" d="M{RIGHT + 8} {at_y - 4}h24"/>'
        )
        parts.append(text(RIGHT + 36, at_y, operation))
    words = (
        f"{title}: lines over 10^3 to 10^9 samples, both axes logarithmic; the page's table has the figures."
    )
    return svg(WIDTH, HEIGHT, title, words, parts)


DRAWINGS: Mapping[str, Callable[[], str]] = {
    "scale-seconds.svg": lambda: curves("Seconds by the number of samples", "seconds", "s"),
    "scale-memory.svg": lambda: curves("Peak memory by the number of samples", "peak_mb", "MB"),
}


def main(folder: Path = PICTURES) -> None:
    PAGE.write_text(page(PAGE.read_text()))
    for name, draw in DRAWINGS.items():
        (folder / name).write_text(draw())


if __name__ == "__main__":
    main()
