"""Files of remote stores: their ranges, and a file object that reads them in order or from place to place.

Ranges of web servers and of S3 are fetched by `ranges`, at addresses that fsspec's clients sign or were
redirected to. What a plain request does not get, the client asks for.
"""

from __future__ import annotations

import errno
import io
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tasks.core.remote import clients, ranges, web
from tasks.core.remote.clients import call, pause_s
from tasks.core.stores import is_web, redact

SLOWEST = 50_000
"""Bytes per second below which a client library's request for a range is given up."""
SIGNED_S = 3600
"""How long an address is valid that is signed for the requests of a file, and used for half as long."""
BUFFER = 1 << 18
"""Bytes that small reads are served from."""


class FileRanges:
    """The ranges of one file.

    `address` is where plain requests get them: for a file of a web server where its own address was
    redirected to, for one of S3 a signed address; "" where only the client library can fetch the file.

    A file that is replaced while it is read is an error: two plain answers then state different sizes, or on
    S3 different ETags. A web server's ETags are not compared, because the machines behind one name may give
    the same file different ones.
    """

    def __init__(self, fs: Any, path: str) -> None:
        self.fs, self.path, self.address = fs, path, ""
        self.is_signed, self.signed_at = path.startswith("s3://"), float("-inf")
        self._has_tags = self.is_signed
        self._signing = threading.Lock()
        self._state: tuple[int, bytes] | None = None
        self._refused = ""

    def fetch(self, start: int, end: int) -> memoryview:
        """Return the bytes from `start` up to `end`; raises OSError, also where there are fewer."""
        content = self.range(start, end).content
        if len(content) != end - start:
            raise self._changed()
        return content

    def range(self, start: int, end: int) -> ranges.Range:
        """Return a range. The last try goes through the client library, which can name the cause of a
        failure."""
        tried = 0
        while tried < clients.TRIES - 1 and (address := self._plain()):
            time.sleep(pause_s(tried))
            try:
                found = ranges.get_range(address, start, end)
            except ranges.Refused:
                self._refused, self.address, self.is_signed, tried = address, "", False, 0
            except OSError:
                tried += 1
            else:
                self.compare(found.size, found.tag)
                return found
        return self._by_client(start, end, tried)

    def compare(self, size: int, tag: bytes = b"") -> None:
        """Raise OSError if this is not the size and ETag that the answers before had."""
        state = size, tag if self._has_tags else b""
        if self._state not in (None, state):
            raise self._changed()
        self._state = state

    def _changed(self) -> OSError:
        return OSError(errno.EIO, "the file has changed while it was read", redact(self.path))

    def _by_client(self, start: int, end: int, tried: int) -> ranges.Range:
        fs, path, known = self.fs, self.path, {"start": start, "end": end, "tried": tried}
        if is_web(path):
            content, found = call(fs, web.part, fs, path, where=path, limit_s=math.inf, **known)
            self.address = found if found != self._refused else ""
        else:
            limit_s = ranges.STALL_S + (end - start) / SLOWEST
            content = call(fs, fs._cat_file, path, where=path, limit_s=limit_s, **known)
        return ranges.Range(memoryview(content))

    def _plain(self) -> str:
        if self.is_signed:
            with self._signing:
                if time.monotonic() - self.signed_at > SIGNED_S / 2:
                    sign([self])
        return self.address


def sign(sources: Sequence[FileRanges]) -> None:
    """Sign an address for each of these files of S3."""
    if not sources:
        return
    fs, first = sources[0].fs, sources[0].path

    async def addresses() -> list[str]:
        return [await fs._url(source.path, expires=SIGNED_S, **fs.req_kw) for source in sources]

    signed = call(fs, addresses, where=first, limit_s=clients.STAT_S)
    for source, address in zip(sources, signed, strict=True):
        source.address, source.signed_at = address, time.monotonic()


class RemoteFile(io.RawIOBase):
    """A remote file that is fetched in ranges, except for the bytes of its beginning that were read `ahead`:
    several at once where a read is large, and ahead of a reader that `is_in_order`."""

    def __init__(
        self, fetch: Callable[[int, int], memoryview], path: str, size: int, ahead: memoryview
    ) -> None:
        self._fetch, self._path, self._size = fetch, path, size
        self._position = 0
        self._block, self._block_start = ahead, 0
        self._coming: ranges.RangesAhead | None = None
        self.is_in_order = False

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + (0, self._position, self._size)[whence]
        return self._position

    def close(self) -> None:
        if self._coming is not None:
            self._coming.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        start = self._position
        end = min(start + len(view), self._size)
        while self._position < end:
            at = self._position - start
            content = self._next(end)
            view[at : at + len(content)] = content
        return max(self._position - start, 0)

    def readall(self) -> bytes:
        """Read in blocks, because the inherited method requests 8 KiB at a time. Memory is allocated for what
        arrives, whatever size the store has reported."""
        return b"".join(self.blocks())

    def blocks(self) -> Iterator[memoryview]:
        """Yield the rest of the file in the pieces in which it is fetched."""
        self.is_in_order = True
        while self._position < self._size:
            yield self._next(self._size)

    def _next(self, end: int) -> memoryview:
        """Return at least one byte from the position on, none at or after `end`, and move on."""
        at = self._position - self._block_start
        if not 0 <= at < len(self._block):
            self._block, self._block_start = self._fetched(end), self._position
            at = 0
        content = self._block[at : at + end - self._position]
        self._position += len(content)
        return content

    def _fetched(self, end: int) -> memoryview:
        coming, here = self._coming, self._position
        if coming is None or coming.position != here or coming.end == here:
            if coming is not None:
                coming.close()
            goes_on = here == self._block_start + len(self._block)
            coming = self.go_ahead(ranges.AHEAD if goes_on or not self.is_in_order else 1, end)
        return coming.next()

    def go_ahead(self, most: int, end: int = 0) -> ranges.RangesAhead:
        """Request what comes next: to the end of the file for a reader in order, else up to `end`."""
        until = end if end and not self.is_in_order else self._size
        self._coming = ranges.RangesAhead(self._fetch, self._position, until, most)
        return self._coming
