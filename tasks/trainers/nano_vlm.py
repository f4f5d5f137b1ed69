"""nanoVLM's `train.py`, read from its HEAD of 2025-10-27. It reads Hugging Face datasets, no tars.

It shows a tqdm bar per epoch and saves `checkpoints/RUN/step_N/model.safetensors`.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence

from tasks.trainers.command import Command
from tasks.trainers.contract import LogLine, Trainer
from tasks.trainers.generic import LINES

OWN_FILES = ("models/vision_language_model.py", "data/advanced_datasets.py")
OWN_LINES = (
    LogLine("step", re.compile(r"Step:? (?P<done>\d+),? Loss: (?P<loss>[^\s,]+)")),
    LogLine("validate", re.compile(r"^Step: \d+, Val Loss: ")),
    LogLine("first_batch", re.compile(r"Warming up dataloaders|Starting training loop")),
)


def _recognises(command: Command) -> bool:
    if command.program != "train.py":
        return False
    folder = command.path(command.script).parent
    return any((folder / file).is_file() for file in OWN_FILES)


def _checkpoints(command: Command) -> Sequence[str]:
    return (f"{glob.escape(str(command.folder))}/checkpoints/*/step_*/model.safetensors",)


NANO_VLM = Trainer(
    name="nanoVLM",
    recognises=_recognises,
    lines=(*OWN_LINES, *LINES),
    checkpoints=_checkpoints,
    must_log_steps=True,
)
