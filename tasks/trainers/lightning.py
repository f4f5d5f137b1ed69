"""Trainings by PyTorch Lightning, whose scripts are everybody's own: known by what the script imports.

Its progress bar is the same in all of them, and so is where checkpoints lie unless the script says otherwise.
What it reads is the script's business, so there are no data rules.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence

from tasks.trainers.command import Command
from tasks.trainers.contract import LogLine, Trainer
from tasks.trainers.generic import LINES

_IMPORT = re.compile(r"^\s*(?:import|from) (?:lightning|pytorch_lightning)\b", re.MULTILINE)
OWN_LINES = (
    LogLine("validate", re.compile(r"(?:Sanity Checking|Validation)(?: DataLoader \d+)?: ")),
    LogLine(
        "step",
        re.compile(
            r"Epoch (?P<epoch>\d+):\s+\d+%\|[^|]*\|\s*(?P<done>\d+)/(?P<total>\d+)"
            r"(?:.*?\b(?:train_)?loss(?:_step)?=(?P<loss>[^\s,\]]+))?"
        ),
    ),
)


def _recognises(command: Command) -> bool:
    return bool(_IMPORT.search(command.text))


def _checkpoints(command: Command) -> Sequence[str]:
    folder = glob.escape(str(command.folder))
    return (f"{folder}/lightning_logs/version_*/checkpoints/*.ckpt", f"{folder}/checkpoints/*.ckpt")


LIGHTNING = Trainer(
    name="Lightning",
    recognises=_recognises,
    lines=(*OWN_LINES, *LINES),
    checkpoints=_checkpoints,
)
