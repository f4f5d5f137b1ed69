"""MobileCLIP's fork of open_clip, a patch for commit 7260a46 (2025-03-17) that trains on reinforced shards.

Its pipeline is that of open_clip 3, and a sample also brings what its teachers said of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tasks.trainers.command import Command
from tasks.trainers.contract import Assignment, Rule
from tasks.trainers.open_clip import DATA, IMAGES, OPEN_CLIP, is_open_clip, options

READ_FROM = "ml-mobileclip's patch of open_clip 7260a46"


def _recognises(command: Command) -> bool:
    return is_open_clip(command) and command.has("--dataset-reinforcement")


def _rules(command: Command) -> Sequence[Rule]:
    needs = {
        "caption": ("txt",),
        "image": IMAGES,
        "augmentations": ("paug.json",),
        "synthetic captions": ("syn.json",),
        "teacher embeddings": ("npz", "pth.gz"),
    }
    return (Rule("filter_no_caption_or_no_image", DATA, READ_FROM, needs),)


def _options(given: Assignment) -> Mapping[str, str]:
    """Without held-out tars: what the fork makes of reinforced samples, its own validation does not take."""
    told = {name: value for name, value in options(given).items() if not name.startswith("--val-")}
    return {**told, "--dataset-reinforcement": ""}


MOBILECLIP = replace(
    OPEN_CLIP,
    name="MobileCLIP",
    recognises=_recognises,
    rules=_rules,
    options=_options,
    needs_reinforcement=True,
)
