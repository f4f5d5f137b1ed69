"""open_clip's trainer of line 4 (its main branch), read from 4.2.0.dev0: which members it takes is an option.

It differs from line 3 in how a sample becomes a pair: `--image-key` and `--text-key` name the members, and
with `--json-text-key` the caption is a field of the `json`. What is logged and saved is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tasks.trainers.command import Command
from tasks.trainers.contract import Rule
from tasks.trainers.open_clip import DATA, DISTRIBUTION, OPEN_CLIP, is_open_clip

READ_FROM = "open_clip_torch 4.2.0.dev0"
_ITS_OWN = ("--image-key", "--text-key", "--json-text-key", "--max-image-pixels", "--length-bucketing")


def _recognises(command: Command) -> bool:
    if not is_open_clip(command):
        return False
    version = command.version(DISTRIBUTION)
    return command.has(*_ITS_OWN) if version is None else int(version.partition(".")[0]) >= 4


def _rules(command: Command) -> Sequence[Rule]:
    images = tuple((command.option("--image-key") or "jpg;png;jpeg;webp").split(";"))
    texts = tuple((command.option("--text-key") or "txt").split(";"))
    if command.has("--json-text-key"):
        texts = ("json",)
    return (Rule("FilterValidSample", DATA, READ_FROM, {"caption": texts, "image": images}),)


OPEN_CLIP_MAIN = replace(
    OPEN_CLIP, name="open_clip main", recognises=_recognises, rules=_rules, webdataset=""
)
