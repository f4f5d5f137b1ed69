"""docs/benchmarks.md and its pictures, made of the kept figures and of the suite's entries, and of nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from textwrap import fill
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from tests.benchmarks import results
from tests.benchmarks.harness import WHOLE, Benchmark, Column
from tests.system.foreign_env import ROOT

PAGE = ROOT / "docs" / "benchmarks.md"
QUICK_PAGE = results.QUICK.with_suffix(".md")
WIDTH = 120
INTRODUCTION = (
    "`make bench` measures all of this, and `python -m tests.benchmarks NAME` one benchmark. Each measurement is a "
    "process of its own unless the section says otherwise, the contestants take turns, and the page cache is warm. A "
    "figure is the median of the rounds that its section names, with the lowest and the highest in parentheses; the "
    "figures without these were measured when only medians were kept. `tests/benchmarks/results` holds everything as "
    "JSON, of which `python -m tests.benchmarks --page` makes this page. A promise is a limit that was set before the "
    "figure was measured. [loader.md](loader.md#how-well-the-samples-are-shuffled) has the quality of shuffling."
)
QUICK_INTRODUCTION = (
    "`make bench QUICK=1` measured this on small sizes, in one round without one that warms. It shows that everything "
    "runs; no figure of it means anything."
)
BAR, STEP, LEFT, FULL, HEAD = 14, 20, 210, 240, 26
"""Of the bars: height, distance, where they begin, the longest, and the room of a heading; in user units."""
STYLE = """svg { --paper: #fff; --text: #333; --ours: #1f5fbf; --other: #9aa3ad; --range: #333 }
@media (prefers-color-scheme: dark) {
 svg { --paper: #1b1e22; --text: #d5d9de; --ours: #7fb6f7; --other: #68707a; --range: #d5d9de }
}
rect.paper { fill: var(--paper) } text { font: 12px system-ui, sans-serif; fill: var(--text) }
.case { font-weight: 600 } .ours { fill: var(--ours) } .other { fill: var(--other) } path { stroke: var(--range) }"""


def page(benchmarks: Iterable[Benchmark], folder: Path, introduction: str = INTRODUCTION) -> str:
    kept = [(one, cases) for one in benchmarks if (cases := results.read(folder, one.name))]
    parts = ["# Benchmarks", _filled(introduction), "## What is promised", promises(kept)]
    for benchmark, cases in kept:
        parts += [f"## {benchmark.title}", _filled(benchmark.text)]
        if benchmark.plot:
            column = next(column for column in benchmark.columns if column.key == benchmark.plot)
            words = f"{benchmark.title}: bars of {column.heading} for each case of the tables below."
            parts.append(f"![{words}](benchmarks/{benchmark.name}.svg)")
        for said, group in groupby(cases, key=lambda title: _circumstances(cases[title])):
            titles = list(group)
            for title in titles:
                parts += [f"### {title}", table(benchmark, cases[title])]
                parts += [_filled(f"Without {who}: {why}.") for who, why in _left_out(cases[title])]
            parts.append(_filled(f"{_loads([cases[title] for title in titles])}; {said}."))
    return "\n\n".join(parts) + "\n"


def pictures(benchmarks: Iterable[Benchmark], folder: Path) -> dict[str, str]:
    """SVG by the names of files beside the page, in its folder `benchmarks`."""
    return {
        f"{one.name}.svg": bars(one, cases)
        for one in benchmarks
        if one.plot and (cases := results.read(folder, one.name))
    }


def write(benchmarks: Sequence[Benchmark], folder: Path, path: Path, introduction: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(benchmarks, folder, introduction), encoding="utf-8")
    for name, picture in pictures(benchmarks, folder).items():
        (path.parent / "benchmarks").mkdir(exist_ok=True)
        (path.parent / "benchmarks" / name).write_text(picture, encoding="utf-8")


def promises(kept: Iterable[tuple[Benchmark, Mapping[str, Any]]]) -> str:
    """A line for each promise; of several cases the figures' range, and those that miss it."""
    lines = ["| benchmark | what is promised | limit | figure | | date |", "|---" * 6 + "|"]
    for benchmark, cases in kept:
        alike: dict[tuple[Any, ...], list[tuple[str, dict[str, Any]]]] = {}
        for title, case in cases.items():
            for one in case["promises"]:
                dated = {**one, "date": case["date"]}
                alike.setdefault((one["text"], one["sense"], one["limit"]), []).append((title, dated))
        for found in alike.values():
            lines.append(f"| {_link(benchmark)} | {_promise(found, len(cases))} |")
    return "\n".join(lines)


def _promise(found: Sequence[tuple[str, Mapping[str, Any]]], cases: int) -> str:
    first = found[0][1]
    unit = f" {first['unit']}" if "unit" in first else ""
    figures = sorted(one["figure"] for _, one in found)
    span = " to ".join(dict.fromkeys(map(amount, (figures[0], figures[-1]))))
    missed = [title for title, one in found if not one["kept"]]
    of = f" ({'; '.join(title for title, _ in found)})" if len(found) < cases else ""
    mark = "kept"
    if missed:
        mark = "**missed**" + (f": {'; '.join(missed)}" if len(missed) < len(found) else "")
    limit = f"{first['sense']} {amount(first['limit'])}{unit}"
    return f"{first['text']}{of} | {limit} | {span}{unit} | {mark} | {max(one['date'] for _, one in found)}"


def said_of(verdict: Mapping[str, Any]) -> str:
    """The cells of a promise: its text, limit, figure, and whether it is kept."""
    unit = verdict.get("unit", "")
    limit, figure = (f"{amount(verdict[key])}{unit and ' ' + unit}" for key in ("limit", "figure"))
    mark = "kept" if verdict["kept"] else "**missed**"
    return f"{verdict['text']} | {verdict['sense']} {limit} | {figure} | {mark}"


def _link(benchmark: Benchmark) -> str:
    anchor = "".join(one for one in benchmark.title.lower().replace(" ", "-") if one.isalnum() or one == "-")
    return f"[{benchmark.title}](#{anchor})"


def table(benchmark: Benchmark, case: Mapping[str, Any]) -> str:
    rows, ranges = case["rows"], case.get("ranges", {})
    if benchmark.is_transposed:
        return _transposed(benchmark, rows, ranges)
    columns = [column for column in benchmark.columns if any(column.key in row for row in rows.values())]
    headings = ["", *(column.heading for column in columns)]
    first = next(iter(rows))
    has_ratio = len(rows) > 1 and benchmark.ratio in rows[first]
    if has_ratio:
        headings.append(f"{first} is … x as fast")
    lines = [f"| {' | '.join(headings)} |", "|---" * len(headings) + "|"]
    for name, row in rows.items():
        cells = [name, *(_cell(row, ranges.get(name, {}), column) for column in columns)]
        if has_ratio:
            cells.append("" if name == first else _ratio(benchmark, rows[first], row, str(benchmark.ratio)))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _transposed(benchmark: Benchmark, rows: Mapping[str, Any], ranges: Mapping[str, Any]) -> str:
    first, *others = rows
    (column,) = benchmark.columns
    headings = [
        "",
        *(f"{name}, {column.heading}" for name in rows),
        *(f"x as fast as {name}" for name in others),
    ]
    lines = [f"| {' | '.join(headings)} |", "|---" * len(headings) + "|"]
    for key in rows[first]:
        own = Column(key, "", column.form)
        cells = [key, *(_cell(rows[name], ranges.get(name, {}), own) for name in rows)]
        cells += [_ratio(benchmark, rows[first], rows[name], key) for name in others]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _ratio(benchmark: Benchmark, first: Mapping[str, float], other: Mapping[str, float], key: str) -> str:
    if key not in other or key not in first:
        return ""
    return f"{other[key] / first[key] if benchmark.is_time else first[key] / other[key]:.2f}"


def _cell(row: Mapping[str, float], ranges: Mapping[str, Sequence[float]], column: Column) -> str:
    if (value := row.get(column.key)) is None:
        return ""
    low_high = ranges.get(column.key)
    span = f" ({shown(low_high[0], column.form)} to {shown(low_high[1], column.form)})" if low_high else ""
    return shown(value, column.form) + span


def shown(value: float, form: str) -> str:
    return format(value, ".1f" if form == WHOLE and value < 10 else form)


def amount(value: float) -> str:
    """A figure of a promise with as many digits as mean something."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _left_out(case: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    return case.get("left_out", {}).items()


def _circumstances(case: Mapping[str, Any]) -> str:
    """How a case was measured, but for the load."""
    parts = [f"{case['rounds']} {'round' if case['rounds'] == 1 else 'rounds'}"]
    parts += ["means of them"] if case.get("average") == "mean" else []
    parts += ["the first of them counts"] if case.get("warm") is False else []
    parts += [case["machine"], case["date"]] + ([f"commit {case['commit']}"] if "commit" in case else [])
    numbers = ", ".join(f"{package} {number}" for package, number in case["versions"].items())
    return ", ".join(parts) + (f"; {numbers}" if numbers else "")


def _loads(cases: Sequence[Mapping[str, Any]]) -> str:
    before = [
        load for case in cases for load in (case.get("load") or [case["load_before"], case["load_after"]])
    ]
    return "Load " + " to ".join(map(str, sorted({min(before), max(before)})))


def bars(benchmark: Benchmark, cases: Mapping[str, Any]) -> str:
    """A bar for each contestant of each case, ours in a colour of its own, with a line from lowest to highest."""
    column = next(column for column in benchmark.columns if column.key == benchmark.plot)
    drawn, y = [], 0
    for title, case in cases.items():
        rows = {name: row for name, row in case["rows"].items() if column.key in row}
        if not rows:
            continue
        ranges = {name: case.get("ranges", {}).get(name, {}).get(column.key) for name in rows}
        most = max([row[column.key] for row in rows.values()] + [span[1] for span in ranges.values() if span])
        scale = FULL / (most or 1)
        drawn.append(
            f'<text class="case" x="8" y="{y + 18}">{escape(title)}: {escape(column.heading)}</text>'
        )
        y += HEAD
        for name, row in rows.items():
            kind = "ours" if name.startswith("tarmac") or name == next(iter(rows)) else "other"
            width, middle = round(row[column.key] * scale, 1), y + BAR / 2
            drawn.append(f'<text x="{LEFT - 6}" y="{y + 11}" text-anchor="end">{escape(name)}</text>')
            drawn.append(f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{width}" height="{BAR}"/>')
            end = width
            if span := ranges[name]:
                low, end = (round(value * scale, 1) for value in span)
                drawn.append(f'<path d="M{LEFT + low} {middle}H{LEFT + max(end, low)}"/>')
            value = shown(row[column.key], column.form)
            drawn.append(f'<text x="{LEFT + max(end, width) + 6:g}" y="{y + 11}">{value}</text>')
            y += STEP
    size = f'viewBox="0 0 {LEFT + FULL + 70} {y + 6}" width="{LEFT + FULL + 70}" height="{y + 6}"'
    words = quoteattr(f"{benchmark.title}: {column.heading}, as the tables of the page have it")
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label={words}>\n<style>{STYLE}</style>'
    return "\n".join([head, '<rect class="paper" width="100%" height="100%"/>', *drawn, "</svg>"]) + "\n"


def _filled(text: str) -> str:
    return fill(text, WIDTH, break_on_hyphens=False)
