"""Many tar headers at once: a run of plain files whose headers are all sound, and the next sound header.

Nearly all members of nearly all shards are plain files with short names. Python judges a header in some
microseconds, as long as their content takes to hash; numpy judges hundreds together in a tenth of that.
Whatever is unusual ends the run, and is looked at by itself.
"""

from __future__ import annotations

import re
from struct import Struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tasks.dataset.tar.format import Broken, parse_header
from tasks.dataset.tar.writer import BLOCK, padding
from tasks.dataset.verify.reader import Reader

WORTH_IT = 8
"""Members below which numpy is not worth calling."""
NAME, KIND, PREFIX = slice(0, 100), 156, 345
DIGITS, BEHIND_SIZE = slice(124, 135), 135
_size_and_kind = Struct(">11s21xB").unpack_from
CHECKSUM, BEHIND_CHECKSUM, CHECKSUM_FIELD = slice(148, 154), 154, slice(148, 156)
PLAIN, ABOUT = (ord("0"), 0), ord("x")
"""Kinds of a plain file, in V7's headers too, and of pax records."""
HARMLESS = re.compile(rb"(\d{1,4}) (?:[acm]time|[ug]id|[ug]name|LIBARCHIVE\.\w+)=[^\r\n]*\n")
LONGEST_RECORDS = 1024
"""Bytes."""
NEAR = 8
"""Blocks that are searched for a header one by one, before all that are in the buffer."""
POWERS = 8.0 ** np.arange(5, -1, -1)
SPACE, ZERO = 0x20, 0x30
TEXT = bytes(range(0x20, 0x7F))
"""Printable ASCII."""

Bytes = NDArray[np.uint8]


class Run(NamedTuple):
    """Adjacent members: their names, also split at the first dot, their sizes, where in the file their
    headers, or records about them, start, and where in the buffer their contents do; `stop` is the buffer's
    position behind them. `is_tame` when every name is `key.suffix` in printable ASCII, and no folder
    before it has a dot."""

    names: list[bytes]
    keys: list[bytes]
    suffixes: list[bytes]
    sizes: list[int]
    starts: list[int]
    contents: list[int]
    stop: int
    is_tame: bool

    @classmethod
    def of(
        cls, names: list[bytes], sizes: list[int], starts: list[int], contents: list[int], stop: int
    ) -> Run:
        joined = b" ".join(names)
        has_folders = b"/" in joined
        plain = [name.removeprefix(b"./") for name in names] if has_folders else names
        parts = [name.partition(b".") for name in plain]
        keys, suffixes = [part[0] for part in parts], [part[2] for part in parts]
        is_tame = not joined.translate(None, TEXT) and all(keys) and all(suffixes)
        if has_folders:
            is_tame = is_tame and _have_plain_folders(keys, suffixes)
        if b"__" in joined:
            is_tame = is_tame and not any(name.startswith(b"__") for name in names)
        return cls(names, keys, suffixes, sizes, starts, contents, stop, is_tame)


def _have_plain_folders(keys: list[bytes], suffixes: list[bytes]) -> bool:
    """Whether folders are below this one, without a dot, and before a name."""
    are_below = not any(key.startswith(b"/") or key.endswith(b"/") for key in keys)
    return are_below and b"/" not in b" ".join(suffixes)


