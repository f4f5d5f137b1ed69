"""The result of a build. This module is light, because the process that starts a build in a child reads
it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tasks.core.units import count, counted


@dataclass(frozen=True)
class BuildResult:
    """What a build did, with read = accepted + filtered + rejected.

    `previous` is the version that was current before. Compared with it, `lost` samples are gone, `replaced`
    ones have other bytes, `gained` ones are new, and `rekeyed` ones had other keys, made by an earlier
    Tarmac. `released` samples left the quarantine.
    """

    version: Path
    digest: str
    read: int
    accepted: int
    filtered: int
    rejected: int
    rejects: Mapping[str, int]
    shards: int
    shards_rewritten: int
    previous: str | None
    gained: int
    lost: int
    replaced: int
    rekeyed: int
    released: int
    up_to_date: bool
    seconds: float

    @property
    def changed(self) -> str:
        """How its samples differ from those of `previous`, for the user."""
        return changes_text(self.gained, self.lost, self.replaced, self.rekeyed)


def changes_text(gained: int, lost: int, replaced: int, rekeyed: int = 0) -> str:
    """Return a text such as `1,204 samples gained, 3 lost, 800 replaced`."""
    text = f"{counted(gained, 'sample')} gained, {count(lost)} lost, {count(replaced)} replaced"
    return f"{text}, {count(rekeyed)} with new keys" if rekeyed else text
