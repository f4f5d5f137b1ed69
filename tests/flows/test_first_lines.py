"""On a terminal each command says at once what it is about to do, and shows a sign of life while it works.

The work is an import that takes long, as from the disk of a busy file server.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flows.cli import NAMES
from tests.conftest import ROOT
from tests.flows.terminal import on_terminal

SLOW_S = 7.0
FIRST_S = 2.0
"""Generous: the first line comes after a fifth of this on an idle machine."""
GAP_S = 5.0
SLOW = f"""
import importlib.abc, sys, time


class SlowImport(importlib.abc.MetaPathFinder):
    known = ("flows.cli", "flows.commands", "tasks.core", "tasks.export")

    def find_spec(self, name, path=None, target=None):
        ours = name.startswith(("flows.", "tasks.")) and name not in ("tasks.core", "tasks.core.errors")
        if ours and not name.startswith(self.known) or name in ("tasks.core.config", "tasks.core.lock"):
            sys.meta_path.remove(self)
            time.sleep({SLOW_S})


sys.meta_path.insert(0, SlowImport())
"""
WORDS = {
    "example": ["digits", "there"],
    "init": ["there"],
    "schema": [],
    "status": [],
    "deploy": ["--write", "x.yaml"],
    "up": ["--backup", "x.db"],
    "doctor": ["--log", "there"],
    "watch": ["--", "true"],
    "export": ["there", "--to", "open_clip"],
    "index": ["there", "here"],
    "forget": ["there", "--yes"],
}
"""What a command is given; `there`, which is nothing that it can use, unless it stands here."""
DAILY = ("plan", "status")


def commands() -> list[object]:
    return [name if name in DAILY else pytest.param(name, marks=pytest.mark.proof) for name in NAMES]


@pytest.mark.parametrize("name", commands())
def test_nobody_waits_without_a_word(name: str, tmp_path: Path) -> None:
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow/sitecustomize.py").write_text(SLOW)
    (tmp_path / "there").mkdir()
    paths = f"{tmp_path / 'slow'}:{ROOT}"
    shown = on_terminal([name, *WORDS.get(name, ["there"])], tmp_path, {"PYTHONPATH": paths})
    assert shown.seconds > SLOW_S, f"nothing was slow: {shown.text}"
    assert shown.first_s < FIRST_S
    assert re.match(r"\r\x1b\[K  [a-z][^\n]+…", shown.text), shown.text[:200]
    assert shown.longest_gap_s < GAP_S
    assert re.search(r"… [3-6]\u202fs\r", shown.text), "a clock shows how long it takes"
    assert "Traceback" not in shown.text
    assert not shown.text.endswith("\r"), "what is waited for is gone when the answer comes"
