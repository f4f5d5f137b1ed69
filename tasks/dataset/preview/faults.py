"""The faults tab: what verify found, by code, in as many words as a person reads.

A hostile tar may bring any number of findings with names of any length, so all of it is bounded here. Of a
private version only codes and counts get in: names of members and messages may hold what nobody should see.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import NamedTuple

from tasks.core.errors import DataError
from tasks.core.findings import Finding, Report
from tasks.core.quarantine_file import home
from tasks.core.units import count, counted
from tasks.dataset import quarantine
from tasks.dataset.layout import BUILD, MANIFEST, SHARDS
from tasks.dataset.preview.samples import SHOWN_PER_SPLIT, salvage
from tasks.dataset.preview.tiles import Tile, legible, tile_of, without_folder
from tasks.dataset.verify.findings import LEFT, NOT_DECODED, NOT_READ, weight

DATASET = "DATASET"
"""In a command, where nobody says how the dataset is called."""
SHOWN = 20
"""Findings of a code that are shown; the rest are counted."""
MOST_TILES = 24
NAME, TEXT = 120, 300
"""Characters of a name, and of a message."""
FACTS, LINES = 8, 20
"""Of a finding's evidence, and of what was ruled out or not seen, so many are shown."""
CODES_NAMED = 5
"""In a line of the terminal."""
READ: Mapping[str, tuple[str, Sequence[str]]] = {
    "quick": ("tables, sizes, ends and index", (NOT_READ, NOT_DECODED)),
    "default": ("every byte, by its checksum", (NOT_DECODED,)),
    "full": ("every byte, and every member decoded", ()),
}
"""What verify reads at each level, and what it does not, in words that are the same for all data."""

Command = tuple[str, str]
"""A command, and what it does."""


class FaultCode(NamedTuple):
    """A title, what it means for whoever reads the data, and how `This is not …` goes on: what one might
    wrongly take it for."""

    title: str = ""
    means: str = ""
    is_not: str = ""


FAULT_CODES: Mapping[str, FaultCode] = {
    "manifest.invalid": FaultCode(
        "The tables do not hold together",
        "The manifest or a file beside the shards (tables, sizes, build.json) is missing, torn, changed "
        "since the build, or from a newer Tarmac. What it says cannot be relied on.",
        "damage to pictures or texts: the shards may all be whole.",
    ),
    "shard.missing": FaultCode(
        "A shard is not there",
        "A tar that belongs to the dataset is not in its place, and its samples with it.",
        "damage within a file: a copy that stopped, or a file that was moved, is the usual cause.",
    ),
    "shard.extra": FaultCode(
        "There is a shard too many",
        "A tar in the folder does not belong to the version. Programs that take all tars there read it too.",
        "a loss: the dataset's own shards are judged without it.",
    ),
    "shard.truncated": FaultCode(
        "A shard is cut",
        "The tar ends within a member, lacks the blocks that end it, or goes on behind them. Cut between two "
        "members, it looks whole to most readers, and the rest of its samples is silently left out.",
        "a changed byte: what stands before the cut may be as it was.",
    ),
    "shard.checksum": FaultCode(
        "A shard's bytes have changed",
        "The file is not the one that was written: its checksum or size differs, or it stops making sense.",
        "a fault of the raw data, where Tarmac made the shard: it was sound then, and a disk, a copy or a "
        "program has changed it since.",
    ),
    "shard.count": FaultCode(
        "A shard holds a wrong number of samples",
        "The tar has more or fewer samples than the tables say, so an epoch is longer or shorter.",
        "damage: the tar can be read from its first byte to its last.",
    ),
    "index.mismatch": FaultCode(
        "The index does not fit the shards",
        "The index says where each sample lies. It is missing, torn or points elsewhere, so that a reader by "
        "index stops or gets other bytes.",
        "a fault of the shards: programs that read them from front to back do not notice.",
    ),
    "sample.duplicate_key": FaultCode(
        "A key occurs twice",
        "Two samples, or two members of one, have the same name. Readers merge them or drop one; in two "
        "splits, what is held out may have been trained on.",
        "about pictures that look alike: only names are compared.",
    ),
    "sample.split_members": FaultCode(
        "A sample lies in two places",
        "Readers take neighbouring members of one key for a sample. Here others lie between them, so that "
        "two half samples come out.",
        "a loss: all of its members are there.",
    ),
    "sample.missing_member": FaultCode(
        "A sample lacks a member",
        "A part that every sample needs, such as the image or the caption, is not in the shard. Many loaders "
        "drop such a sample without a word.",
        "an empty member, nor one that cannot be read: there is none.",
    ),
    "member.empty": FaultCode(
        "A member holds nothing",
        "A file of no bytes, or a text of nothing but white space: there is nothing to train on.",
        "a missing member: its name is there.",
    ),
    "member.undecodable": FaultCode(
        "A member cannot be decoded",
        "It is torn, or it is not what its name says, such as a web page saved as a picture.",
        "damage on the disk, unless a changed checksum stands beside it: the source was so already.",
    ),
    "member.checksum": FaultCode(
        "A sample's bytes have changed",
        "The checksum (CRC32C) that was taken at the build differs from that of the bytes in the shard.",
        "a fault of the raw data. A changed picture often still decodes: that it shows proves nothing.",
    ),
    "member.unsafe": FaultCode(
        "A member could do harm",
        "A link, a device, a path that leads out of the folder, or a pickle, which runs code when loaded.",
        "harm done: Tarmac neither unpacked nor loaded it. Another program might.",
    ),
}
"""In the order of a page: what explains others stands before them."""


