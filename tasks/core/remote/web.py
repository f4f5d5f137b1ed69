"""Requests to web servers, in place of those of fsspec's own client.

fsspec's client treats any failed look-up as a missing file, reads the whole file for every block from a
server that ignores ranges, and accepts any amount of data. Here a failure keeps its type, a file without
ranges is copied once to a temporary file, and no more is read than was requested. A request ends STALL_S
after the last LEAST bytes, so neither a file's size nor a trickle of bytes decides how long it takes.
"""

from __future__ import annotations

import asyncio
import errno
import tempfile
from collections.abc import AsyncIterator
from typing import Any, BinaryIO, NamedTuple

from tasks.core.remote import ranges
from tasks.core.stores import NotRegular

IN_MEMORY = 8 << 20
"""Bytes; larger files of servers without range requests are buffered on disk."""
CHUNK = 1 << 20
TAGS = ("ETag", "Content-MD5", "Last-Modified")
NOT_BY_HEAD = (400, 401, 403, 405, 501)
"""Status codes of servers that allow only GET, as signed addresses do."""


class WrongAnswer(OSError):
    """A server sent something other than what was requested; a retry would not help."""


async def info(fs: Any, url: str) -> dict[str, Any]:
    """Return size and tags in fsspec's format; a page that lists a folder is a directory."""
    session = await fs.set_session()
    async with session.head(_encoded(fs, url), allow_redirects=True, **fs.kwargs) as answer:
        if answer.status not in NOT_BY_HEAD:
            return _described(answer, url)
    async with session.get(_encoded(fs, url), **_with_range(fs, 0, 1)) as answer:
        return _described(answer, url)


class WebBeginning(NamedTuple):
    """The first bytes of a file, its size, and the address that gave them after redirects; the whole file
    from a server without range requests."""

    content: bytes | memoryview
    size: int
    address: str
    whole: BinaryIO | None = None


async def begin(fs: Any, url: str, count: int, most: int | None = None) -> WebBeginning:
    """Return the first `count` bytes; where the server sends the whole file, no more of it than slightly
    above `most` bytes."""
    session = await fs.set_session()
    async with (
        asyncio.timeout(ranges.STALL_S) as limit,
        session.get(_encoded(fs, url), **_with_range(fs, 0, count)) as answer,
    ):
        if answer.status == 416:
            return WebBeginning(b"", 0, "")
        answer.raise_for_status()
        if answer.status == 206:
            return WebBeginning(await _content(answer, limit, count), _size(answer), str(answer.url))
        whole = tempfile.SpooledTemporaryFile(max_size=IN_MEMORY)  # noqa: SIM115 - the reader closes it
        async for chunk in _chunks(answer, limit):
            whole.write(chunk)
            if most is not None and whole.tell() > most:
                break
        size = whole.tell()
        whole.seek(0)
        return WebBeginning(b"", size, "", whole)  # type: ignore[arg-type]


async def part(fs: Any, url: str, start: int, end: int) -> tuple[bytes, str]:
    """Return the bytes from `start` up to but not including `end`, and the address that gave them."""
    session = await fs.set_session()
    async with (
        asyncio.timeout(ranges.STALL_S) as limit,
        session.get(_encoded(fs, url), **_with_range(fs, start, end)) as answer,
    ):
        answer.raise_for_status()
        if answer.status != 206:
            raise WrongAnswer(errno.EIO, "the server no longer supports range requests")
        return await _content(answer, limit, end - start), str(answer.url)


async def _content(answer: Any, limit: asyncio.Timeout, most: int) -> bytes:
    pieces, size = [], 0
    async for chunk in _chunks(answer, limit):
        size += len(chunk)
        if size > most:
            raise WrongAnswer(errno.EIO, "the server sends more than was requested")
        pieces.append(chunk)
    return b"".join(pieces)


async def _chunks(answer: Any, limit: asyncio.Timeout) -> AsyncIterator[bytes]:
    """Yield the body as it arrives, and put off the limit at each LEAST bytes."""
    missing = ranges.LEAST
    async for chunk in answer.content.iter_chunked(CHUNK):
        missing -= len(chunk)
        if missing <= 0:
            missing = ranges.LEAST
            limit.reschedule(asyncio.get_running_loop().time() + ranges.STALL_S)
        yield chunk


def _encoded(fs: Any, url: str) -> Any:
    try:
        return fs.encode_url(url)
    except ValueError:
        raise NotRegular("no valid address") from None


def _with_range(fs: Any, start: int, end: int) -> dict[str, Any]:
    headers = {**fs.kwargs.get("headers", {}), "Range": f"bytes={start}-{end - 1}"}
    return {**fs.kwargs, "headers": headers}


def _described(answer: Any, url: str) -> dict[str, Any]:
    answer.raise_for_status()
    is_folder = answer.url.path.endswith("/") and not url.endswith("/")
    tags = {tag: answer.headers[tag] for tag in TAGS if tag in answer.headers}
    return {**tags, "size": _size(answer), "type": "directory" if is_folder else "file"}


def _size(answer: Any) -> int:
    """Return the size in bytes; -1 if the server does not report it."""
    whole = answer.headers.get("Content-Range", "").rpartition("/")[2]
    if whole.isdecimal():
        return int(whole)
    return -1 if answer.status == 206 else int(answer.headers.get("Content-Length", -1))
