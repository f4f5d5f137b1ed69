"""The faults tab: verify's findings by code, in as many words as a person reads.

A hostile tar may cause any number of findings with names of any length, so everything is limited here. For a
private version only codes and counts are shown, because member names and messages may hold private text.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import NamedTuple

from tasks.core.errors import DataError
from tasks.core.findings import Finding, Report
from tasks.core.quarantine_file import home
from tasks.core.units import count, counted
from tasks.dataset.preview.samples import SHOWN_PER_SPLIT
from tasks.dataset.preview.tiles import Tile, legible, tile_of, without_folder
from tasks.dataset.sample_reader import salvage
from tasks.dataset.verify.findings import LEFT, NOT_DECODED, NOT_READ, weight
from tasks.dataset.version import quarantine
from tasks.dataset.version.layout import BUILD, MANIFEST, SHARDS

DATASET = "DATASET"
"""Stands for the dataset in commands if its name is not known."""
SHOWN = 20
"""Findings shown per code; the rest are counted."""
MOST_TILES = 24
NAME, TEXT = 120, 300
"""The most characters of a name, and of a message."""
FACTS, LINES = 8, 20
"""The most items of a finding's evidence, and of what was ruled out or not seen."""
CODES_NAMED = 5
"""The most codes in a line of the terminal."""
READ: Mapping[str, tuple[str, Sequence[str]]] = {
    "quick": ("tables, sizes, ends and index", (NOT_READ, NOT_DECODED)),
    "default": ("every byte, by its checksum", (NOT_DECODED,)),
    "full": ("every byte, and every member decoded", ()),
}
"""What verify reads at each level, and what it does not."""

Command = tuple[str, str]
"""A command, and what it does."""


class FaultCode(NamedTuple):
    """A title, what the fault means for readers of the data, and what it could be mistaken for: the rest of a
    sentence that begins with `This is not`."""

    title: str = ""
    means: str = ""
    is_not: str = ""


FAULT_CODES: Mapping[str, FaultCode] = {
    "manifest.invalid": FaultCode(
        "The tables do not hold together",
        "The manifest or a file beside the shards (tables, sizes, build.json) is missing, torn, changed "
        "since the build, or from a newer Tarmac. Its content cannot be relied on.",
        "damage to pictures or texts: the shards may all be whole.",
    ),
    "shard.missing": FaultCode(
        "A shard is missing",
        "A tar of the dataset is not in its place, so its samples are missing too.",
        "damage within a file: the usual cause is a copy that stopped or a file that was moved.",
    ),
    "shard.extra": FaultCode(
        "There is an extra shard",
        "A tar in the folder does not belong to the version. Programs that read all tars there read it too.",
        "a loss: the dataset's own shards are judged without it.",
    ),
    "shard.truncated": FaultCode(
        "A shard is cut",
        "The tar ends within a member, lacks its end blocks, or continues after them. If it is cut between "
        "two members, it looks complete to most readers, which silently skip the rest of its samples.",
        "a changed byte: everything before the cut may be intact.",
    ),
    "shard.checksum": FaultCode(
        "A shard's bytes have changed",
        "The file is not the one that was written: its checksum or size differs, or it cannot be parsed.",
        "a fault of the raw data, where Tarmac made the shard: it was sound then, and a disk, a copy or a "
        "program has changed it since.",
    ),
    "shard.count": FaultCode(
        "A shard holds a wrong number of samples",
        "The tar has more or fewer samples than the tables record, so an epoch is longer or shorter.",
        "damage: the tar can be read from its first byte to its last.",
    ),
    "index.mismatch": FaultCode(
        "The index does not fit the shards",
        "The index records where each sample lies. It is missing, torn or points elsewhere, so a reader that "
        "uses it stops or gets other bytes.",
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
        "Readers take adjacent members of one key for a sample. Here other members lie between them, so that "
        "readers get two half samples.",
        "a loss: all of its members exist.",
    ),
    "sample.missing_member": FaultCode(
        "A sample lacks a member",
        "A part that every sample needs, such as the image or the caption, is not in the shard. Many loaders "
        "silently drop such a sample.",
        "an empty or unreadable member: the member does not exist.",
    ),
    "member.empty": FaultCode(
        "A member is empty",
        "A file without bytes, or a text of white space only: there is nothing to train on.",
        "a missing member: the member exists.",
    ),
    "member.undecodable": FaultCode(
        "A member cannot be decoded",
        "It is torn, or its content does not match its name, such as a web page saved as a picture.",
        "damage on the disk, unless its checksum has changed as well: the source was already like this.",
    ),
    "member.checksum": FaultCode(
        "A sample's bytes have changed",
        "The checksum (CRC32C) of the bytes in the shard differs from the one recorded at the build.",
        "a fault of the raw data. A changed picture often still decodes, so seeing it proves nothing.",
    ),
    "member.unsafe": FaultCode(
        "A member could do harm",
        "A link, a device, a path that leads out of the folder, or a pickle, which runs code when loaded.",
        "harm done: Tarmac neither unpacked nor loaded it. Another program might.",
    ),
}
"""The codes in the order of the page: causes come before their effects."""


