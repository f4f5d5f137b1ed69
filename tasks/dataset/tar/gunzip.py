"""Reads gzipped tars forward in constant memory, as other loaders of tars do."""

from __future__ import annotations

import gzip
import io
import zlib
from typing import Any, BinaryIO

from tasks.core.files import CHUNK
from tasks.dataset.tar.format import END

ZIPPED = (".tar.gz", ".tgz")
"""Files with these suffixes are read through gzip."""


def unzipped(file: BinaryIO, name: str) -> BinaryIO:
    """Return the tar in a file, decompressed if its name ends in a gzip suffix; closing it closes the
    file."""
    return io.BufferedReader(_Gunzipped(file), CHUNK) if name.endswith(ZIPPED) else file


class Bomb(OSError):
    """Compressed data expand to absurdly many bytes."""


class _Gunzipped(io.RawIOBase):
    """Decompresses forward in constant memory.

    Damage to the compressed data appears as a file that ends early or as an OSError, which readers of tars
    handle. A file that expands too much raises Bomb before it has cost hours.
    """

    FREE_BYTES = 1 << 30
    MOST_GROWTH = 500
    """A file with more than FREE_BYTES may expand to this many times its compressed size."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._plain = gzip.GzipFile(fileobj=file, mode="rb")
        self._count = 0
        self._end = b""
        """The last bytes read, which distinguish a complete tar from one that is cut."""

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
