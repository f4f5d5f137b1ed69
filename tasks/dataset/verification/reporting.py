"""Findings as a report gives them: few of a kind, merged where they are about one place, in order."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from tasks.core.findings import Finding
from tasks.dataset.verification.faults import AGAIN, REBUILD, REMAKE, RESEND
from tasks.dataset.verification.whole import REPLACE

SHOWN = 5
"""Findings of one kind shown for a shard; the last one counts the rest."""
LEFT = "and_more_of_its_kind"


def capped(findings: Sequence[Finding], total: int) -> list[Finding]:
    """The first SHOWN of `total` findings of a kind; the last one says how many more there are."""
    shown = list(findings[:SHOWN])
    if shown and total > len(shown):
        evidence = {**shown[-1].evidence, LEFT: total - len(shown)}
        shown[-1] = replace(shown[-1], evidence=evidence)
    return shown


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """One finding for each code and place, with all evidence: size and content may show the same damage.

    Files beside the tars come first, then shard by shard.
    """
    by_place: dict[tuple[str, ...], Finding] = {}
    for found in findings:
        place = (found.code, *map(str, found.where.items()))
        known = by_place.get(place)
        by_place[place] = (
            found if known is None else replace(known, evidence={**known.evidence, **found.evidence})
        )
    return sorted(by_place.values(), key=_order)


def _order(found: Finding) -> tuple[str, ...]:
    """By shard; within one, what concerns all of it first."""
    where = found.where
    return tuple(str(where.get(name, "")) for name in ("shard", "key", "file"))[:1]


def advised(
    findings: Iterable[Finding], dataset: str | None, is_ours: bool, is_remote: bool
) -> list[Finding]:
    """The findings with the way out that there is here: a repair, another upload, another download."""
    advised = []
    for found in findings:
        if is_ours and found.remedy == REPLACE:
            found = replace(found, remedy=REMAKE)
        if found.remedy in (REBUILD, REMAKE, REPLACE):
            if not is_ours:
                found = replace(found, remedy=AGAIN)
            elif is_remote:
                found = replace(found, remedy=RESEND)
            elif dataset is not None:
                found = replace(found, command=f"tarmac repair {shlex.quote(dataset)}")
        advised.append(found)
    return advised


def without_shards(findings: Iterable[Finding], shards: Collection[str]) -> list[Finding]:
    return [found for found in findings if found.where.get("shard") not in shards]
