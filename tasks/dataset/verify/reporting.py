"""Findings as a report gives them: few of a kind, merged where they are about one place, in order."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from tasks.core.findings import Finding
from tasks.dataset.verify.faults import AGAIN, ANEW, REBUILD, REMAKE, REMEMBER, RESEND, RIGHTS
from tasks.dataset.verify.whole import REPLACE

LISTED = 1000
"""Findings of one kind listed for a shard; the last one counts the rest."""
MOST = 10_000
"""Findings of one kind in all, beyond which each further shard lists no more than FEW."""
FEW = 5
LEFT = "and_more_of_its_kind"


@dataclass
class Room:
    """How many findings of each kind are listed already, which bounds the memory that they take."""

    _listed: Counter[str] = field(default_factory=Counter)

    def takes(self, code: str, already: int) -> bool:
        """Whether one more is listed for a shard that has `already` so many of this kind; it then counts."""
        takes = already < (LISTED if self._listed[code] < MOST else FEW)
        self._listed[code] += takes
        return takes


def counted_out(listed: Sequence[Finding], total: int) -> list[Finding]:
    """Those that are listed of `total` findings of a kind; the last one says how many more there are."""
    if not listed or total <= len(listed):
        return list(listed)
    *others, last = listed
    return [*others, replace(last, evidence={**last.evidence, LEFT: total - len(listed)})]


def weight(finding: Finding) -> int:
    """The finding itself, and those of its kind that it counts."""
    return 1 + int(finding.evidence.get(LEFT, 0))


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """One finding for each code and place, with all evidence: size and content may show the same damage.

    Files beside the tars come first, then shard by shard.
    """
    by_place: dict[tuple[str, ...], Finding] = {}
    for found in findings:
        place = (found.code, *map(str, found.where.items()))
        known = by_place.get(place)
        by_place[place] = found if known is None else _together(known, found)
    return sorted(by_place.values(), key=lambda found: str(found.where.get("shard", "")))


def _together(known: Finding, found: Finding) -> Finding:
    evidence = {**known.evidence, **found.evidence}
    if LEFT in evidence:
        evidence[LEFT] = weight(known) + weight(found) - 2
    return replace(known, evidence=evidence)


def advised(
    findings: Iterable[Finding], repaired: str | None, is_ours: bool, is_remote: bool
) -> list[Finding]:
    """The findings with the way out that there is here: a repair, of what the command is to be given, another
    upload, another download."""
    advised = []
    findings = list(findings)
    config = " --config CONFIG" if any(found.remedy == REMEMBER for found in findings) else ""
    for found in findings:
        if is_ours and found.remedy == REPLACE:
            found = replace(found, remedy=REMAKE)
        if found.remedy in (REBUILD, REMAKE, REMEMBER, REPLACE):
            if not is_ours:
                found = replace(found, remedy=ANEW.get(found.code, AGAIN))
            elif is_remote:
                found = replace(found, remedy=RESEND)
            elif repaired is not None:
                found = replace(found, command=f"tarmac repair {shlex.quote(repaired)}{config}")
        advised.append(found)
    return advised


def in_doubt(findings: Sequence[Finding]) -> set[str]:
    """The codes that are not ruled out: those of the findings, and what a tar that may not be read hides."""
    codes = {found.code for found in findings}
    if any(found.remedy == RIGHTS and found.code == "shard.checksum" for found in findings):
        codes |= {"shard.missing", "shard.extra", "shard.truncated"}
    return codes


def without_shards(findings: Iterable[Finding], shards: Collection[str]) -> list[Finding]:
    return [found for found in findings if found.where.get("shard") not in shards]
