"""How good the verdicts are: `python -m tests.soak.verdicts [stuck] [slow] [wrong]` asks for each of them anew.

Every row is a real training. What was said of it goes to verdicts.json, and from there into the tables of
docs/stalls.md; `python -m tests.soak.verdicts render` only writes those. All rows take an hour on two cores.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from tests.conftest import ROOT
from tests.sanity import planted, test_planted
from tests.stalls import test_slow
from tests.stalls.contract import Stall
from tests.stalls.test_matrix import AT_ONCE, ROWS, examine

RESULTS = Path(__file__).with_name("verdicts.json")
PAGE = ROOT / "docs/stalls.md"
HELD_OUT = " (held out)"
TABLES = ("stuck", "slow", "wrong")


@dataclass(frozen=True)
class Row:
    """What was said of one training. `score` is 1 for the right cause, 0 for none and -1 for a wrong one; a
    healthy training has no `code`, and 1 where no error (of `slow` and `wrong`: nothing) was said of it."""

    table: str
    name: str
    code: str
    said: str
    score: int
    after: float
    """Seconds of the doctor, seconds since it became slow, or steps until it was said."""
    untraced: int | None = None
    """The score of a doctor without stacks, at the same time."""


def stuck() -> Iterator[Row]:
    rows = [stall for stall in ROWS if stall.missing() is None]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield from pool.map(_examined, rows)


def _examined(stall: Stall) -> Row:
    with tempfile.TemporaryDirectory(prefix="stall-") as folder:
        found = examine(stall, Path(folder))
    said, untraced = found.traced, found.untraced
    score = None if untraced is None else untraced.score(stall)
    code = min(stall.codes, default="")
    return Row("stuck", stall.name, code, said.first, said.score(stall), round(said.seconds, 1), score)


def slow() -> Iterator[Row]:
    kinds = [*test_slow.SLOW.items(), *((kind, "") for kind in test_slow.HEALTHY)]
    with ThreadPoolExecutor(test_slow.AT_ONCE) as pool:
        yield from pool.map(lambda one: _watched(*one), kinds)


def _watched(kind: str, code: str) -> Row:
    """Watch a training as it becomes slow, and note when that is said."""
    seconds = test_slow.SECONDS.get(kind, 150)
    command = [
        sys.executable,
        "-m",
        "flows.cli",
        "watch",
        "--",
        sys.executable,
        "-m",
        test_slow.PROGRAM,
        kind,
    ]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=test_slow.environment(kind),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    began, said = None, {}
    for line in process.stdout:
        if began is None and line.startswith("step "):
            began = time.monotonic() + (seconds / 2 if kind.startswith("pace") else 0)
        words = line.split()
        if line.startswith("! ") and len(words) > 1 and words[1] in test_slow.CODES:
            said.setdefault(words[1], time.monotonic())
    process.wait()
    first = min(said, key=lambda one: said[one], default="")
    score = 1 if set(said) == ({code} if code else set()) else -1 if said else 0
    after = said[first] - (began or 0.0) if said else 0.0
    return Row("slow", kind.replace("_", " "), code, first, score, round(after, 1))


def wrong() -> Iterator[Row]:
    rows = [(case, seed) for case in planted.CASES.values() for seed in test_planted.SEEDS]
    with ThreadPoolExecutor(2) as pool:
        yield from pool.map(lambda one: _trained(*one), rows)


def _trained(case: planted.Case, seed: int) -> Row:
    found = [one for one in test_planted.trained(case, seed) if one["severity"] != "info"]
    code = min(case.codes, default="")
    right = [one for one in found if one["code"] in case.codes]
    first = next(iter(right or found), {"code": "", "step": 0})
    score = 1 if right or not (found or code) else -1 if found else 0
    return Row("wrong", f"{case.name}, seed {seed}", code, first["code"], score, first["step"])


def render(rows: Sequence[Row], text: str) -> str:
    """Return the page with its tables of these rows."""
    for table in TABLES:
        begin, end = f"<!-- {table}: python -m tests.soak.verdicts {table} -->\n", f"<!-- end of {table} -->"
        before, rest = text.split(begin)
        of_table = [row for row in rows if row.table == table]
        text = before + begin + "\n".join(_table(table, of_table)) + "\n" + end + rest.split(end)[1]
    return text


def _table(table: str, rows: Sequence[Row]) -> Iterator[str]:
    unit = "steps" if table == "wrong" else "s"
    causes = [row for row in rows if row.code]
    healthy = [row for row in rows if not row.code]
    doubts = sum(row.score != 1 for row in healthy)
    yield f"{_right(causes)} named, {doubts} of {len(healthy)} healthy ones doubted; {_after(causes, unit)}."
    yield ""
    cells = [
        _cells(code, [row for row in causes if row.code == code], unit)
        for code in sorted({row.code for row in causes})
    ]
    last = {
        **dict.fromkeys(cells[0], ""),
        "code": "none",
        "named": _right(healthy),
        "trainings": _names(healthy),
    }
    shown = [name for name in cells[0] if name != "without stacks" or table == "stuck"]
    yield _line(shown)
    yield "|---" * len(shown) + "|"
    for row in (*cells, last):
        yield _line([row[name] for name in shown])


def _cells(code: str, rows: Sequence[Row], unit: str) -> dict[str, str]:
    """A line of the table by its headings."""
    spent = [row.after for row in rows if row.score == 1] or [0.0]
    living = [row.untraced for row in rows if row.untraced is not None]
    return {
        "code": f"`{code}`",
        "named": _right(rows),
        "without stacks": f"{living.count(1)} of {len(living)}" if living else "by its log",
        f"{unit}, median": f"{median(spent):.0f}",
        f"{unit}, worst": f"{max(spent):.0f}",
        "trainings": _names(rows),
    }


def _right(rows: Sequence[Row]) -> str:
    return f"{sum(row.score == 1 for row in rows)} of {len(rows)}"


def _after(rows: Sequence[Row], unit: str) -> str:
    spent = [row.after for row in rows if row.score == 1] or [0.0]
    return f"after {median(spent):.0f} {unit} in the median, {max(spent):.0f} {unit} at most"


def _names(rows: Sequence[Row]) -> str:
    """The names of the trainings, each once; what was held out stands in italics."""
    names = dict.fromkeys(row.name.partition(", seed")[0] for row in rows)
    return "; ".join(
        f"*{name.removesuffix(HELD_OUT)}*" if name.endswith(HELD_OUT) else name for name in names
    )


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def kept() -> list[Row]:
    return [Row(**one) for one in json.loads(RESULTS.read_text())] if RESULTS.exists() else []


def main(*tables: str) -> int:
    asked: dict[str, Callable[[], Iterator[Row]]] = {"stuck": stuck, "slow": slow, "wrong": wrong}
    rows = kept()
    for table in [] if tables == ("render",) else tables or TABLES:
        rows = [row for row in rows if row.table != table]
        for row in asked[table]():
            print(f"{row.score:2d} {row.name:<48} {row.said or 'nothing':<20} {row.after:5.0f}", flush=True)
            rows.append(row)
        lines = [json.dumps(asdict(row)) for row in sorted(rows, key=lambda row: TABLES.index(row.table))]
        RESULTS.write_text("[\n" + ",\n".join(lines) + "\n]\n")
    PAGE.write_text(render(rows, PAGE.read_text()))
    return 0 if all(row.score == 1 for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
