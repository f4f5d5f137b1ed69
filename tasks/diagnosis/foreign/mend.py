"""Writes a mended config and a mended command that can be run as they are.

`tarmac build` turns the config into a dataset with the same samples, in which members that are missing are
made from others. The command is the given one with the flags of all findings, reading what the build will
have written.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from tasks.core.files import write_atomic
from tasks.core.findings import Finding
from tasks.dataset.formats.images import SUFFIXES as IMAGES
from tasks.dataset.init.config_text import flow
from tasks.dataset.init.survey import name_of
from tasks.dataset.modalities.reinforced import ADDED, NPZ, PTH
from tasks.diagnosis.foreign.case import Case
from tasks.diagnosis.foreign.survey import TarSurvey

REBUILT = ("keys.mismatch", "keys.partial", "json.conflict")
"""The findings that a build of the same samples mends."""
CAPTIONS = ("caption.txt", "text.txt", "caption", "text", "title.txt", "title", "cls.txt")
"""Members that hold a caption where no `txt` does, the likeliest first."""
MOST_SAMPLES = 10_000
"""The most samples in a shard of a mended dataset."""
ENOUGH_TARS = 2
"""The fewest tars per worker in a mended dataset."""
BEGINS = "# Written by tarmac preflight"


@dataclass(frozen=True)
class MemberOrigin:
    """The field of `json` or the member that replaces a missing one, and how many samples have it."""

    origin: str
    samples: int

    def __str__(self) -> str:
        field = self.origin.removeprefix("json:")
        return f'json "{field}"' if field != self.origin else f"`{field}`"


@dataclass(frozen=True)
class Mended:
    """`members` are made from others, and no mended sample has the members `left_out`. `command` is for a
    shell; it is None where nothing in it changes."""

    config: Path | None
    members: Mapping[str, MemberOrigin]
    command: str | None
    left_out: Sequence[str] = ()

    def finding(self, one: Finding, folder: Path) -> Finding:
        """Return the finding with the command that mends it, where a config was written for it."""
        if self.config is None or one.code not in REBUILT:
            return one
        made = ", ".join(f"{target} ← {origin}" for target, origin in self.members.items())
        have = "; ".join(f"present in {origin.samples:,}" for origin in self.members.values())
        about = f"   (written; {made}, {have})" if made else "   (written)"
        about += f"; it leaves out {', '.join(self.left_out)}" if self.left_out else ""
        command = f"tarmac build {os.path.relpath(self.config, folder)}"
        return replace(one, command=command, remedy=f"{command}{about}")


def mend(case: Case, findings: Sequence[Finding], folder: Path) -> Mended:
    """Write the config that the findings ask for into a folder; return it with the command that uses it."""
    members: dict[str, MemberOrigin] = {}
    config, left_out = None, list[str]()
    if any(one.code in REBUILT for one in findings):
        members = _origins(case.survey)
        has = {suffix for kind in case.survey.kinds for suffix in kind}
        if ("txt" in members or "txt" in has) and ("image" in members or has & set(IMAGES)):
            modality = _modality(case)
            kept = {*IMAGES, "txt", "json", *(ADDED if modality == "reinforced" else ())}
            left_out = sorted(has - kept - {one.origin for one in members.values()})
            config = _write(case, members, folder, modality, left_out)
    flags = {name: value for one in findings for name, value in (one.flags or {}).items()}
    if config is not None:
        for name in ("--workers", "--dataset-resampled", case.data.samples_option):
            flags.pop(name, None)
    command = _command(case, flags, config) if flags or config is not None else None
    return Mended(config, members, command, left_out)


def _modality(case: Case) -> str:
    """Return the modality that keeps what the samples have, even members that the trainer ignores."""
    taught = (("syn.json",), ("paug.json",), (NPZ, PTH))
    is_taught = all(any(one in kind for one in either) for kind in case.survey.kinds for either in taught)
    return "reinforced" if case.trainer.needs_reinforcement or is_taught else "image_text"


def _origins(survey: TarSurvey) -> dict[str, MemberOrigin]:
    """Return what replaces the caption and the image where samples lack them."""
    having = Counter[str]()
    for kind, samples in survey.kinds.items():
        having.update(dict.fromkeys(kind, samples))
    found: dict[str, MemberOrigin] = {}
    if not having["txt"]:
        member = next((one for one in CAPTIONS if having[one]), None)
        if member is not None:
            found["txt"] = MemberOrigin(member, having[member])
        elif survey.caption_field is not None:
            field, samples = survey.caption_field
            found["txt"] = MemberOrigin(f"json:{field}", samples)
    if not any(having[suffix] for suffix in IMAGES):
        dotted = [one for one in having if "." in one and one.rpartition(".")[2] in IMAGES]
        if dotted:
            best = max(dotted, key=lambda one: having[one])
            found["image"] = MemberOrigin(best, having[best])
    return found


def _write(
    case: Case, members: Mapping[str, MemberOrigin], folder: Path, modality: str, left_out: Sequence[str]
) -> Path:
    paths = (folder / ("fixed.yaml" if number == 1 else f"fixed-{number}.yaml") for number in count(1))
    path = next(
        one for one in paths if not one.exists() or one.read_text(errors="replace").startswith(BEGINS)
    )
    given = case.data.tars or ""
    parts = given.split("::")
    name = f"{name_of(parts[0])}-fixed"
    wanted = max(case.workers * ENOUGH_TARS, len(case.survey.locations), 1)
    samples = max(min(case.survey.samples // wanted, MOST_SAMPLES), 1)
    source: dict[str, Any] = {"kind": "shards", "path": given}
    if len(parts) > 1:
        source["path"] = f"{{{','.join(parts)}}}"
    if members:
        source["members"] = {target: one.origin for target, one in members.items()}
    of_tars = {(one.key, one.tar) for examples in case.survey.examples.values() for one in examples}
    if len({key for key, _ in of_tars}) < len(of_tars):  # tars number their samples anew, so keys repeat
        source["key"] = "place"
    less = f"# They leave out {', '.join(left_out)}: modality {modality} has no such member."
    lines = [
        f"{BEGINS}: the same samples with what {case.trainer.name} needs of each.",
        *([less] if left_out else []),
        f"name: {flow(name)}",
        "dataset:",
        f"  output: {flow(f'data/{name}')}",
        f"  modality: {modality}",
        f"  source: {flow(source)}",
        f"  shard: {flow({'samples': samples})}",
        "  splits: {}",
    ]
    write_atomic(path, "\n".join(lines) + "\n")
    return path


def _command(case: Case, flags: Mapping[str, Any], config: Path | None) -> str:
    words = [shlex.quote(word) for word in case.command.words]
    if config is not None:
        output = f"data/{name_of((case.data.tars or '').split('::')[0])}-fixed/current/train/*.tar"
        # The trainer takes a list that is joined by `::`, and the shell knows how many shards there are.
        words = _with(words, "--train-data", f"\"$(echo {output} | sed 's/ /::/g')\"")
        words = _without(words, case.data.samples_option)
    for name, value in flags.items():
        words = _with(words, name, None if value is True else str(value))
    return " ".join(words)


def _with(words: Sequence[str], option: str, value: str | None) -> list[str]:
    """Return the words with an option set; a value of None stands for an option that takes none."""
    return [*_without(words, option, value is not None), option, *([] if value is None else [value])]


def _without(words: Sequence[str], option: str, takes_value: bool = True) -> list[str]:
    left: list[str] = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word == option:
            skip = takes_value
        elif not word.startswith(f"{option}="):
            left.append(word)
    return left
