"""What a repair did to one file of a version, or why it could not."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Done:
    """A file that is whole again, `train/000007.tar` or `index/train.npy`, and how it came about.

    `way` of a shard: converted (from its source, wholly or in part), joined (of what was left of it), linked
    (from another version), renamed.
    """

    file: str
    how: str
    way: str = "made"


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

MIND = "see to what this machine lacks (a disk that reads, rights, an answer) and repair again"


@dataclass(frozen=True)
class Failed:
    """A file that is not whole, why, and what a person can do. `is_of_host` says that the data may be sound:
    it is this host that could not read or write them."""

    file: str
    reason: str
    remedy: str
    is_of_host: bool = False
