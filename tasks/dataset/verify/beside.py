"""The files beside a version's tars: manifest, tables, index.

Those of this machine are opened where they lie. A remote one is fetched once, into a temporary file without a
name, which is gone when this process is, however it ends.
"""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, cast

from blake3 import blake3

from tasks.core.files import CHUNK, disk_full_as_error
from tasks.core.stores import LocalStore, NotRegular, read_at_most
from tasks.dataset.verify.place import split_query, store_at


class Beside:
    """Opens them by name, as often as one likes. OSError when one cannot be read."""

    def __init__(self, folder: str) -> None:
        self._store = store_at(folder)
        self._query = split_query(folder)[1]
        self._copies: dict[str, BinaryIO] = {}

    def open(self, name: str) -> BinaryIO:
        """The file, seekable."""
        if isinstance(self._store, LocalStore):
            return self._store.open(name)
        return io.BufferedReader(_Reader(self._copy(name)), CHUNK)

    def read(self, name: str, most: int) -> bytes:
        """The file's content; OSError when it has more than `most` bytes."""
        with self.open(name) as file:
            content = read_at_most(file, most)
        if len(content) > most:
            raise NotRegular(f"it has more than {most:,} bytes")
        return content

    def size(self, name: str) -> int:
        with self.open(name) as file:
            return file.seek(0, os.SEEK_END)

    def blake3(self, name: str) -> str:
        with self.open(name) as file:
            return hashlib.file_digest(cast(Any, file), cast(Any, blake3)).hexdigest()

    def _copy(self, name: str) -> BinaryIO:
        known = self._copies.get(name)
        if known is not None:
            return known
        with self._store.open(name + self._query) as file, disk_full_as_error(Path(tempfile.gettempdir())):
            copy = cast(BinaryIO, tempfile.TemporaryFile())  # noqa: SIM115 - `close` closes it
            self._copies[name] = copy
            try:
                while content := file.read(CHUNK):
                    copy.write(content)
                copy.flush()
            except BaseException:
                del self._copies[name]
                copy.close()
                raise
        return copy

    def close(self) -> None:
        for copy in self._copies.values():
            copy.close()

    def __enter__(self) -> Beside:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Reader(io.RawIOBase):
    """A reader of a copy with a position of its own."""

    def __init__(self, copy: BinaryIO) -> None:
        self._descriptor = copy.fileno()
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = (0, self._position, os.fstat(self._descriptor).st_size)[whence]
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        count = os.preadv(self._descriptor, [buffer], self._position)
        self._position += count
        return count
