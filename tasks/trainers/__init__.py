"""The table of trainers, Tarmac's own and others.

A trainer that is known by its command, its log lines and its checkpoints is a row here. One that also has
rules about its data gets a module, as open_clip has.
"""

from __future__ import annotations

import glob
import re

from tasks.trainers.command import Command
from tasks.trainers.contract import LogLine, Phase, Trainer
from tasks.trainers.open_clip import MOBILECLIP, OPEN_CLIP, OPEN_CLIP_MAIN

_LIGHTNING_IMPORT = re.compile(r"^\s*(?:import|from) (?:lightning|pytorch_lightning)\b", re.MULTILINE)
_NANO_VLM_FILES = ("models/vision_language_model.py", "data/advanced_datasets.py")


def _is_tarmac(command: Command) -> bool:
    starts = command.module == "flows.cli" or command.program == "tarmac"
    return command.module == "tasks.training.rank" or (
        starts and command.arguments[:1] in (("run",), ("train",))
    )


def _is_nano_vlm(command: Command) -> bool:
    folder = command.path(command.script).parent
    return command.program == "train.py" and any((folder / file).is_file() for file in _NANO_VLM_FILES)


def _below_folder(command: Command, *patterns: str) -> tuple[str, ...]:
    return tuple(f"{glob.escape(str(command.folder))}/{pattern}" for pattern in patterns)


_COUNT = r"[ :=#\[(]+\s*(?P<done>\d[\d,]*)(?:\s*(?:/|of)\s*(?P<total>\d[\d,]*))?"
_LOSS = r"(?:.*?\bloss\b['\"]?[ :=]+(?P<loss>[-+]?(?:\d[\d.]*(?:e[-+]?\d+)?|nan|inf)))?"
_PATTERNS: tuple[tuple[Phase, str], ...] = (
    ("validate", r"(?:eval|valid)\w*\b[^|]*\|[^|]*\|\s*(?P<done>\d+)/(?P<total>\d+) \["),
    ("step", r"\d+%\|[^|]*\|\s*(?P<done>\d+)/(?P<total>\d+) \[" + _LOSS),
    ("step", r"\b(?P<done>\d+)it \[\d+:\d\d"),
    ("step", r"^(?!\s*wandb: ).*?\b(?:global[_ ])?(?:step|iter|iteration|batch|update)s?" + _COUNT + _LOSS),
)
_LINES = tuple(LogLine(phase, re.compile(pattern, re.IGNORECASE)) for phase, pattern in _PATTERNS)
"""The lines of any training: tqdm bars and counts of steps.

A count is progress where a word for a step stands before it. An epoch alone is not: many trainings print it
once before the wait for the first batch. Lines of wandb are about its uploads.
"""

TARMAC = Trainer(
    name="tarmac",
    recognises=_is_tarmac,
    lines=(LogLine("step", re.compile(r"\btrain\s+(?P<done>[\d,]+)\s*/\s*(?P<total>[\d,]+) steps")),),
)
"""Tarmac's own training. Its ranks write their phases into the run folder, which is more exact than a log."""

NANO_VLM = Trainer(
    name="nanoVLM",
    recognises=_is_nano_vlm,
    lines=(
        LogLine("step", re.compile(r"Step:? (?P<done>\d+),? Loss: (?P<loss>[^\s,]+)")),
        LogLine("validate", re.compile(r"^Step: \d+, Val Loss: ")),
        LogLine("first_batch", re.compile(r"Warming up dataloaders|Starting training loop")),
        *_LINES,
    ),
    checkpoints=lambda command: _below_folder(command, "checkpoints/*/step_*/model.safetensors"),
    must_log_steps=True,
)
"""nanoVLM's `train.py`, read from its HEAD of 2025-10-27. It reads Hugging Face datasets, no tars."""

LIGHTNING = Trainer(
    name="Lightning",
    recognises=lambda command: bool(_LIGHTNING_IMPORT.search(command.text)),
    lines=(
        LogLine("validate", re.compile(r"(?:Sanity Checking|Validation)(?: DataLoader \d+)?: ")),
        LogLine(
            "step",
            re.compile(
                r"Epoch (?P<epoch>\d+):\s+\d+%\|[^|]*\|\s*(?P<done>\d+)/(?P<total>\d+)"
                r"(?:.*?\b(?:train_)?loss(?:_step)?=(?P<loss>[^\s,\]]+))?"
            ),
        ),
        *_LINES,
    ),
    checkpoints=lambda command: _below_folder(
        command, "lightning_logs/version_*/checkpoints/*.ckpt", "checkpoints/*.ckpt"
    ),
)
"""Trainings by PyTorch Lightning, recognised by what the user's own script imports.

The progress bar is the same in all of them, and so is the checkpoints' folder unless the script names
another. The script decides what it reads, so there are no data rules.
"""

GENERIC = Trainer(name="generic", recognises=lambda command: True, lines=_LINES)
"""Any training of which nothing is known but that it writes lines."""

TRAINERS = (TARMAC, MOBILECLIP, OPEN_CLIP_MAIN, OPEN_CLIP, NANO_VLM, LIGHTNING, GENERIC)
"""A command belongs to the first trainer that recognises it; the last one recognises every command."""

_BY_NAME = {
    "open_clip": OPEN_CLIP,
    "mobileclip": MOBILECLIP,
    "nano_vlm": NANO_VLM,
    "lightning": LIGHTNING,
    "generic": GENERIC,
}
"""The trainers by the names that a config uses."""


def recognise(command: Command, name: str | None = None) -> Trainer:
    """Return the trainer that a command starts: the one that the config names, if any, else the first that
    recognises the command, else GENERIC."""
    if name is not None:
        return _BY_NAME[name]
    return next(trainer for trainer in TRAINERS if trainer.recognises(command))
