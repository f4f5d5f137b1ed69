"""Why a shard cannot be made again: what became of its samples in the source; of private data without
names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.core.units import counted
from tasks.dataset.rejects import TRANSIENT, printable
from tasks.dataset.repair.recipes import Plan
from tasks.dataset.repair.source import Again

SHOWN = 3
"""Samples that a reason names."""


@dataclass(frozen=True)
class Fault:
    """What is wrong with some samples of a shard, as a verb phrase, with the name and detail of each."""

    samples: Sequence[str]
    one: str
    more: str
    note: str = ""
    is_environment: bool = False

    def worded(self, total: int, is_private: bool) -> str:
        """`2 of its 4 samples are gone from the source (a.png, b.png)`; of private data without names."""
        count = len(self.samples)
        text = f"{count:,} of its {counted(total, 'sample')} {self.one if count == 1 else self.more}"
        if not is_private:
            text += f" ({', '.join(self.samples[:SHOWN])}{', …' if count > SHOWN else ''})"
        return f"{text}; {self.note}" if self.note else text


def missing(plan: Plan, again: Again) -> list[Fault]:
    """Why samples are not to be had from the source."""
    names = dict(zip(plan.column("key"), plan.column("original_key"), strict=True))
    gone = [names[key] for key, reject in again.missing.items() if reject is None]
    rejects = {names[key]: reject for key, reject in again.missing.items() if reject is not None}
    others = [f"{name}: {reject.reason}, {reject.detail}" for name, reject in rejects.items()]
    faults = []
    if gone:
        faults.append(Fault(gone, "is gone from the source", "are gone from the source"))
    if others:
        is_environment = any(reject.reason == TRANSIENT for reject in rejects.values())
        faults.append(Fault(others, "is not to be had", "are not to be had", is_environment=is_environment))
    return faults


def untaken(plan: Plan, again: Again) -> list[Fault]:
    """The needed samples that the conversion rejected."""
    if again.sidecar is None:
        return []
    names = plan.column("original_key")
    gone: list[str] = []
    unread: list[str] = []
    rejected: list[str] = []
    reasons, details = (again.sidecar.column(name).to_pylist() for name in ("reason", "detail"))
    for row, reason, detail in zip(plan.needed, reasons, details, strict=True):
        if reason is not None:
            kind = unread if reason == TRANSIENT else gone if reason == "member.missing" else rejected
            kind.append(names[row] if kind is gone else f"{names[row]}: {reason}, {printable(detail)}")
    faults = []
    if gone:
        faults.append(Fault(gone, "is gone from the source", "are gone from the source"))
    if unread:
        faults.append(Fault(unread, "cannot be read", "cannot be read", is_environment=True))
    if rejected:
        faults.append(Fault(rejected, "cannot be taken any more", "cannot be taken any more"))
    return faults


def differing(plan: Plan, again: Again, changes: str) -> list[Fault]:
    """The samples whose bytes are not those that the shard had."""
    names, contents, sizes, stamps = (
        plan.column(name) for name in ("original_key", "content", "size", "stamp")
    )
    changed, others = [], []
    if again.sidecar is not None:
        now, now_sizes, now_stamps, crc32c = (
            again.sidecar.column(name).to_pylist() for name in ("content", "size", "stamp", "crc32c")
        )
        for number, row in enumerate(plan.needed):
            if crc32c[number] == plan.spans[row, 2]:
                continue
            if contents[row] in (None, now[number]):
                others.append(names[row])
            elif sizes[row] is not None and now_sizes[number] != sizes[row]:
                changed.append(f"{names[row]}: {now_sizes[number]:,} bytes, were {sizes[row]:,}")
            else:
                is_alike = stamps[row] is not None and now_stamps[number] == stamps[row]
                changed.append(names[row] + (": with the same size and time" if is_alike else ""))
    faults = []
    if changed:
        faults.append(Fault(changed, "has changed in the source", "have changed in the source"))
    if others:
        note = changes or "the packages are as they were: was Tarmac itself another?"
        verb = "other bytes, of the same source"
        faults.append(Fault(others, f"gives {verb}", f"give {verb}", note))
    return faults or [Fault(names[:1], "is not what the shard held", "", "its tables say otherwise")]
