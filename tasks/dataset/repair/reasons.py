"""Why a shard could not be made again: names the samples, or counts them where they are private."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tasks.core.units import counted
from tasks.dataset.repair.mend import Fault, Mended
from tasks.dataset.repair.origin import Origin
from tasks.dataset.verify.report import plain

SHOWN = 3
WORDED: Mapping[Fault, tuple[str, str]] = {
    "unread": ("cannot be read", "cannot be read"),
    "rejected": ("cannot be taken any more", "cannot be taken any more"),
    "changed": ("has changed in the source", "have changed in the source"),
    "other": ("gives other bytes, of the same source", "give other bytes, of the same source"),
}


def of_lost(why: Mapping[str, str], samples: int, troubles: Sequence[str], is_private: bool) -> str:
    """`why` tells of each sample (by its original key) what keeps it from being found, "" when nothing is
    known of it any more."""
    if troubles:
        needed = f"needs {len(why):,} of its {counted(samples, 'sample')} from the source"
        return f"{needed}, which cannot be read: {'; '.join(troubles)}"
    gone = _named([_told(key, "") for key, reason in why.items() if not reason], is_private)
    told = [_told(key, reason) for key, reason in why.items() if reason]
    parts = []
    if len(told) < len(why):
        parts.append(f"{_of(len(why) - len(told), samples)} gone from the source{gone}")
    if told:
        parts.append(f"{_of(len(told), samples)} not to be had{_named(told, is_private)}")
    return "; ".join(parts)


def of_mended(
    mended: Mended, names: Sequence[str], changes: Mapping[int, str], samples: int, origin: Origin
) -> str:
    """`names` are the samples' original keys by row, `changes` what is to be seen of a change in a row."""
    if mended.trouble:
        return mended.trouble
    by_kind: dict[Fault, list[str]] = {}
    for row, kind, detail in mended.faults:
        told = detail or (changes.get(row, "") if kind == "changed" else "")
        by_kind.setdefault(kind, []).append(_told(names[row], told))
    parts = []
    for kind, verbs in WORDED.items():
        if its := by_kind.get(kind):
            parts.append(f"{_of(len(its), samples, *verbs)}{_named(its, origin.is_private)}")
    if "other" in by_kind:
        parts.append(origin.changed_packages() or "the packages are as they were: was Tarmac itself another?")
    return "; ".join(parts)


def _of(count: int, samples: int, one: str = "is", more: str = "are") -> str:
    return f"{count:,} of its {counted(samples, 'sample')} {one if count == 1 else more}"


def _told(key: str, reason: str) -> str:
    return plain(f"{key}: {reason}" if reason else key)


def _named(names: Sequence[str], is_private: bool) -> str:
    """The first few in parentheses; of private data none."""
    if is_private or not names:
        return ""
    more = ", …" if len(names) > SHOWN else ""
    return f" ({', '.join(names[:SHOWN])}{more})"
