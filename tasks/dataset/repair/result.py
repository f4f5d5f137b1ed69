"""What a repair did to a version and to each of its files, or why it could not, and what a person can do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tasks.core.findings import Finding

Way = Literal["converted", "joined", "linked", "renamed", "made"]


@dataclass(frozen=True)
class Done:
    """A file that is whole again, `train/000007.tar` or `index/train.npy`, and how it came about.

    `way` of a shard: converted (from its source, wholly or in part), joined (of what was left of it), linked
    (from another version), renamed (it lay under another name).
    """

    file: str
    how: str
    way: Way = "made"


@dataclass(frozen=True)
class Failed:
    """A file that is not whole, why, and what a person can do. `is_environment` says that the data may be
    sound: it is this machine, or a server, that could not give or take them."""

    file: str
    reason: str
    remedy: str
    is_environment: bool = False


@dataclass(frozen=True)
class QuarantineChange:
    """Samples that were added to the quarantine, that were taken out of it, and that are in it now."""

    added: int = 0
    released: int = 0
    now: int = 0


@dataclass(frozen=True)
class Repaired:
    """What a repair did. `findings` are what remains; it is `ok` when nothing does, or when all that
    remains is bad samples that are set aside. `moved` says where what belonged to no version lies now,
    `not_seen` what the level did not look at."""

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
MIND = "see to what this machine lacks (a disk that reads, rights, a server that answers) and repair again"
