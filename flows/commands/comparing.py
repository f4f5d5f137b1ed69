"""The command `compare`: what differs between runs, and how far their scores do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from flows.commands.arguments import RUNS, AsJson, RunsFolder
from flows.commands.output import print_result, say
from tasks.core.units import near, number

if TYPE_CHECKING:
    from tasks.reporting.comparison import ComparedRun, RunComparison, ScoreRow, ScoreVerdict

RunNames = Annotated[
    list[str] | None,
    Parameter(help="Two to eight runs: their folders, or the beginnings of their ids or names.", negative=()),
]
PageFile = Annotated[Path | None, Parameter(help="Where the page is written (default: beside the runs).")]
WIDEST = 48
"""Longer values of the config are cut in the terminal; the page and --json have them whole."""


def compare(
    run: RunNames = None,
    /,
    *,
    page: PageFile = None,
    runs: RunsFolder = RUNS,
    as_json: AsJson = False,
) -> int:
    """Compare runs with the first: config, data, code, scores, losses and speed.

    Scores are compared sample by sample where both runs were evaluated on
    the same samples, with a 95 % interval of the difference. It also writes
    a page with the curves of all runs on the same axes.

    For example:
      tarmac compare 2e94 71c0
      tarmac compare 2e94 71c0 --json
    """
    from tasks.reporting.comparison import compare_runs, find_runs
    from tasks.reporting.comparison_page import default_page, write_page

    compared = compare_runs(find_runs(runs, run or []))
    written = page if page is not None else default_page(compared, compared.runs[0].run.path.parent)
    write_page(compared, written)
    if as_json:
        return print_result(**_facts(compared), page=str(written))
    return say("\n".join([*_lines(compared), f"page  {near(written)}"]))


def _lines(compared: RunComparison) -> Iterator[str]:
    from tasks.reporting.comparison_page import training_figures

    labels = [run.label for run in compared.runs]
    for note in compared.notes:
        yield f"! {note}"
    for title, rows in (("CONFIG", compared.config), ("DATA", compared.data), ("CODE", compared.code)):
        if rows:
            yield title
            yield from _table(["", *labels], [[row.name, *row.texts] for row in rows])
    if not (compared.config or compared.data or compared.code):
        yield "config, data, code and packages are the same"
    if compared.scores:
        yield "SCORES"
        yield from _score_lines(compared)
    if compared.seeds:
        yield "SEEDS"
        for one in compared.seeds:
            yield f"  {one.task} {one.metric}, {one.at}: {one}"
    yield "TRAINING"
    yield from _table(["", *labels], [[row.name, *row.texts] for row in training_figures(compared)])


def _score_lines(compared: RunComparison) -> Iterator[str]:
    """Yield a table of the scores and below each row what the differences amount to."""
    labels = [run.label for run in compared.runs]
    shown = [row for row in compared.scores if not row.is_detail]
    cells = [[f"{row.task} {row.metric}", row.at, *_values(row)] for row in shown]
    head, *lines = _table(["", "", *labels], cells)
    yield head
    for row, line in zip(shown, lines, strict=True):
        yield line
        for label, verdict in zip(labels[1:], row.verdicts, strict=True):
            if verdict is not None:
                yield f"      {f'{label}: ' if len(labels) > 2 else ''}{verdict}"
    if (hidden := len(compared.scores) - len(shown)) > 0:
        yield f"  {hidden} figures of single labels: see the page"


def _values(row: ScoreRow) -> list[str]:
    return [
        "–" if result is None or value is None else f"{number(value)} (step {result.step:,})"
        for value, result in zip(row.values, row.results, strict=True)
    ]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return lines in which the columns stand below each other."""
    cut = [
        [cell if len(cell) <= WIDEST else cell[: WIDEST - 1] + "…" for cell in row] for row in [head, *rows]
    ]
    widths = [max(map(len, column)) for column in zip(*cut, strict=True)]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cut
    ]


def _facts(compared: RunComparison) -> dict[str, Any]:
    return {
        "runs": [_run_facts(run) for run in compared.runs],
        "config": {row.name: list(row.values) for row in compared.config},
        "data": {row.name: list(row.values) for row in compared.data},
        "code": {row.name: list(row.values) for row in compared.code},
        "scores": [
            {
                "task": row.task,
                "metric": row.metric,
                "at": row.at,
                "steps": [None if one is None else one.step for one in row.results],
                "values": [_finite(value) for value in row.values],
                "differences": [None if one is None else _verdict_facts(one) for one in row.verdicts],
            }
            for row in compared.scores
        ],
        "seeds": [{**asdict(one), "mean": one.mean, "deviation": one.deviation} for one in compared.seeds],
        "notes": list(compared.notes),
    }


def _run_facts(run: ComparedRun) -> dict[str, Any]:
    record, training = run.contents.record, run.training
    return {
        "run": run.run.name,
        "id": run.run.id,
        "label": run.label,
        "state": None if record is None else record.state,
        "recipe": run.recipe,
        "step": None if training is None else training.last_step,
        "loss": None if training is None else training.last_loss,
        "val_loss": None if training is None else training.val_loss,
        "samples_per_s": None if training is None else training.samples_per_s,
        "step_s": run.step_s,
        "waiting": None if training is None else training.waiting,
        "best_step": run.contents.best_step,
    }


def _verdict_facts(one: ScoreVerdict) -> dict[str, Any]:
    paired = one.paired
    return {
        "difference": one.difference,
        "interval": None if paired is None else [paired.low, paired.high],
        "is_paired": paired is not None,
        "is_shown": paired is not None and paired.is_shown,
        "drawn_from": None if paired is None else paired.units,
        "why_unpaired": one.reason or None,
        "text": str(one),
    }


def _finite(value: float | None) -> float | None:
    from tasks.runs.metrics import finite

    return None if value is None else finite(value)
