"""What stays bad, set aside so that training goes on without it; and what is sound again, taken back."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from tasks.dataset import quarantine
from tasks.dataset.quarantine import Entry
from tasks.dataset.verify.outcome import BadSample


@dataclass(frozen=True)
class Aside:
    """Samples that were added to the quarantine, that were taken off, and that are in it now."""

    added: int
    released: int
    now: int


def set_aside(
    version: Path, level: str, bad: Iterable[BadSample], repaired: Collection[str], adds: bool
) -> Aside:
    """Bring the quarantine up to date with what is `bad` now, as far as this level can tell.

    Entries whose reason the level does not look for stay, but for those of shards that were `repaired`. With
    `adds` the bad samples are added.
    """
    home = quarantine.home(version)
    path = home / quarantine.NAME
    listed = quarantine.of_version(version, quarantine.read(path))
    known = {(one.shard, one.key) for one in listed}
    entries = [Entry(version.name, one.split, one.shard, one.key, one.reason) for one in bad]
    still = {(one.shard, one.key) for one in entries}
    levels = list(quarantine.SEEN)
    seen = set().union(*(quarantine.SEEN[name] for name in levels[: levels.index(level) + 1]))
    sound = [
        one
        for one in listed
        if (one.shard, one.key) not in still
        and (one.reason in seen or (one.shard in repaired and one.reason in quarantine.BY_BYTES))
    ]
    released = quarantine.remove(home, sound) if sound else 0
    added = quarantine.add(home, entries) if adds and still - known else 0
    return Aside(added, released, len(listed) - released + added)
