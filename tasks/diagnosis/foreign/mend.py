"""A mended config and a mended command, written out so that they can be run as they are.

The config is one that `tarmac build` takes: the same samples with what they lack made of what they have. The
command is the given one with the flags of all findings, reading what the build will have written.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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

CAPTIONS = ("caption.txt", "text.txt", "caption", "text", "title.txt", "title", "cls.txt")
"""Members that hold a caption where no `txt` does, the likeliest first."""
EMBEDDINGS = (NPZ, PTH)
MOST_SAMPLES = 10_000
"""In a shard of a mended dataset."""
ENOUGH_TARS = 2
"""Per worker, that a mended dataset has at least."""
BEGINS = "# Written by tarmac preflight"


@dataclass(frozen=True)
class MemberOrigin:
    """What a member that samples lack can be made of: a field of `json` or a member, in how many samples."""

    origin: str
    samples: int

    def __str__(self) -> str:
        field = self.origin.removeprefix("json:")
        return f'json "{field}"' if field != self.origin else f"`{field}`"


@dataclass(frozen=True)
class Mended:
    """`members` are made of others, `left_out` those that no mended sample has. `command` is for a shell;
    None where nothing in it changes."""

    config: Path | None
    members: Mapping[str, MemberOrigin]
    command: str | None
    left_out: Sequence[str] = ()


def mend(case: Case, findings: Sequence[Finding], folder: Path) -> Mended:
    """Write the config that the findings ask for into a folder, and make the command that goes with it."""
    members: dict[str, MemberOrigin] = {}
    config, left_out = None, list[str]()
    if any(one.code in ("keys.mismatch", "keys.partial", "json.conflict") for one in findings):
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
    """The one that keeps what the samples have, as teachers' members that this trainer has no need of."""
    is_taught = all(
        all(any(one in kind for one in either) for either in (("syn.json",), ("paug.json",), EMBEDDINGS))
        for kind in case.survey.kinds
    )
    return "reinforced" if case.trainer.needs_reinforcement or is_taught else "image_text"


def _origins(survey: TarSurvey) -> dict[str, MemberOrigin]:
    """What to make the caption and the image of, where samples lack them."""
    kinds = survey.kinds
    having: dict[str, int] = defaultdict(int)
    for kind, count in kinds.items():
        for suffix in kind:
            having[suffix] += count
    found: dict[str, MemberOrigin] = {}
    if not having.get("txt"):
        member = next((one for one in CAPTIONS if having.get(one)), None)
        if member is not None:
            found["txt"] = MemberOrigin(member, having[member])
        elif survey.caption_field is not None:
            field, samples = survey.caption_field
            found["txt"] = MemberOrigin(f"json:{field}", samples)
    if not any(having.get(suffix) for suffix in IMAGES):
        dotted = [one for one in having if "." in one and one.rpartition(".")[2] in IMAGES]
        if dotted:
            best = max(dotted, key=lambda one: having[one])
            found["image"] = MemberOrigin(best, having[best])
    return found


def _write(
    case: Case, members: Mapping[str, MemberOrigin], folder: Path, modality: str, left_out: Sequence[str]
) -> Path:
    path = _free(folder)
    given = case.data.tars or ""
    parts = given.split("::")
    location = given if len(parts) == 1 else f"{{{','.join(parts)}}}"
    name = f"{name_of(parts[0])}-fixed"
    wanted = max(case.workers * ENOUGH_TARS, len(case.survey.locations), 1)
    samples = max(min(case.survey.samples // wanted, MOST_SAMPLES), 1)
    source: dict[str, Any] = {"kind": "shards", "path": location}
    if members:
        source["members"] = {target: one.origin for target, one in members.items()}
    if _keys_repeat(case.survey):
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


def _free(folder: Path) -> Path:
    """`fixed.yaml`, or `fixed-2.yaml` where the first is somebody's own."""
    number = 1
    while True:
        path = folder / ("fixed.yaml" if number == 1 else f"fixed-{number}.yaml")
        if not path.exists() or path.read_text(errors="replace").startswith(BEGINS):
            return path
        number += 1


def _keys_repeat(survey: TarSurvey) -> bool:
    """Whether tars number their samples anew, so that keys come again."""
    tars = defaultdict(set)
    for examples in survey.examples.values():
        for one in examples:
            tars[one.key].add(one.tar)
    return any(len(its) > 1 for its in tars.values())


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
    """The words with an option set; a value of None is an option without one."""
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
