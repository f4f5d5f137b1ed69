"""Tars in gzip, read forward in constant memory, as other loaders of tars do."""

from __future__ import annotations

import gzip
import io
import zlib
from typing import Any, BinaryIO

from tasks.core.files import CHUNK
from tasks.dataset.tar.format import END

ZIPPED = (".tar.gz", ".tgz")
"""The names that are read through gzip."""


def unzipped(file: BinaryIO, name: str) -> BinaryIO:
    """The bytes of the tar in a file, decompressed where its name says gzip; closed with the file."""
    return io.BufferedReader(_Gunzipped(file), CHUNK) if name.endswith(ZIPPED) else file


class Bomb(OSError):
    """Compressed data that stand for absurdly many bytes."""


class _Gunzipped(io.RawIOBase):
    """Reads forward in constant memory.

    Damage of the compression becomes what a reader of tars knows: data that end early, or an OSError. A file
    that grows beyond all measure is refused before it has cost hours.
    """

    FREE_BYTES = 1 << 30
    MOST_GROWTH = 500
    """Times its compressed size that a file may grow to, beyond FREE_BYTES."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._plain = gzip.GzipFile(fileobj=file, mode="rb")
        self._count = 0
        self._end = b""
        """The last bytes read, which distinguish a whole tar from one that is cut."""

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._count

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        try:
            content = self._plain.read1(len(view))
        except EOFError:
            if self._end == END:
                raise OSError("its gzip data are cut at the very end") from None
            return 0
        except zlib.error as error:
            raise OSError(f"its gzip data are damaged ({error})") from None
        view[: len(content)] = content
        self._count += len(content)
        self._end = (self._end + content)[-len(END) :]
        if self._count > max(self.FREE_BYTES, self.MOST_GROWTH * self._file.tell()):
            raise Bomb(f"its gzip data grow more than {self.MOST_GROWTH}-fold: refused")
        return len(content)

    def close(self) -> None:
        if not self.closed:
            self._plain.close()
            self._file.close()
        super().close()
