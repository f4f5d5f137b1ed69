"""Seconds until each command shows its first line on a terminal, until its end, and of the processor.

The project is the example of the digits, as a new user has it after the README's first page: built, with two runs
of a few steps. Commands that need something else (a server, a hub, another trainer) are left out.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from tests.benchmarks.bench_operating import SHORTLY
from tests.benchmarks.harness import Benchmark, Case, Column, Failed, Row, Setup
from tests.conftest import ROOT
from tests.flows.terminal import on_terminal

CONFIG = "configs/digits-clip.yaml"
RUN = ("run", CONFIG, *SHORTLY, "--set", "track.mode=offline")
BEGIN: Sequence[Sequence[str]] = (
    ["example", "digits"],
    RUN,
    [*RUN, "--set", "name=again"],
)
COMMANDS: Sequence[Sequence[str]] = (
    ["--help"],
    ["example", "digits"],
    ["init", "data/raw/digits", "--out", "new.yaml"],
    ["plan", CONFIG],
    ["schema"],
    ["explain", "dataset.splits"],
    ["fetch", CONFIG],
    ["build", CONFIG],
    ["build", CONFIG, "--rehash"],
    RUN,
    ["evaluate", "digits-clip"],
    ["verify", "data/digits"],
    ["look", "data/digits"],
    ["versions", "data/digits"],
    ["status"],
    ["logs", "digits-clip"],
    ["gather", "digits-clip"],
    ["report", "digits-clip"],
    ["compare", "digits-clip", "again"],
    ["preflight", CONFIG],
    ["doctor", "--run", "digits-clip"],
)


def typed(words: Sequence[str], folder: Path) -> Row:
    (folder / "new.yaml").unlink(missing_ok=True)
    seen = on_terminal(words, folder)
    if seen.code:
        raise Failed(f"tarmac {' '.join(words)} ended with {seen.code}: {seen.text}")
    return {"first_s": seen.first_s, "gap_s": seen.longest_gap_s, "s": seen.seconds, "cpu_s": seen.cpu_s}


def named(words: Sequence[str]) -> str:
    return f"`{' '.join(words).partition(' --set ')[0]}`"


def cases(setup: Setup) -> Iterator[Case]:
    folder = setup.new_folder()
    shutil.copytree(ROOT / "configs", folder / "configs")
    for words in setup.sized(BEGIN, BEGIN[:1]):
        typed(words, folder)
    some = setup.sized(COMMANDS, COMMANDS[:5])
    yield Case("the digits", {named(words): partial(typed, words, folder) for words in some})


BENCHMARKS = (
    Benchmark(
        "first_lines",
        "Commands on a terminal",
        "From the start of each command on a terminal to its first line, the longest pause between two lines, the end, "
        "and the time of the CPU, in the project of the example.",
        cases,
        (
            Column("first_s", "s to the first line", ".2f"),
            Column("gap_s", "longest pause, s", ".2f"),
            Column("s", "s in all", ".2f"),
            Column("cpu_s", "s of CPU", ".2f"),
        ),
    ),
)
