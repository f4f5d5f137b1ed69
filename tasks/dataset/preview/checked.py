"""What verify said of a version, what looking at it adds, and both in a line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tasks.core.findings import Finding, Report
from tasks.core.units import count, counted
from tasks.dataset.preview.advice import Step, steps
from tasks.dataset.preview.codes import MEANINGS
from tasks.dataset.preview.tiles import Tile
from tasks.dataset.verify.reporting import weight

NAMELESS = "DATASET"
"""In a command, where nobody says how the dataset is called."""
NAMED = 5
"""Codes in a line of the terminal."""
DECODED = "member.undecodable"
"""The code that verify finds at level full only."""
REMEDY = "tarmac repair DATASET --full makes it again from the source; with --quarantine, training skips it"
"""For what only looking showed."""


@dataclass(frozen=True)
class Checked:
    """A report of verify, its level and time, and how the user calls the dataset."""

    report: Report
    level: str
    at: float
    dataset: str = NAMELESS


def with_seen(report: Report, seen: Mapping[str, Sequence[Tile]]) -> Report:
    """The report with what only showed when samples (by split) were looked at, such as one that does not
    decode where verify decoded none. What verify has said of the same shard is not said again, and where it
    found an index wrong, that explains the samples that could not be read by it."""
    said = {(found.where.get("shard"), found.code) for found in report.findings}
    whole = {found.where.get("shard") for found in report.findings if "key" not in found.where}
    unindexed = {found.where.get("split") for found in report.findings if found.code == "index.mismatch"}
    added: dict[tuple[str, ...], Finding] = {}
    for split, tiles in seen.items():
        for tile in tiles:
            if tile.shard in whole or (split in unindexed and not tile.is_read):
                continue
            where = {"split": split, "shard": tile.shard, **({"key": tile.key} if tile.is_read else {})}
            for fault in tile.faults:
                if (tile.shard, fault.code) not in said:
                    found = Finding(fault.code, "error", REMEDY, where, {"problem": fault.text})
                    added.setdefault((fault.code, *where.values()), found)
    return replace(report, findings=[*report.findings, *added.values()])


def next_steps(checked: Checked, folder: Path, is_private: bool = False) -> Sequence[Step]:
    """What to do, best first; nothing when there are no errors."""
    if checked.report.ok:
        return ()
    needs_full = any(one.code == DECODED for one in checked.report.findings)
    is_built = any((folder / name).exists() for name in ("manifest.json", "shards.parquet", "build.json"))
    return steps(NAMELESS if is_private else checked.dataset, is_built, needs_full)


def summary(report: Report) -> str:
    """The errors in a line: `3 faults: shard.missing 1, member.checksum 2`, causes first."""
    codes = by_code(found for found in report.findings if found.severity == "error")
    numbers = {code: sum(map(weight, found)) for code, found in codes.items()}
    listed = [f"{code} {count(number)}" for code, number in numbers.items()]
    if len(listed) > NAMED:
        listed[NAMED:] = [f"and {counted(len(listed) - NAMED, 'other code')}"]
    return f"{counted(sum(numbers.values()), 'fault')}: {', '.join(listed)}"


def by_code(findings: Iterable[Finding]) -> dict[str, list[Finding]]:
    """In the order of the table of codes, those that it does not know last."""
    found: dict[str, list[Finding]] = {code: [] for code in MEANINGS}
    for finding in findings:
        found.setdefault(finding.code, []).append(finding)
    return {code: same for code, same in found.items() if same}