def run_of(reader: Reader) -> Run | None:
    """The plain files that come next and lie whole in the buffer; None when they are too few to matter."""
    buffer = reader.buffer
    found, sizes = _follow(buffer, reader.at, reader.end)
    if len(found) < WORTH_IT:
        return None
    places = np.array(found)
    heads = np.frombuffer(buffer, np.uint8).reshape(-1, BLOCK)[places // BLOCK]
    is_sound = _are_sound(heads)
    count = len(found) if is_sound.all() else int(is_sound.argmin())
    members = np.flatnonzero(heads[:count, KIND] != ABOUT).tolist()
    if len(members) < WORTH_IT:
        return None
    count = members[-1] + 1
    stop = found[count - 1] + BLOCK + sizes[count - 1] + padding(sizes[count - 1])
    names: list[bytes] = np.ascontiguousarray(heads[:count, NAME]).view("S100")[:, 0].tolist()
    firsts = places[:count]
    contents = firsts + BLOCK
    if len(members) < count:
        firsts = firsts[[0, *(member + 1 for member in members[:-1])]]
        contents = contents[members]
        names, sizes = [names[number] for number in members], [sizes[number] for number in members]
    return Run.of(names, sizes[:count], (firsts + reader.base).tolist(), contents.tolist(), stop)


def _follow(buffer: bytearray, at: int, end: int) -> tuple[list[int], list[int]]:
    """Where the headers of members are, and of harmless records about them, and the sizes that lead on."""
    starts: list[int] = []
    sizes: list[int] = []
    last = end - BLOCK
    while at <= last:
        digits, kind = _size_and_kind(buffer, at + DIGITS.start)
        try:
            size = int(digits, 8)
        except ValueError:
            break
        after = at + (size + 2 * BLOCK - 1 & -BLOCK)
        if size < 0 or after > end:
            break
        if kind not in PLAIN and (kind != ABOUT or not _is_harmless(buffer[at + BLOCK : at + BLOCK + size])):
            break
        starts.append(at)
        sizes.append(size)
        at = after
    return starts, sizes


def _is_harmless(records: bytearray) -> bool:
    """Whether pax records are whole and tell nothing but times and owners, as Python's tarfile has them."""
    if len(records) > LONGEST_RECORDS:
        return False
    found = [HARMLESS.fullmatch(line) for line in records.splitlines(keepends=True)]
    return all(line is not None and int(line[1]) == len(line[0]) for line in found)


def _are_sound(heads: Bytes) -> NDArray[np.bool_]:
    """Whether each header has its size in eleven digits and the checksum in six that its bytes add up to, and
    no part of its name elsewhere."""
    digits = heads[:, DIGITS] - np.uint8(ZERO)
    is_sound: NDArray[np.bool_] = (digits.max(axis=1) < 8) & (heads[:, BEHIND_SIZE] & ~np.uint8(SPACE) == 0)
    is_sound &= (heads[:, PREFIX] == 0) & (heads[:, BEHIND_CHECKSUM] == 0)
    stored = heads[:, CHECKSUM].astype(np.float64) @ POWERS - POWERS.sum() * ZERO
    is_sound &= stored == _checksums(heads)
    return is_sound


def _checksums(heads: Bytes) -> NDArray[np.uint32]:
    """The sum of each header's bytes, those of the checksum itself taken for spaces."""
    total: NDArray[np.uint32] = heads.sum(axis=1, dtype=np.uint32)
    own: NDArray[np.uint32] = heads[:, CHECKSUM_FIELD].sum(axis=1, dtype=np.uint32)
    return total - own + np.uint32(8 * SPACE)


def next_header(buffer: bytearray, at: int, end: int) -> int | None:
    """Where the next block that is a sound header stands, by its own checksum."""
    last = end // BLOCK * BLOCK
    near = min(at + NEAR * BLOCK, last)
    for start in range(at, near, BLOCK):
        if is_header(bytes(buffer[start : start + BLOCK])):
            return start
    digits = np.frombuffer(buffer, np.uint8).reshape(-1, BLOCK)[near // BLOCK : last // BLOCK, CHECKSUM_FIELD]
    is_like = ((digits - np.uint8(ZERO)) < 8) | (digits == SPACE) | (digits == 0)
    for number in np.flatnonzero(is_like.all(axis=1) & digits.any(axis=1)).tolist():
        start = near + number * BLOCK
        if is_header(bytes(buffer[start : start + BLOCK])):
            return int(start)
    return None


def is_header(block: bytes) -> bool:
    try:
        return parse_header(block) is not None
    except Broken:
        return False