@dataclass(frozen=True)
class Checked:
    """A report of verify, its level and time, and how the user calls the dataset."""

    report: Report
    level: str
    at: float
    dataset: str = DATASET


@dataclass(frozen=True)
class ShownFinding:
    """A finding: where and how it is known, each as (what, text), and what to do. A text that is a sentence
    has no `what`."""

    where: Sequence[tuple[str, str]]
    evidence: Sequence[tuple[str, str]]
    remedy: str
    command: str
    more: int


@dataclass(frozen=True)
class FaultGroup:
    """The findings of one code. `remedy` and `command` are what all that are shown have in common."""

    code: str
    count: int
    shown: Sequence[ShownFinding] = ()

    @property
    def meaning(self) -> FaultCode:
        return FAULT_CODES.get(self.code, FaultCode())

    @property
    def left(self) -> int:
        return self.count - sum(1 + one.more for one in self.shown)

    @property
    def remedy(self) -> str:
        return _common([one.remedy for one in self.shown])

    @property
    def command(self) -> str:
        return _common([one.command for one in self.shown])


@dataclass
class Faults:
    """The whole tab. `ruled_out` are codes and how that is known, `quarantined` samples by code."""

    level: str
    read: str
    at: float
    commands: Sequence[Command] = ()
    groups: Sequence[FaultGroup] = ()
    not_seen: Sequence[str] = ()
    ruled_out: Sequence[tuple[str, str]] = ()
    tiles: Sequence[Tile] = ()
    missing: list[str] = field(default_factory=list)
    quarantined: Mapping[str, int] = field(default_factory=dict)

    @property
    def errors(self) -> int:
        return sum(group.count for group in self.groups)


def faults_of(checked: Checked, version: Path, is_private: bool) -> Faults:
    """The tab without its samples. The folder's path is left out, since a page is passed on: in commands the
    dataset is called what the user calls it."""
    report = checked.report
    read, not_read = READ.get(checked.level, ("", ()))
    ruled_out = ((one.get("code", ""), one.get("evidence", "")) for one in report.ruled_out[:LINES])
    groups = []
    for code, found in _by_code(report.findings):
        shown = [] if is_private else [_shown(finding, checked, version) for finding in found[:SHOWN]]
        groups.append(FaultGroup(code, sum(map(weight, found)), shown))
    faults = Faults(
        checked.level,
        read,
        checked.at,
        commands(checked, version, is_private),
        groups,
        [legible(text, TEXT) for text in (not_read if is_private else report.not_seen)[:LINES]],
        [(legible(code, NAME), "" if is_private else legible(known, TEXT)) for code, known in ruled_out],
    )
    dataset = home(version)
    try:
        entries = quarantine.of_version(version, quarantine.read_quarantine(dataset / quarantine.NAME))
    except DataError as error:
        faults.missing.append(f"What is in quarantine is not known: {without_folder(error, dataset)}.")
    else:
        faults.quarantined = Counter(one.reason if one.reason in FAULT_CODES else "other" for one in entries)
    return faults


