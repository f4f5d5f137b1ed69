"""Reads a sample with a volume from a map of its shard: everything but the volume's chunks, which wait until
a crop touches them.

The index has one CRC32C for all bytes of a sample, and the sample's `json` has one for each chunk of its
volume. The checksum of the whole follows from those of its parts. So what is read here is compared with the
index by putting the chunks' checksums from `json` in the place of their bytes. That proves these checksums as
well, with which `decode_volume` then compares each chunk that it takes. Nothing is used unproven, and nothing
else is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from tasks.core.mapped import map_range, readable
from tasks.dataset.formats.volumes import stored
from tasks.dataset.tar.format import BLOCK, Sample, padding, parse_header

POLYNOMIAL = 0x82F63B78
Tables = NDArray[np.uint32]
"""[4, 256]: the product for each value of each of a checksum's four bytes; that of a checksum is the XOR of
its four."""
SMALLEST = 1 << 20
"""Samples of at least so many bytes are mapped; smaller ones are read faster than mapped."""
Span = NDArray[np.uint8]


def mapped_sample(descriptor: int, offset: int, length: int, crc32c: int | None) -> Sample | None:
    """Return the sample in a span of a shard, its volume as a view of a map and the other members as bytes.

    None where the span holds no volume with checksums, or where what was read is not proven by `crc32c`: then
    the caller reads the whole span, which shows what is wrong. None for `crc32c` proves nothing.
    """
    try:
        span = map_range(descriptor, offset, length)
        key, places = _places(span)
        volume = stored.member_of(places)
        if volume is None:
            return None
        members: dict[str, Any] = {
            name: bytes(readable(span[place])) for name, place in places.items() if name != volume
        }
        if crc32c is not None and _checksum(span, places[volume], volume, members) != crc32c:
            return None
        return Sample(key, members | {volume: span[places[volume]]})
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _places(span: Span) -> tuple[str, dict[str, slice]]:
    """Return the sample's key and where its members lie; ValueError or OSError if that cannot be read."""
    key, places, at = "", {}, 0
    while at < len(span):
        header = parse_header(bytes(readable(span[at : at + BLOCK])))
        if header is None:
            raise ValueError("zeros stand where a tar header belongs")
        key, _, suffix = header.text.partition(".")
        start = at + BLOCK
        places[suffix] = slice(start, start + header.size)
        at = start + header.size + padding(header.size)
    return key, places


def _checksum(span: Span, place: slice, volume: str, members: Mapping[str, bytes]) -> int:
    """Return the CRC32C of the span if the volume's chunks are those of which `json` has the checksums."""
    expected: Sequence[int] = json.loads(members["json"])["chunk_crc32c"]
    chunks = stored.open_volume(volume, span[place]).spans
    checksums, lengths, at = [], [], 0

    def read_up_to(end: int) -> None:
        if at < end:
            checksums.append(google_crc32c.value(readable(span[at:end])))
            lengths.append(end - at)

    for (start, stop), checksum in zip(chunks, expected, strict=True):
        if start < stop:
            read_up_to(place.start + start)
            checksums.append(checksum)
            lengths.append(stop - start)
            at = place.start + stop
    read_up_to(len(span))
    return combined(checksums, lengths)


def combined(checksums: Sequence[int], lengths: Sequence[int]) -> int:
    """Return the CRC32C of the parts' concatenation, given the CRC32C and the length in bytes of each.

    Appending n zero bytes to a text multiplies its checksum, a polynomial over GF(2), by x^(8n). The checksum
    of a concatenation is the sum of its parts' checksums, each multiplied for the bytes that follow it. All
    parts are multiplied together, one power of two at a time, so some hundred parts take a millisecond.
    Source: zlib's crc32_combine; polynomial: RFC 3720, 12.1.

    OverflowError for a checksum that has no 32 bits, ValueError for one that is no number.
    """
    parts = np.array(checksums, np.uint32)
    after = np.cumsum(np.array([*lengths, 0], np.int64)[::-1])[::-1][1:]
    if len(parts) != len(after):
        raise ValueError(f"{len(parts)} checksums of {len(after)} parts")
    for power in range(int(after.max(initial=0)).bit_length()):
        follows = (after >> power & 1).astype(bool)
        parts[follows] = _multiplied(parts[follows], _zeros(power))
    return int(np.bitwise_xor.reduce(parts, initial=np.uint32(0)))


def _multiplied(checksums: NDArray[np.uint32], tables: Tables) -> NDArray[np.uint32]:
    found: NDArray[np.uint32] = np.zeros_like(checksums)
    for byte, table in enumerate(tables):
        found ^= table[checksums >> np.uint32(8 * byte) & np.uint32(255)]
    return found


@lru_cache(maxsize=64)
def _zeros(power: int) -> Tables:
    """Return the tables for 2^power zero bytes."""
    if power:
        half = _zeros(power - 1)
        return _multiplied(half.ravel(), half).reshape(4, 256)
    places = np.arange(0, 32, 8, dtype=np.uint32)
    values: Tables = np.arange(256, dtype=np.uint32) << places[:, None]
    for _ in repeat(None, 8):
        values = np.where(values & 1, values >> 1 ^ np.uint32(POLYNOMIAL), values >> 1).astype(np.uint32)
    return values
