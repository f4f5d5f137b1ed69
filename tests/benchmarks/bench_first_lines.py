"""Seconds until each command shows its first line on a terminal, until its end, and of the processor.

The project is the example of the digits, as a new user has it after the README's first page: built, with a run of
a few steps. Commands that need something else (a server, a hub, another trainer) are left out.
`python -m tests.benchmarks.bench_first_lines` prints the medians.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.conftest import ROOT
from tests.flows.terminal import TerminalSession, on_terminal

TIMES = 5
CONFIG = "configs/digits-clip.yaml"
FEW = ["--set", "train.steps=20", "--set", "train.checkpoint_every=20", "--set", "evaluate.every=20"]
BEGIN: Sequence[Sequence[str]] = (["example", "digits"], ["run", CONFIG, *FEW])
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
    ["run", CONFIG, *FEW],
    ["evaluate", "digits-clip"],
    ["verify", "data/digits"],
    ["look", "data/digits"],
    ["versions", "data/digits"],
    ["status"],
    ["logs", "digits-clip"],
    ["gather", "digits-clip"],
    ["report", "digits-clip"],
    ["compare", "digits-clip", "digits-clip"],
    ["preflight", CONFIG],
    ["doctor", "--run", "digits-clip"],
)


def main(only: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        shutil.copytree(ROOT / "configs", folder / "configs")
        for words in BEGIN:
            begun = on_terminal(words, folder)
            assert begun.code == 0, begun.text
        print(f"{'command':<34} {'first line':>10} {'gap':>7} {'end':>7} {'CPU':>7}   s, medians of {TIMES}")
        for words in COMMANDS:
            if not only or words[0] in only:
                print(_row(words, [_once(words, folder) for _ in range(TIMES)]), flush=True)


def _once(words: Sequence[str], folder: Path) -> TerminalSession:
    (folder / "new.yaml").unlink(missing_ok=True)
    return on_terminal(words, folder)


def _row(words: Sequence[str], seen: Sequence[TerminalSession]) -> str:
    figures = ("first_s", "longest_gap_s", "seconds", "cpu_s")
    first, *others = (statistics.median(getattr(one, name) for one in seen) for name in figures)
    code = "" if not seen[-1].code else f"  exit code {seen[-1].code}"
    shown = " ".join(words)[:34]
    return f"{shown:<34} {first:>10.2f} {' '.join(f'{value:>7.2f}' for value in others)}{code}"


if __name__ == "__main__":
    main(sys.argv[1:])
