"""Where a dataset, its versions and their files lie, and which version a path stands for.

    DATASET/ current -> versions/9c41…    quarantine.jsonl  verified.jsonl  fresh.json  pins/  lengths/
        quality/  looks/  scores/  lease.json  staging/ and progress.json (of a build)
        versions/9c41…/ README.md  manifest.json  build.json  shards.parquet  rejects.parquet  inputs.arrow
             index/train.npy  samples/train.parquet  train/000000.tar …  train/sizes.json

Every file name is written here once. Resolving a path reads links and looks for manifests, nothing more.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from tasks.core.errors import UsageError
from tasks.core.files import ignore_missing, unreadable_as_error

MANIFEST, SHARDS, REJECTS = "manifest.json", "shards.parquet", "rejects.parquet"
BUILD, INPUTS, CARD = "build.json", "inputs.arrow", "README.md"
"""Files of a version. INPUTS keeps what each shard was made of, for the next build; CARD is the dataset
card."""
MARKS = (MANIFEST, SHARDS, INPUTS)
"""Files that a version has beside its splits; tars that others made have none of them."""
CURRENT, VERSIONS, STAGING, LEASE = "current", "versions", "staging", "lease.json"
PROGRESS = "progress.json"
FOREIGN = "foreign.json"
"""The file of a version whose tars others wrote; it records where they lie."""
LENGTHS = "lengths"
"""The folder of a dataset with how long the samples of its versions are to recipes that pack them."""
LOOKS = "looks"
"""The folder of a dataset with what its raw samples look like, where splits are grouped by content."""
QUALITY = "quality"
"""The folder of a dataset with what was found of the samples of its versions; see `tasks.dataset.quality`."""
SCORES = "scores"
"""The folder of a dataset with what models say of its samples; see `tasks.dataset.scores`."""
VERIFIED = "verified.jsonl"
"""The file of a dataset that records when its versions were verified."""
FRESH = "fresh.json"
"""The file of a dataset that records when it was last found, or made, as the raw data are."""
MIRRORED = "mirror.json"
"""The file of a dataset that records where its last version was copied to."""
CAPTIONS = "captions"
"""The field of a sample's `json` that lists all captions of its image, of which the first is its `txt`."""
NAME_DIGITS = 12
MOST_SHARDS = 1_000_000
"""The most shards of a split that a damaged table can make a reader look for: numbers have six digits."""
_SPLIT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
VERSION_NAME = re.compile(rf"[0-9a-f]{{{NAME_DIGITS}}}")


def is_split(name: str) -> bool:
    """Whether a split may have this name; other names could point outside the version's folder."""
    return bool(_SPLIT.fullmatch(name))


def shard_name(split: str, number: int) -> str:
    """`train/000007.tar`, relative to the version's folder."""
    return f"{split}/{number:06d}.tar"


def sizes_name(split: str) -> str:
    """The file with the number of samples per shard, as trainers read it: `train/sizes.json`."""
    return f"{split}/sizes.json"


def index_name(split: str) -> str:
    """`index/train.npy`."""
    return f"index/{split}.npy"


def samples_name(split: str) -> str:
    """`samples/train.parquet`."""
    return f"samples/{split}.parquet"


def is_version(path: Path) -> bool:
    """Whether a folder is a version, wherever it lies."""
    return (path / MANIFEST).is_file()


def looks_like_version(folder: Path) -> bool:
    """Whether a folder is a version, however damaged: by its place and name, or by a file that only versions
    have."""
    is_named = folder.parent.name == VERSIONS and VERSION_NAME.fullmatch(folder.name) is not None
    return folder.is_dir() and (is_named or any((folder / mark).exists() for mark in MARKS))


def current(dataset: Path) -> Path | None:
    """The folder of the current version, or None before the first one is published; UsageError where the link
    cannot be read."""
    version = linked(dataset)
    return version if version is not None and is_version(version) else None


def linked(dataset: Path) -> Path | None:
    """The folder that `current` points at, even when it has lost its manifest, or None where there is none;
    UsageError where the link cannot be read."""
    with unreadable_as_error(), ignore_missing():
        version = dataset / os.readlink(dataset / CURRENT)
        return version if version.is_dir() else None
    return None


def resolve(path: Path) -> Path:
    """The folder of the version that a dataset, its `current` or a version's own path stands for; else
    UsageError."""
    with unreadable_as_error():
        if path.is_symlink():
            path = path.parent / os.readlink(path)
        if is_version(path):
            return path
        version = current(path)
        is_folder = path.is_dir()
    if version is None:
        problem = "holds no version of a dataset" if is_folder else "is no folder"
        raise UsageError(f"{path} {problem}; give DATASET or DATASET/versions/VERSION, or build it first")
    return version
