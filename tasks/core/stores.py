"""Folders of raw data, on this machine or remote, behind one small contract.

Local files are opened by the system's own calls, which cost a tenth of fsspec's; remote ones by fsspec. A
store never writes; a name never runs anything. Listing holds the names of one folder at a time.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from typing import BinaryIO, NamedTuple, Protocol

from tasks.core.errors import DataError
from tasks.core.globs import is_hidden


class Stat(NamedTuple):  # of every sample one is made, in half the time that a frozen dataclass takes
    """Size in bytes, and a text that changes when the content does: time of change, or entity tag."""

    size: int
    stamp: str


ABSENT = Stat(-1, "")

AHEAD = 1 << 18
"""Bytes of a file that are asked for before it has shown that it has more."""


class NotRegular(OSError):
    """A pipe, socket, device or folder where a file belongs, or no name that a file can have."""


class Unreachable(DataError, OSError):
    """The store itself does not answer, or refuses everything: no fault of one sample.

    It ends a build, because taking it for bad samples would publish a dataset that lacks them.
    """

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


class Store(Protocol):
    """A folder. Files are named relative to it, `/` between their parts."""

    location: str
    """As a person would write it, absolute."""

    def stat(self, file: str) -> Stat:
        """ABSENT when there is no such file, or it cannot be looked at; Unreachable."""

    def open(self, file: str, in_order: bool = True) -> BinaryIO:
        """A regular file open for reading, seekable; OSError. Never waits for a pipe's other end.

        Not `in_order`: the reader seeks, so nothing is read ahead of it.
        """

    def read(self, file: str, most: int) -> bytes:
        """A file's content, or its first `most` + 1 bytes where it has more; OSError as `open`.

        Never takes more memory than there are bytes, whatever a server says of their number.
        """

    def look_ahead(self, files: Sequence[str]) -> None:
        """`stat` will be called for these files; a remote store asks about many at once."""

    def entries(self, folder: str = "") -> tuple[list[str], list[str]]:
        """Names of the folders and of the files right in a folder, in order; OSError."""

    def files(self) -> Iterator[str]:
        """Every file below, folder by folder in the order of their names; OSError."""


def read_at_most(file: BinaryIO, most: int) -> bytes:
    """What is left of an open file, or `most` + 1 bytes of it."""
    content = file.read(min(most, AHEAD) + 1)
    if len(content) <= min(most, AHEAD):
        return content
    pieces, size = [content], len(content)
    while size <= most and (content := file.read(min(most + 1 - size, 16 * AHEAD))):
        pieces.append(content)
        size += len(content)
    return b"".join(pieces)


def _device(path: str) -> int:
    try:
        return os.stat(path).st_dev
    except OSError:
        return -1


_SYSTEM = {_device("/proc"), _device("/sys"), _device("/dev")} - {-1, _device("/"), _device("/dev/shm")}
"""Where there are no data but what the system says of itself, such as a process's environment."""


class LocalStore:
    """A folder of this machine. An absolute name is taken as it is.

    Links may lead anywhere, as whole collections are kept as links into a cache; but not to files that the
    system makes up (`/proc/self/environ`), which would bring a machine's secrets into the data.
    """

    def __init__(self, location: str) -> None:
        self.location = os.path.abspath(location)

    def path(self, file: str) -> str:
        return file if file[:1] == "/" else f"{self.location}/{file}"

    def stat(self, file: str) -> Stat:
        try:
            found = os.stat(file if file[:1] == "/" else f"{self.location}/{file}")
        except (OSError, ValueError):
            return ABSENT
        return Stat(found.st_size, str(found.st_mtime_ns))

    def open(self, file: str, in_order: bool = True) -> BinaryIO:
        descriptor, _ = self._opened(file)
        return open(descriptor, "rb")

    def read(self, file: str, most: int) -> bytes:
        descriptor, size = self._opened(file)
        try:
            wanted = min(size, most) + 1
            content = os.read(descriptor, wanted)
            if len(content) == size < wanted:
                return content
            with open(descriptor, "rb", closefd=False) as rest:  # it is larger, or changes right now
                return content + read_at_most(rest, most - len(content)) if len(content) <= most else content
        finally:
            os.close(descriptor)

    def _opened(self, file: str) -> tuple[int, int]:
        """A regular file's descriptor and size."""
        descriptor = os.open(self.path(file), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode) and status.st_dev not in _SYSTEM:
            return descriptor, status.st_size
        os.close(descriptor)
        raise NotRegular("not a regular file")

    def look_ahead(self, files: Sequence[str]) -> None:
        pass

    def entries(self, folder: str = "") -> tuple[list[str], list[str]]:
        folders: list[str] = []
        files: list[str] = []
        with os.scandir(self.path(folder)) as entries:
            for entry in entries:
                (folders if _is_folder(entry) else files).append(entry.name)
        return sorted(folders), sorted(files)

    def files(self) -> Iterator[str]:
        """Links to folders are followed unless they are hidden, but each folder is listed once: at its own
        place where it has one."""
        root = self._identity("")
        seen = {root}  # of folders that were reached over links only; those are few
        waiting = [("", False)]
        while waiting:
            folder, is_linked = waiting.pop()
            below = f"{folder}/" if folder else ""
            folders, files = self.entries(folder)
            for name in files:
                yield below + name
            inside = []
            for name in folders:
                is_link = os.path.islink(self.path(below + name))
                if is_link and (is_hidden(below + name) or self._has_its_place(below + name)):
                    continue
                if is_link or is_linked:
                    identity = self._identity(below + name)
                    if identity in seen:
                        continue
                    seen.add(identity)
                inside.append((below + name, is_link or is_linked))
            waiting += reversed(inside)
        if self._identity("") != root:  # no longer mounted: what was listed is not all
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), self.location)

    def _has_its_place(self, link: str) -> bool:
        """Whether what a link leads to lies in this store, visible, so that it is listed there."""
        base = os.path.realpath(self.location) + "/"
        target = os.path.realpath(self.path(link))
        return target.startswith(base) and not is_hidden(target.removeprefix(base))

    def _identity(self, folder: str) -> tuple[int, int]:
        status = os.stat(self.path(folder))
        return status.st_dev, status.st_ino


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno == errno.ELOOP:
            return False
        raise