@dataclass(frozen=True)
class Checked:
    """A report of verify, its level and time, and the user's name for the dataset."""

    report: Report
    level: str
    at: float
    dataset: str = DATASET


@dataclass(frozen=True)
class ShownFinding:
    """A finding: its place and evidence, each as (name, text), and what to do. A text that is a sentence has
    an empty name."""

    where: Sequence[tuple[str, str]]
    evidence: Sequence[tuple[str, str]]
    remedy: str
    command: str
    more: int


@dataclass(frozen=True)
class FaultGroup:
    """The findings of one code. `remedy` and `command` are set if all shown findings share them."""

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
    """The whole tab. `ruled_out` holds codes with the evidence against them, `quarantined` counts samples by
    code."""

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
    """Return the tab without its samples. Pages are passed on, so the folder's path is left out, and commands
    use the user's name for the dataset."""
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
        faults.missing.append(f"The quarantine cannot be read: {without_folder(error, dataset)}.")
    else:
        faults.quarantined = Counter(one.reason if one.reason in FAULT_CODES else "other" for one in entries)
    return faults


def commands(checked: Checked, version: Path, is_private: bool = False) -> Sequence[Command]:
    """Return the commands against errors, in the order in which to try them; none if there are no errors.
    Tars that Tarmac did not build have no source to be repaired from."""
    if checked.report.ok:
        return ()
    dataset = DATASET if is_private else checked.dataset
    verify = f"tarmac verify {dataset} --full"
    if not is_built(version):
        does = "writes a config that builds a dataset from the sound samples of these tars."
        return (
            (f"tarmac init {dataset}", does),
            (verify, "decodes all members and names each faulty sample."),
        )
    is_decoded = any(found.code == "member.undecodable" for found in checked.report.findings)
    # only level full finds what decoding alone shows
    repair = f"tarmac repair {dataset} --full" if is_decoded else f"tarmac repair {dataset}"
    return (
        (repair, "makes damaged files again, to the same bytes, and leaves sound ones as they are."),
        (f"{repair} --quarantine", "makes training skip the samples whose source is damaged too."),
        (f"tarmac versions {dataset}", "lists earlier versions; a sound one can be made current (rollback)."),
        (verify, "checks afterwards that everything is sound."),
    )


def is_built(folder: Path) -> bool:
    """Whether Tarmac built these tars."""
    return any((folder / name).exists() for name in (MANIFEST, SHARDS, BUILD))


def summary(report: Report) -> str:
    """Return the faults in one line, causes first: `3 faults: shard.missing 1, member.checksum 2`."""
    numbers = [(code, sum(map(weight, found))) for code, found in _by_code(report.findings)]
    listed = [f"{code} {count(number)}" for code, number in numbers]
    if len(listed) > CODES_NAMED:
        listed[CODES_NAMED:] = [f"and {counted(len(listed) - CODES_NAMED, 'other code')}"]
    return f"{counted(sum(number for _, number in numbers), 'fault')}: {', '.join(listed)}"


def faulty_tiles(version: Path, findings: Sequence[Finding], modality: str) -> list[Tile]:
    """Return tiles with what is left of the samples that findings name, a few of each code. Checksums are not
    compared, because they are what is wrong with many."""
    chosen = _choose(findings, min(MOST_TILES, SHOWN_PER_SPLIT[modality]))
    tiles: dict[tuple[str, str], Tile] = {}
    for shard in dict.fromkeys(shard for shard, _ in chosen):
        keys = {key for own, key in chosen if own == shard}
        found = {key: tile_of(one, modality, shard) for key, one in salvage(version / shard, keys).items()}
        for key in keys:
            lost = Tile(legible(key, 80), shard, faults=["nothing of it can be read"])
            tiles[shard, key] = replace(found.get(key, lost), codes=chosen[shard, key])
    return [tiles[sample] for sample in chosen]


def _choose(findings: Sequence[Finding], most: int) -> dict[tuple[str, str], list[str]]:
    """Return the codes of at most `most` samples, by shard and key, with samples of each code in turn."""
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
    """Group findings by code, in the order of FAULT_CODES, unknown codes last."""
    found: dict[str, list[Finding]] = {code: [] for code in FAULT_CODES}
    for finding in findings:
        found.setdefault(finding.code, []).append(finding)
    return [(code, same) for code, same in found.items() if same]


def _shown(finding: Finding, checked: Checked, version: Path) -> ShownFinding:
    ours = "|".join(re.escape(shlex.quote(str(one))) for one in (version, home(version)))
    command = re.sub(rf"(?<!\S)({ours})(?!\S)", lambda _: checked.dataset, finding.command or "")
    names_split = not {"shard", "file"}.isdisjoint(finding.where)  # their names begin with the split
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
