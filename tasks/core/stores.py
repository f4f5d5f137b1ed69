"""Folders of raw data, on this machine or remote, behind one small contract.

Local files are opened by the system's own calls, which cost a tenth of fsspec's; remote ones by fsspec. A
store never writes; a name never runs anything. Listing holds the names of one folder at a time.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from tasks.core.addresses import is_remote as is_remote  # a store's callers ask it too
from tasks.core.addresses import is_valid, is_web, shown
from tasks.core.errors import DataError, UsageError
from tasks.core.globs import choices, expression, first_mark, glob_in, is_hidden, matches


@dataclass(frozen=True, slots=True)
class Stat:
    """Size in bytes, and a text that changes when the content does: time of change, or entity tag."""

    size: int
    stamp: str


ABSENT = Stat(-1, "")

FEW = 8
"""Files that are looked for one by one rather than in a list of their folder."""
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


def split_location(location: str) -> tuple[str, str]:
    """Folder and name of a file's location: `s3://b/x/t.csv` -> (`s3://b/x`, `t.csv`).

    The query of an address belongs to the name.
    """
    end = location.find("?") if is_web(location) else -1
    cut = location.rfind("/", 0, end if end >= 0 else None)
    return (location[:cut] or "/" if cut >= 0 else "."), location[cut + 1 :]


def path_of(location: str) -> str:
    """The location without the query of an address, whose end is a file's suffix."""
    return location.partition("?")[0] if is_web(location) else location


def absolute_location(location: str) -> str:
    """The location as it reads from any working directory."""
    return location if is_remote(location) else os.path.abspath(location)


def join_location(folder: str, file: str) -> str:
    """A file's location in a folder; a remote or absolute `file` stands for itself."""
    return file if is_remote(file) or file.startswith("/") else f"{folder.rstrip('/')}/{file}"


def open_store(location: str, config_key: str = "dataset.source.path") -> Store:
    """The store of a folder; nothing is touched yet. UsageError naming `config_key` for an address that is
    none, and at first use, when the package for its kind is not installed."""
    if is_remote(location):
        if not is_valid(location):
            raise UsageError(f"{config_key}: {shown(location)} is no valid address")
        from tasks.core.remote import RemoteStore  # fsspec takes a while to import

        return RemoteStore(location, config_key)
    return LocalStore(location)


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
            found = os.stat(self.path(file))
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


def expand(location: str, suffixes: Sequence[str], config_key: str = "dataset.source.path") -> list[str]:
    """The files that a location means: a file, a folder, or a pattern; their locations, local ones absolute.

    `raw/*.parquet` promises at least one file, `s3://b/{train,val}/{000000..000042}.tar` every one. Of a
    folder all files below with one of `suffixes` (lower case, with the dot), in the order of their names,
    none of them hidden. UsageError that names `config_key` when what is promised is not there.
    """
    promised = [location] if _is_itself(location) else choices(location, config_key)
    try:
        files = _files_among(promised)
        found = [[one] if one in files else _below(one, suffixes) for one in promised]
    except Unreachable:
        raise
    except OSError as error:
        where, why = shown(error.filename or location), error.strerror or error
        raise UsageError(f"{config_key}: {where} cannot be read: {why}") from None
    for one, its in zip(promised, found, strict=True):
        name = shown(one)
        has_suffix = path_of(one).lower().endswith(tuple(suffixes))
        if one in files and not has_suffix:
            raise UsageError(f"{config_key}: {name} is none of {', '.join(suffixes)}; convert it to one")
        if not its:
            whole, wanted = "" if one == location else f" of {shown(location)}", " or ".join(suffixes)
            if has_suffix and glob_in(one) is None:
                raise UsageError(
                    f"{config_key}: there is no file {name}{whole}; paths start at the working directory"
                )
            raise UsageError(f"{config_key}: there is no {name}{whole}, or it holds no {wanted} file")
    return [absolute_location(file) for its in found for file in its]


def _is_itself(location: str) -> bool:
    """Whether there is a file or folder of just this name, whatever pattern it looks like."""
    return not is_remote(location) and os.path.exists(location)


def base_of(location: str) -> str:
    """The folder that all files of a location lie in, local ones absolute; names for people start there."""
    if not _is_itself(location):
        mark = first_mark(location)
        if mark is not None:
            return absolute_location(split_location(location[:mark])[0])
    return absolute_location(split_location(location)[0] if _files_among([location]) else location)


def _files_among(locations: Sequence[str]) -> set[str]:
    """Those that are files: by a `stat` each, or where many lie in one folder by a look into it."""
    files = set()
    for folder, group in itertools.groupby(locations, key=lambda location: split_location(location)[0]):
        members = list(group)
        if folder.endswith(":/"):
            continue  # a bucket or host by itself
        store = open_store(folder)
        if len(members) > FEW and not is_web(folder):
            there = set(_entries(store, "")[1])
            files |= {member for member in members if split_location(member)[1] in there}
        else:
            files |= {member for member in members if _is_file(store, member)}
    return files


def _is_file(store: Store, location: str) -> bool:
    if isinstance(store, LocalStore):
        return os.path.isfile(location)
    return store.stat(split_location(location)[1]) != ABSENT


def _entries(store: Store, folder: str) -> tuple[list[str], list[str]]:
    try:
        return store.entries(folder)
    except (FileNotFoundError, NotADirectoryError):
        return [], []


def _below(location: str, suffixes: Sequence[str]) -> list[str]:
    """The files of a folder, or of a pattern; none when it is not there."""
    glob = None if _is_itself(location) else glob_in(location)
    if glob is None:
        return [join_location(location, file) for file in _listed(open_store(location), suffixes)]
    cut = location.rfind("/", 0, glob.start()) + 1
    base, pattern = location[:cut] or ".", location[cut:]
    store = open_store(base)
    if "**" in pattern:
        wanted = expression(pattern)
        return [join_location(base, file) for file in _listed(store, suffixes) if wanted.fullmatch(file)]
    found = []
    for name, is_folder in _matching(store, pattern):
        inside = join_location(base, name)
        if is_folder:
            found += [join_location(inside, file) for file in _listed(open_store(inside), suffixes)]
        elif name.lower().endswith(tuple(suffixes)):
            found.append(inside)
    return found


def _matching(store: Store, pattern: str) -> Iterator[tuple[str, bool]]:
    """What matches a pattern without `**`, and whether it is a folder; only folders that may hold it are
    looked into."""
    *parts, last = pattern.split("/")
    around = [""]
    for part in parts:
        around = [
            f"{folder}{name}/"
            for folder in around
            for name in _entries(store, folder.rstrip("/"))[0]
            if matches(name, part)
        ]
    for folder in around:
        folders, files = _entries(store, folder.rstrip("/"))
        names = sorted([(name, True) for name in folders] + [(name, False) for name in files])
        yield from ((folder + name, is_folder) for name, is_folder in names if matches(name, last))


def _listed(store: Store, suffixes: Sequence[str]) -> Iterator[str]:
    files = store.files()
    try:
        first = next(files, None)
    except (FileNotFoundError, NotADirectoryError):
        return  # there is no such folder; one that vanishes later is an error
    for file in itertools.chain([] if first is None else [first], files):
        if file.lower().endswith(tuple(suffixes)) and not is_hidden(file):
            yield file
