"""Tarmac's own training. Its ranks write their phases into the run folder, which say more than a log."""

from __future__ import annotations

import re

from tasks.trainers.command import Command
from tasks.trainers.contract import LogLine, Trainer

RANK = "tasks.training.rank"
LINES = (LogLine("step", re.compile(r"\btrain\s+(?P<done>[\d,]+)\s*/\s*(?P<total>[\d,]+) steps")),)


def _recognises(command: Command) -> bool:
    if command.module == RANK:
        return True
    starts = command.module == "flows.cli" or command.program == "tarmac"
    return starts and command.arguments[:1] in (("run",), ("train",))


TARMAC = Trainer(name="tarmac", recognises=_recognises, lines=LINES, must_log_steps=False)
