"""Find which member of a bad sample is damaged: the slow path, taken once a sample was found to be bad.

One checksum covers a whole sample, so it proves damage but not where it is. A tar header has a checksum of
its own, padding is zeros, PNG has checksums too, and everything else is decoded. Text and JPEG mostly survive
a flipped bit: where nothing fails, every member is named that no checksum proves sound.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from functools import lru_cache
from itertools import accumulate
from pathlib import Path

from tasks.core.errors import UsageError
from tasks.dataset.formats import Unjudged, png
from tasks.dataset.formats.checks import check_of
from tasks.dataset.formats.volumes import stored
from tasks.dataset.tar.format import BLOCK, padding, parse_header


def key_of_row(version: Path, split: str, row: int) -> str | None:
    """Return the key of a row, from one row group of `samples/<split>.parquet`; None if it cannot be read."""
    import pyarrow as pa  # imported here, because most loader workers never meet a bad sample

    path = version / "samples" / f"{split}.parquet"
    try:
        starts = _starts(path)
        group = next(number for number, start in enumerate(starts[1:]) if row < start)
        return _keys(path, group)[row - starts[group]]
    except (OSError, pa.ArrowException, KeyError, StopIteration):
        return None


def key_in_header(span: bytes) -> str:
    """Return the key in a sample's first tar header, as far as it can be printed."""
    return _printable(span[:100].partition(b"\0")[0]).partition(".")[0]


@lru_cache(maxsize=1)
def _starts(path: Path) -> list[int]:
    """Return the first row of each row group, and the number of all rows."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        sizes = (file.metadata.row_group(number).num_rows for number in range(file.num_row_groups))
        return list(accumulate(sizes, initial=0))


@lru_cache(maxsize=2)
def _keys(path: Path, group: int) -> list[str]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        keys: list[str] = (
            file.read_row_group(group, columns=["key"], use_threads=False).column("key").to_pylist()
        )
        return keys


def in_span(span: bytes, key: str) -> tuple[str | None, str]:
    """Return the member that changed in a sample's span of a tar, and the evidence; see `in_members`."""
    members: dict[str, bytes] = {}
    offset = 0
    while offset < len(span):
        block = span[offset : offset + BLOCK]
        try:
            header = parse_header(block)
        except ValueError:
            return _suffix(block, key), "its tar header is damaged"
        if header is None:
            return None, "zeros stand where a tar header belongs"
        suffix = header.text.removeprefix(f"{key}.")
        start, stop = offset + BLOCK, offset + BLOCK + header.size
        offset = stop + padding(header.size)
        if any(span[stop:offset]):
            return suffix, "its padding holds other bytes than zeros"
        members[suffix] = span[start:stop]
    return in_members(members)


def in_members(members: Mapping[str, bytes]) -> tuple[str | None, str]:
    """Return the first member that does not decode, and why; else all members that no checksum proves sound,
    joined by `|`, and an empty reason."""
    doubtful = []
    for suffix in members:
        try:
            is_proven = _check(suffix, members)
        except (Unjudged, UsageError):  # undecidable, or its package is not installed
            is_proven = False
        except MemoryError:
            raise  # the fault is this host's, not the sample's
        except Exception as error:  # noqa: BLE001 - decoders raise whatever torn bytes lead them to
            return suffix, str(error)[:200]
        if not is_proven:
            doubtful.append(suffix)
    return "|".join(doubtful or members) or None, ""


def _suffix(block: bytes, key: str) -> str | None:
    """Return the suffix in a damaged header, as far as it can be printed."""
    return _printable(block[len(key) + 1 : 100].partition(b"\0")[0]) or None


def _printable(name: bytes) -> str:
    text = name.decode("ascii", "replace")
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def _check(suffix: str, members: Mapping[str, bytes]) -> bool:
    """Return whether checksums prove that the member is unchanged; False where it only decodes. Raises where
    it is damaged."""
    content = members[suffix]
    if suffix in stored.MEMBERS:
        _require_chunks(suffix, members)
    elif (check := check_of(suffix)) is not None:
        check(content)
    return content.startswith(png.SIGNATURE) and _is_proven(content)


def _require_chunks(name: str, members: Mapping[str, bytes]) -> None:
    """Check the checksums of the volume's chunks, which the sample's `json` holds."""
    volume = stored.open_volume(name, members[name])
    facts = json.loads(members.get("json", b"{}"))
    expected = facts.get("chunk_crc32c") if isinstance(facts, dict) else None
    stored.read_crop(volume, None, expected)


def _is_proven(picture: bytes) -> bool:
    """Return whether all of a PNG consists of chunks whose checksums match."""
    end = len(png.SIGNATURE)
    for name, start, end in png.chunks(picture):
        if zlib.crc32(picture[start + 4 : end - 4]) != int.from_bytes(picture[end - 4 : end], "big"):
            raise ValueError(f"the checksum of its chunk {name.decode('latin-1')!r} is another")
    return end == len(picture)
