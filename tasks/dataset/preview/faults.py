"""The faults tab: what verify found, by code, in as many words and findings as a person reads.

A hostile tar may bring any number of findings with names of any length, so all of it is bounded here. Of a
private version only codes and counts get in: names of members and messages may hold what nobody should see.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasks.core.findings import Finding, Severity
from tasks.core.quarantine import home
from tasks.core.units import count
from tasks.dataset.preview.advice import Step
from tasks.dataset.preview.checked import Checked, by_code, next_steps
from tasks.dataset.preview.codes import MEANINGS, NOT_READ, READ, UNKNOWN, Meaning
from tasks.dataset.preview.legible import legible, without_folder
from tasks.dataset.preview.tiles import Tile
from tasks.dataset.verify.reporting import LEFT, weight

EACH = 20
"""Findings of a code that are shown; the rest are counted."""
NAME, TEXT = 120, 300
"""Characters of a name, and of a message."""
FACTS = 8
"""Of a finding's evidence."""
LINES = 20
"""Of what was not seen, and of what was ruled out."""


@dataclass(frozen=True)
class Shown:
    """A finding: where and how it is known, each as (what, text), and what to do."""

    where: Sequence[tuple[str, str]]
    evidence: Sequence[tuple[str, str]]
    remedy: str
    command: str
    more: int


@dataclass(frozen=True)
class Group:
    """The findings of one code. `remedy` and `command` are what all that are shown have in common."""

    code: str
    severity: Severity
    count: int
    shown: Sequence[Shown] = ()

    @property
    def meaning(self) -> Meaning:
        return MEANINGS.get(self.code, UNKNOWN)

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
    """The whole tab."""

    level: str
    read: str
    at: float
    steps: Sequence[Step] = ()
    groups: Sequence[Group] = ()
    not_seen: Sequence[str] = ()
    ruled_out: Sequence[tuple[str, str]] = ()
    """Codes, and how it is known."""
    tiles: Sequence[Tile] = ()
    missing: list[str] = field(default_factory=list)
    quarantined: Mapping[str, int] = field(default_factory=dict)

    @property
    def errors(self) -> int:
        return sum(group.count for group in self.groups if group.severity == "error")


def faults_of(checked: Checked, folder: Path, is_private: bool) -> Faults:
    """The tab without its samples; the folder's path is left out, since a page is passed on: in
    commands the dataset is called what the user calls it."""
    report = checked.report
    told = Faults(checked.level, READ.get(checked.level, ""), checked.at)
    told.steps = next_steps(checked, folder, is_private)
    told.groups = [
        _group(code, found, checked, folder, is_private) for code, found in by_code(report.findings).items()
    ]
    told.ruled_out = [_ruled_out(entry, is_private) for entry in report.ruled_out[:LINES]]
    not_seen = NOT_READ.get(checked.level, ()) if is_private else report.not_seen
    told.not_seen = [legible(text, TEXT) for text in not_seen[:LINES]]
    return told


def _group(code: str, findings: Sequence[Finding], checked: Checked, folder: Path, is_private: bool) -> Group:
    severities = {finding.severity for finding in findings}
    severity: Severity = next(one for one in ("error", "warning", "info") if one in severities)
    shown = [] if is_private else [_shown(finding, checked, folder) for finding in findings[:EACH]]
    return Group(code, severity, sum(map(weight, findings)), shown)


def _shown(finding: Finding, checked: Checked, folder: Path) -> Shown:
    ours = "|".join(re.escape(shlex.quote(str(one))) for one in (folder, home(folder)))
    command = re.sub(rf"(?<!\S)({ours})(?!\S)", lambda _: checked.dataset, finding.command or "")
    evidence = [(name, value) for name, value in finding.evidence.items() if name != LEFT]
    return Shown(
        [(name, legible(value, NAME)) for name, value in finding.where.items() if _is_told(name, finding)],
        [_fact(name, value, folder) for name, value in evidence[:FACTS]],
        legible(finding.remedy, TEXT),
        legible(command, TEXT),
        weight(finding) - 1,
    )


def _is_told(name: str, finding: Finding) -> bool:
    """Whether a part of the place says more than the others: a shard's name begins with its split."""
    is_twice = name == "split" and not {"shard", "file"}.isdisjoint(finding.where)
    return finding.where[name] is not None and not is_twice


def _fact(name: str, value: Any, folder: Path) -> tuple[str, str]:
    """`problem` is a sentence; anything else needs its name."""
    text = count(value) if type(value) is int else without_folder(value, folder)
    return ("" if name == "problem" else legible(name, NAME).replace("_", " "), text)


def _ruled_out(entry: Mapping[str, Any], is_private: bool) -> tuple[str, str]:
    evidence = "" if is_private else legible(entry.get("evidence", ""), TEXT)
    return legible(entry.get("code", ""), NAME), evidence


def _common(texts: Sequence[str]) -> str:
    return texts[0] if texts and len(set(texts)) == 1 else ""
