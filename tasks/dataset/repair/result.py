"""What a repair did to a version and to each file, or why it could not, and what a person can do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tasks.core.findings import Finding

Way = Literal["converted", "joined", "linked", "renamed", "made"]


@dataclass(frozen=True)
class Done:
    """A file that is whole again, `train/000007.tar` or `index/train.npy`, and how it was repaired.

    A shard's `way` is converted (from its source, wholly or in part), joined (from what was left of it),
    linked (from another version) or renamed (it lay under another name).
    """

    file: str
    how: str
    way: Way = "made"


@dataclass(frozen=True)
class Failed:
    """A file that is not whole, why, and what a person can do. `is_environment` means that the data may be
    sound, and that this machine or a server could not read or write them."""

    file: str
    reason: str
    remedy: str
    is_environment: bool = False


@dataclass(frozen=True)
class QuarantineChange:
    """How many samples were added to the quarantine, how many were taken out, and how many are in it now."""

    added: int = 0
    released: int = 0
    now: int = 0


@dataclass(frozen=True)
class Repaired:
    """What a repair did. `findings` are those that remain; the result is `ok` when there are none, or when
    only bad samples remain and all are set aside. `moved` records where files that belonged to no version lie
    now, `not_seen` what the level did not examine."""

    version: Path
    ok: bool
    shards: Sequence[Done] = ()
    tables: Sequence[Done] = ()
    moved: Mapping[str, Path] = field(default_factory=dict)
    failed: Sequence[Failed] = ()
    findings: Sequence[Finding] = ()
    aside: QuarantineChange = field(default_factory=QuarantineChange)
    not_seen: Sequence[str] = ()


BRING_BACK = (
    "bring these raw samples back as they were and repair again; tarmac build CONFIG makes a new version of "
    "the source as it is; tarmac repair DATASET --quarantine lets training go on without what is bad"
)
MOVED = (
    "if the source has moved, give a config with its new path: tarmac repair DATASET --config CONFIG; else "
    "bring it back and repair again; tarmac build CONFIG makes a new version of another source; "
    "tarmac repair DATASET --quarantine lets training go on without what is bad"
)
REBUILD = (
    "bring the source back as it was and repair again (if it has moved: tarmac repair DATASET "
    "--config CONFIG with its new path), or make a new version of it: tarmac build CONFIG"
)
CONFIGURE = "give the config that the version was built by: tarmac repair DATASET --config CONFIG"
MEND = (
    "mend the source and build a new version: tarmac build CONFIG; tarmac repair DATASET --quarantine lets "
    "training go on without what is bad"
)
RETRY = "check this machine (its disk and permissions) or the server that did not answer, and repair again"
