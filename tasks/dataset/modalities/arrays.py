"""Named arrays out of an NPZ member held in memory, without unpickling and within a limit.

The limit holds for what is unpacked, whatever a header claims, so a bomb costs no more than that.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import IO, Any

from numpy.typing import NDArray

from tasks.core.files import CHUNK
from tasks.dataset.formats import zips
from tasks.dataset.formats.volumes import npy
from tasks.dataset.rejects import Reason, Reject

LARGEST_BYTES = 32 << 20
"""Of all of a sample's embeddings unpacked; MobileCLIP's have 0.2 MB."""
REASONS: Mapping[Reason, Reason] = {
    "volume.undecodable": "reinforcement.members",
    "volume.dtype": "reinforcement.members",
    "volume.pickle": "archive.unsafe",
}
"""What the faults of an array are called here."""

Arrays = Mapping[str, NDArray[Any]]


def unreadable(problem: str) -> Reject:
    return Reject("reinforcement.members", problem)


def bomb(what: str) -> Reject:
    return Reject("archive.bomb", f"{what} unpacks to more than {LARGEST_BYTES:,} bytes")


def read_npz(data: bytes) -> Arrays:
    """Every array of the file; Reject for one that is none, that holds objects, or that is too large."""
    entries = unzip(data, "npz")
    return {
        name.removesuffix(".npy"): _array(name, content)
        for name, content in entries.items()
        if name.endswith(".npy")
    }


def unzip(data: bytes, member: str) -> dict[str, bytes]:
    """The archive's entries by name; Reject when it is torn, encrypted, or too large in all."""
    entries: dict[str, bytes] = {}
    left = LARGEST_BYTES
    with zips.opened(io.BytesIO(data), member, "reinforcement.members") as archive:
        for info in archive.infolist():
            with archive.open(info) as entry:
                content = read_within(entry, left, member)
            left -= len(content)
            if info.filename in entries:
                raise unreadable(f"{member} holds {info.filename!r} twice")
            entries[info.filename] = content
    return entries


def read_within(file: IO[bytes], limit: int, member: str) -> bytes:
    """All of it; Reject when it is more than `limit` bytes, after no more than these."""
    parts: list[bytes] = []
    while part := file.read(CHUNK):
        limit -= len(part)
        if limit < 0:
            raise bomb(member)
        parts.append(part)
    return b"".join(parts)


def _array(name: str, content: bytes) -> NDArray[Any]:
    try:
        return npy.parse(content, name)
    except Reject as reject:
        raise Reject(REASONS.get(reject.reason, reject.reason), reject.detail) from None
