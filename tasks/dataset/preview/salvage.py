"""Finds samples in a shard that may be damaged, by the tar's own headers: neither index nor tables are asked,
because a program that wrote into the shard has moved what they point at.

A damaged header is stepped over, block by block. Nothing is checked against a checksum.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from tasks.dataset.tar.format import BLOCK, REGULAR, Header, padding, parse_header

MOST_STEPS = 1 << 16
"""Blocks that are stepped over in search of a header, in a shard."""
MOST_BYTES = 1 << 29
"""Larger members are not read."""
BUFFER = 1 << 20

Places = Mapping[str, tuple[int, int]]
"""Where each member of a sample starts, by suffix, and its bytes."""


def find(shard: Path, keys: Collection[str]) -> dict[str, Places]:
    """The members of each sample that is found, whether they stand together or not; of two members of one
    name the first. OSError when the shard cannot be read."""
    found: dict[str, dict[str, tuple[int, int]]] = {}
    with shard.open("rb", buffering=BUFFER) as file:
        end = os.fstat(file.fileno()).st_size
        for header, start in _headers(file, end):
            folder, slash, name = header.text.rpartition("/")
            key, _, suffix = name.partition(".")
            is_whole = start + header.size <= end and header.size <= MOST_BYTES
            if folder + slash + key in keys and header.kind in REGULAR and is_whole:
                found.setdefault(folder + slash + key, {}).setdefault(suffix, (start, header.size))
    return dict(found)


def read(shard: Path, places: Places) -> dict[str, bytes]:
    """The content of each member; OSError when the shard cannot be read."""
    with shard.open("rb") as file:
        return {suffix: os.pread(file.fileno(), size, start) for suffix, (start, size) in places.items()}


def _headers(file: BinaryIO, end: int) -> Iterator[tuple[Header, int]]:
    """Each header that makes sense, and where its content starts."""
    offset = steps = 0
    while offset < end and steps < MOST_STEPS:
        file.seek(offset)
        offset += BLOCK
        try:
            header = parse_header(file.read(BLOCK))
        except ValueError:
            header = None
        if header is None:
            steps += 1
            continue
        yield header, offset
        offset += header.size + padding(header.size)