def commands(checked: Checked, version: Path, is_private: bool = False) -> Sequence[Command]:
    """What to do about errors, in the order in which to try it; nothing when there are none. Tars that Tarmac
    did not build have no source to be repaired from."""
    if checked.report.ok:
        return ()
    dataset = DATASET if is_private else checked.dataset
    verify = f"tarmac verify {dataset} --full"
    if not is_built(version):
        does = "writes a config that builds a dataset of what is sound in these tars."
        return ((f"tarmac init {dataset}", does), (verify, "names each faulty sample, decoded too."))
    is_decoded = any(found.code == "member.undecodable" for found in checked.report.findings)
    # No other level sees what decoding alone shows.
    repair = f"tarmac repair {dataset} --full" if is_decoded else f"tarmac repair {dataset}"
    return (
        (repair, "makes what is damaged again, to the same bytes, and leaves what is sound as it is."),
        (
            f"{repair} --quarantine",
            "makes training skip the samples whose source is no better.",
        ),
        (f"tarmac versions {dataset}", "lists earlier versions; a sound one can be made current (rollback)."),
        (verify, "says afterwards whether all is well."),
    )


def is_built(folder: Path) -> bool:
    """Whether Tarmac built these tars."""
    return any((folder / name).exists() for name in (MANIFEST, SHARDS, BUILD))


def summary(report: Report) -> str:
    """The faults in a line: `3 faults: shard.missing 1, member.checksum 2`, causes first."""
    numbers = [(code, sum(map(weight, found))) for code, found in _by_code(report.findings)]
    listed = [f"{code} {count(number)}" for code, number in numbers]
    if len(listed) > CODES_NAMED:
        listed[CODES_NAMED:] = [f"and {counted(len(listed) - CODES_NAMED, 'other code')}"]
    return f"{counted(sum(number for _, number in numbers), 'fault')}: {', '.join(listed)}"


def faulty_tiles(version: Path, findings: Sequence[Finding], modality: str) -> list[Tile]:
    """Tiles of the samples that findings name, a few of each code: what is still there of each. No checksum
    is asked, since that is what is wrong with many."""
    chosen = _choose(findings, min(MOST_TILES, SHOWN_PER_SPLIT[modality]))
    tiles: dict[tuple[str, str], Tile] = {}
    for shard in dict.fromkeys(shard for shard, _ in chosen):
        keys = {key for own, key in chosen if own == shard}
        found = salvage(version / shard, keys)
        for key in keys:
            if key in found:
                tile = tile_of(found[key], modality, shard)
            else:
                tile = Tile(legible(key, 80), shard, faults=["nothing of it can be read"])
            tile.codes = chosen[shard, key]
            tiles[shard, key] = tile
    return [tiles[sample] for sample in chosen]


def _choose(findings: Sequence[Finding], most: int) -> dict[tuple[str, str], list[str]]:
    """The codes of at most `most` samples, by shard and key; one of each code in turn, so that all show."""
    codes: dict[tuple[str, str], list[str]] = {}
    queues: dict[str, list[tuple[str, str]]] = {}
    for found in findings:
        shard, key = found.where.get("shard"), found.where.get("key")
        if not isinstance(shard, str) or not isinstance(key, str):
            continue
        known = codes.setdefault((shard, key), [])
        if found.code not in known:
            known.append(found.code)
        queues.setdefault(found.code, []).append((shard, key))
    turns = chain.from_iterable(zip_longest(*queues.values()))
    chosen = dict.fromkeys(sample for sample in turns if sample is not None)
    return {sample: codes[sample] for sample in islice(chosen, most)}


def _by_code(findings: Iterable[Finding]) -> list[tuple[str, list[Finding]]]:
    """In the order of the table of codes, those that it does not know last."""
    found: dict[str, list[Finding]] = {code: [] for code in FAULT_CODES}
    for finding in findings:
        found.setdefault(finding.code, []).append(finding)
    return [(code, same) for code, same in found.items() if same]


def _shown(finding: Finding, checked: Checked, version: Path) -> ShownFinding:
    ours = "|".join(re.escape(shlex.quote(str(one))) for one in (version, home(version)))
    command = re.sub(rf"(?<!\S)({ours})(?!\S)", lambda _: checked.dataset, finding.command or "")
    names_split = not {"shard", "file"}.isdisjoint(finding.where)  # whose names begin with the split
    where = [
        (name, legible(value, NAME))
        for name, value in finding.where.items()
        if value is not None and not (name == "split" and names_split)
    ]
    evidence = [(name, value) for name, value in finding.evidence.items() if name != LEFT]
    facts = [
        (
            "" if name == "problem" else legible(name, NAME).replace("_", " "),
            count(value) if type(value) is int else without_folder(value, version),
        )
        for name, value in evidence[:FACTS]
    ]
    remedy = legible(finding.remedy, TEXT)
    return ShownFinding(where, facts, remedy, legible(command, TEXT), weight(finding) - 1)


def _common(texts: Sequence[str]) -> str:
    return texts[0] if texts and len(set(texts)) == 1 else ""
