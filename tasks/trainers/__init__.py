"""What is known of each trainer, ours and others': adding one is a file and a line in TRAINERS."""

from __future__ import annotations

from collections.abc import Mapping

from tasks.trainers.command import Command
from tasks.trainers.contract import Trainer
from tasks.trainers.generic import GENERIC
from tasks.trainers.lightning import LIGHTNING
from tasks.trainers.mobileclip import MOBILECLIP
from tasks.trainers.nano_vlm import NANO_VLM
from tasks.trainers.open_clip import OPEN_CLIP
from tasks.trainers.open_clip_main import OPEN_CLIP_MAIN
from tasks.trainers.tarmac import TARMAC

TRAINERS: tuple[Trainer, ...] = (
    TARMAC,
    MOBILECLIP,
    OPEN_CLIP_MAIN,
    OPEN_CLIP,
    NANO_VLM,
    LIGHTNING,
    GENERIC,
)
"""The first that recognises a command has it; the last recognises every one."""


NAMED: Mapping[str, Trainer] = {
    "open_clip": OPEN_CLIP,
    "mobileclip": MOBILECLIP,
    "nano_vlm": NANO_VLM,
    "lightning": LIGHTNING,
    "generic": GENERIC,
}
"""As a config names them."""


def recognise(command: Command, name: str | None = None) -> Trainer:
    """The trainer that a command starts, `name` where a config names it; GENERIC where it is none that is
    known."""
    if name is not None:
        return NAMED[name]
    return next(trainer for trainer in TRAINERS if trainer.recognises(command))
