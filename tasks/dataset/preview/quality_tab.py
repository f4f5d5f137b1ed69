"""The quality tab: what an assessment found of a version's samples, with the samples that show it.

The findings say what a training would learn wrongly; here stand the pictures and captions behind them,
because a share alone does not tell whether a threshold is right. At most a few of each kind are read,
whatever the size of the dataset. Of a private version only findings, counts and distributions are shown.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from tasks.core.errors import DataError
from tasks.core.findings import Finding, Severity
from tasks.core.screen import Progress
from tasks.core.units import count, counted, percent
from tasks.dataset.preview.numbers import NumberColumn, merged
from tasks.dataset.preview.tiles import ORIGIN, Tile, compact_tile, legible
from tasks.dataset.quality.assessment import Assessment, Cluster, Found, ShownSample
from tasks.dataset.quality.kinds import CAPTION_KINDS, PICTURE_KINDS, ProposedFilter, QualityKind
from tasks.dataset.sample_reader import SampleReader
from tasks.dataset.version.tables import SampleOrigin

GROUPS, MEMBERS, WORST = 8, 6, 7
"""The most groups of copies that are shown, samples of each, and samples of any other kind."""
BARS = 30
"""Classes that have a bar each; the others share one."""
SECTIONS = {
    "split": "copies",
    "samples": "copies",
    "images": "worst-pictures",
    "captions": "worst-captions",
    "text": "worst-captions",
    "classes": "classes",
}
"""The part of the tab that shows the samples of a finding, by the first word of its code."""
LEVELS = (0.01, 0.05)
"""Shares of the samples for which a limit is given that leaves them out."""
NOTE, LINE = 100, 300
"""The most characters of a text that samples have in common, and of a line of evidence."""


RULES = [
    one.filter
    for one in (*PICTURE_KINDS, *CAPTION_KINDS)
    if one.filter is not None and not isinstance(one.filter.limit, Sequence)
]
"""The filters whose effect is shown."""


@dataclass(frozen=True)
class RuleEffect:
    """What a filter would leave out, as a share of the samples, and the share of those without a value, which
    stay. `levels` are limits that would leave out the LEVELS of the samples with a value."""

    rule: ProposedFilter
    title: str
    unit: str
    left_out: float
    unknown: float
    levels: Sequence[float]


@dataclass(frozen=True)
class TileGroup:
    """Samples that show the same thing. `is_leak` marks copies that lie in several splits."""

    title: str
    tiles: Sequence[Tile] = ()
    note: str = ""
    is_leak: bool = False


@dataclass(frozen=True)
class ClassBar:
    name: str
    samples: int
    share: float


@dataclass(frozen=True)
class QualityNote:
    """A finding as the page shows it. `section` is the part of the tab that shows its samples, `config` is
    YAML on one line, empty if the finding proposes none."""

    severity: Severity
    head: str
    section: str
    lines: Sequence[str]
    remedy: str
    config: str


@dataclass
class QualityTab:
    """The whole tab. `is_measured` is False for a version from before builds measured samples, and for tars
    that others wrote."""

    findings: Sequence[Finding]
    notes: Sequence[QualityNote]
    is_measured: bool
    copies: Sequence[TileGroup] = ()
    shown_copies: Collection[tuple[str, int]] = ()
    """The split and row of each sample of `copies`."""
    pictures: Sequence[TileGroup] = ()
    captions: Sequence[TileGroup] = ()
    classes: Sequence[ClassBar] = ()
    effects: Sequence[RuleEffect] = ()

    @property
    def sections(self) -> list[str]:
        """The parts of the tab that hold something."""
        parts = {
            "copies": self.copies,
            "worst-pictures": self.pictures,
            "worst-captions": self.captions,
            "classes": self.classes,
        }
        return [name for name, held in parts.items() if held]

    def number_of(self, severity: Severity) -> int:
        return sum(finding.severity == severity for finding in self.findings)


def quality_of(
    found: Assessment, findings: Sequence[Finding], columns: Sequence[NumberColumn], is_private: bool
) -> QualityTab:
    """Return the tab without its samples."""
    return QualityTab(
        findings,
        [_note(finding) for finding in findings],
        found.is_compared or bool(found.pictures or found.captions),
        classes=class_bars(found.classes, is_private),
        effects=[effect for rule in RULES if (effect := effect_of(rule, columns)) is not None],
    )


def _note(finding: Finding) -> QualityNote:
    head = " ".join((finding.code, *map(str, finding.where.values())))
    lines = [
        legible(text if name == "what" else f"{name} {text}", LINE) for name, text in finding.evidence.items()
    ]
    tree: dict[str, Any] = {}
    for key, value in (finding.config or {}).items():
        *above, last = key.split(".")
        block = tree
        for name in above:
            block = block.setdefault(name, {})
        block[last] = value
    config = yaml.safe_dump(tree, default_flow_style=True, width=math.inf).strip()[1:-1] if tree else ""
    section = SECTIONS.get(finding.code.partition(".")[0], "")
    return QualityNote(finding.severity, legible(head, NOTE), section, lines, finding.remedy, config)


def class_bars(classes: Mapping[str, int], is_private: bool) -> list[ClassBar]:
    """Return the largest classes and one bar for all others; of private data without their names."""
    total = sum(classes.values())
    largest = list(classes.items())[: BARS if len(classes) > BARS + 1 else None]
    bars = [
        ClassBar(f"class {place}" if is_private else legible(name, 80), samples, samples / total)
        for place, (name, samples) in enumerate(largest, 1)
    ]
    others = total - sum(samples for _, samples in largest)
    if others:
        bars.append(ClassBar(counted(len(classes) - len(largest), "other"), others, others / total))
    return bars


def effect_of(rule: ProposedFilter, columns: Sequence[NumberColumn]) -> RuleEffect | None:
    """Return what a filter would leave out, by the distribution of its statistic; None without one."""
    column = next((one for one in columns if one.name == rule.name), None)
    if column is None or isinstance(rule.limit, Sequence):
        return None
    of_all = merged(list(column.splits.values()))
    values, samples = of_all.values, of_all.total + of_all.missing
    fails = values > rule.limit if rule.is_most else values < rule.limit
    unknown = of_all.missing / samples
    levels = [of_all.quantile(1 - share if rule.is_most else share) for share in LEVELS]
    left_out = (1 - unknown) * float(np.mean(fails))
    return RuleEffect(rule, column.title, column.unit, left_out, unknown, levels)


class Exhibits:
    """Reads the samples that an assessment names, each split's index once."""

    def __init__(self, version: Path, modality: str) -> None:
        self._version, self._modality = version, modality
        self._readers: dict[str, SampleReader] = {}

    def tile(self, example: ShownSample, note: str = "") -> Tile:
        """Return an example as a small tile; DataError if its split has no sound index."""
        if example.split not in self._readers:
            self._readers[example.split] = SampleReader(self._version, example.split)
        reader = self._readers[example.split]
        if example.row >= len(reader):
            raise DataError(f"the index of {example.split} has no row {example.row:,}")
        tile = compact_tile(reader, example.row, self._modality, note)
        return replace(tile, origin=legible(SampleOrigin(tile.key, example.key, example.source), ORIGIN))


