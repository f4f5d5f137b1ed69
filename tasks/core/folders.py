"""Opens folders of raw data: local ones by system calls, which take a tenth of the time of fsspec's.

Remote folders are opened by `tasks.core.remote`.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import BinaryIO

from tasks.core.errors import UsageError
from tasks.core.stores import (
    ABSENT,
    AHEAD,
    NotRegular,
    ObjectStat,
    Store,
    is_hidden,
    is_remote,
    is_valid,
    read_at_most,
    redact,
)


def _device(path: str) -> int:
    try:
        return os.stat(path).st_dev
    except OSError:
        return -1


_SYSTEM = {_device("/proc"), _device("/sys"), _device("/dev")} - {-1, _device("/"), _device("/dev/shm")}
"""Devices with virtual files of the system, such as a process's environment."""


class LocalStore:
    """A folder of this machine. An absolute file name is used as it is.

    Links may lead anywhere, since whole collections are kept as links into a cache, but not to virtual files
    of the system (`/proc/self/environ`), which would put a machine's secrets into the data.
    """

    def __init__(self, location: str) -> None:
        self.location = os.path.abspath(location)

    def path(self, file: str) -> str:
        return file if file[:1] == "/" else f"{self.location}/{file}"

    def stat(self, file: str) -> ObjectStat:
        try:
            found = os.stat(file if file[:1] == "/" else f"{self.location}/{file}")
        except (OSError, ValueError):
            return ABSENT
        return ObjectStat(found.st_size, str(found.st_mtime_ns))

    def open(self, file: str, in_order: bool = True, size: int = -1) -> BinaryIO:
        descriptor, _ = self._opened(file)
        return open(descriptor, "rb")

    def blocks(self, file: str, size: int = -1) -> Generator[memoryview, None, None]:
        with self.open(file) as opened:
            while block := opened.read(16 * AHEAD):
                yield memoryview(block)

    def read(self, file: str, most: int) -> bytes:
        descriptor, size = self._opened(file)
        try:
            wanted = min(size, most) + 1
            content = os.read(descriptor, wanted)
            if len(content) == size < wanted:
                return content
            with open(descriptor, "rb", closefd=False) as rest:  # the file is larger, or is being changed
                return content + read_at_most(rest, most - len(content)) if len(content) <= most else content
        finally:
            os.close(descriptor)

    def read_end(self, file: str, most: int) -> bytes:
        descriptor, size = self._opened(file)
        try:
            return os.pread(descriptor, most, max(size - most, 0))
        finally:
            os.close(descriptor)

    def _opened(self, file: str) -> tuple[int, int]:
        """Open a regular file and return its descriptor and size."""
        descriptor = os.open(self.path(file), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode) and status.st_dev not in _SYSTEM:
            return descriptor, status.st_size
        os.close(descriptor)
        raise NotRegular("not a regular file")

    def announce(self, files: Iterable[str], most: int) -> None:
        pass

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
        """Yield all files. Links to folders are followed unless they are hidden, but each folder is listed
        once: at its real path if that is in this store."""
        root = self._identity("")
        seen = {root}  # only folders reached through links, which are few
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
        if self._identity("") != root:  # unmounted meanwhile, so the list is incomplete
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), self.location)

    def _has_its_place(self, link: str) -> bool:
        """Whether a link leads to a visible folder of this store, which is then listed at its real path."""
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


def open_store(location: str, config_key: str = "dataset.source.path") -> Store:
    """Return the store of a folder without accessing it yet.

    Raises a UsageError that names `config_key` for an invalid address and, at first use, if the package for
    its scheme is not installed.
    """
    if not is_remote(location):
        return LocalStore(location)
    if not is_valid(location):
        form = "; a dataset of the hub is hf://datasets/OWNER/NAME" if location.startswith("hf://") else ""
        raise UsageError(f"{config_key}: {redact(location)} is not a valid address{form}")
    from tasks.core.remote.remote_stores import RemoteStore  # fsspec takes a while to import

    return RemoteStore(location, config_key)
