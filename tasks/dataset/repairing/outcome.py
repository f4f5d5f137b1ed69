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
REBUILD = "bring the source back as it was and repair again, or make a new version of it: tarmac build CONFIG"
CONFIGURE = "give the config that the version was built by: tarmac repair DATASET --config CONFIG"
MEND = (
    "mend the source and build a new version: tarmac build CONFIG; tarmac repair DATASET --quarantine lets "
    "training go on without what is bad"
)


@dataclass(frozen=True)
class Failed:
    """A file that is not whole, why, and what a person can do."""

    file: str
    reason: str
    remedy: str
