"""Reading shards: the index of a split, and the members of one sample from the bytes of its span.

One read fetches a sample whole; its members are parsed from the tar headers in it. Member names are only
ever keys of a dictionary, never paths. The caller compares the span's CRC32C first, so that parsing needs no
check of its own.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tasks.core.errors import DataError
from tasks.dataset.tar.writer import BLOCK

INDEX = np.dtype([("shard", "<u4"), ("offset", "<u8"), ("length", "<u8"), ("crc32c", "<u4")])
"""A row a sample, in shard order: 24 bytes."""


def shard_name(split: str, number: int) -> str:
    """`train/000007.tar`, relative to the version's folder."""
    return f"{split}/{number:06d}.tar"


def index_path(version: Path, split: str) -> Path:
    return version / "index" / f"{split}.npy"


def read_index(version: Path, split: str) -> NDArray[np.void]:
    """The split's index, memory-mapped, dtype INDEX; DataError naming the splits there are, or the damage."""
    path = index_path(version, split)
    try:
        index: NDArray[np.void] = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        there = ", ".join(sorted(entry.stem for entry in path.parent.glob("*.npy"))) or "none"
        raise DataError(f"{version} has no split {split!r} (it has: {there}); see dataset.splits") from None
    except Exception as error:  # noqa: BLE001 - numpy raises whatever a torn header leads it to
        raise DataError(f"{path}: is no index ({error}); build the dataset again") from None
    if index.dtype != INDEX or index.ndim != 1:
        raise DataError(f"{path}: is no index (dtype {index.dtype}); build the dataset again")
    return index


def parse_sample(span: bytes) -> dict[str, bytes]:
    """The members of one sample by suffix, such as `{"png": …, "txt": …}`; ValueError when it is no tar."""
    members = {}
    offset = 0
    while offset < len(span):
        name = span[offset : offset + 100].partition(b"\0")[0].decode()
        size = int(span[offset + 124 : offset + 135], 8)
        start = offset + BLOCK
        members[name.partition(".")[2]] = span[start : start + size]
        offset = start + size + -size % BLOCK
    if offset != len(span):
        raise ValueError(f"a span of {len(span)} bytes ends within a member")
    return members


def parse_key(span: bytes) -> str:
    """The key of the sample in a span."""
    return span[:100].partition(b"\0")[0].decode().partition(".")[0]