def add_exhibits(tab: QualityTab, found: Assessment, exhibits: Exhibits, progress: Progress) -> None:
    """Add the samples behind the findings: leaks first, then copies and the worst of each kind. DataError if
    they cannot be read."""
    leaks = [(cluster, True) for cluster in found.leaks]
    known = {_first(cluster) for cluster in found.leaks}
    others = [(cluster, False) for cluster in found.clusters if _first(cluster) not in known]
    clusters = [*leaks, *others][:GROUPS]
    tab.shown_copies = {(one.split, one.row) for cluster, _ in clusters for one in cluster.members}
    pictures = [(found.pictures[one.name], one) for one in PICTURE_KINDS if one.name in found.pictures]
    captions = [(found.captions[one.name], one) for one in CAPTION_KINDS if one.name in found.captions]
    done, total = 0, len(clusters) + len(pictures) + len(captions)

    def counted_off(group: TileGroup) -> TileGroup:
        nonlocal done
        done += 1
        progress(done, total, "kinds of samples")
        return group

    tab.copies = [counted_off(_copies(cluster, is_leak, exhibits)) for cluster, is_leak in clusters]
    tab.pictures = [counted_off(_worst(one, kind, exhibits)) for one, kind in pictures if one.count]
    tab.captions = [counted_off(_worst(one, kind, exhibits)) for one, kind in captions if one.count]


def _first(cluster: Cluster) -> tuple[str, int]:
    return cluster.members[0].split, cluster.members[0].row


def _copies(cluster: Cluster, is_leak: bool, exhibits: Exhibits) -> TileGroup:
    """Show some of a cluster, one of each split first, so that both sides of a leak are seen."""
    firsts: dict[str, ShownSample] = {}
    for one in cluster.members:
        firsts.setdefault(one.split, one)
    chosen = [*firsts.values(), *(one for one in cluster.members if one not in firsts.values())][:MEMBERS]
    more = cluster.size - len(chosen)
    how = "equal" if cluster.is_exact else "nearly equal"
    across = f" in {' and '.join(firsts)}" if is_leak else ""
    title = f"{counted(cluster.size, f'{how} sample')}{across}"
    return TileGroup(
        title, list(map(exhibits.tile, chosen)), f"and {count(more)} more" if more else "", is_leak
    )


def _worst(found: Found, kind: QualityKind, exhibits: Exhibits) -> TileGroup:
    examples = found.examples[:WORST]
    title = f"{kind.title}: {count(found.count)} of {count(found.of)} ({percent(found.share)})"
    shared = examples[0].note if kind.note == "heading" else ""
    tiles = [
        exhibits.tile(one, f"{kind.value} {one.note}".strip() if kind.note == "tile" else "")
        for one in examples
    ]
    return TileGroup(title, tiles, f"“{legible(shared, NOTE)}”" if shared else "")
