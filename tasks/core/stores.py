"""Folders of raw data, on this machine or remote, behind one small contract; and the locations of files.

A location is a path or an address such as `s3://bucket/folder`. Who may read a file is often said in its
address (a user and password, or a signature in the query), so people see, and samples are named by, addresses
without these. `tasks.core.folders` opens them. A store never writes, and a name never runs anything.
"""

from __future__ import annotations

import errno
import os
import re
import sqlite3
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import BinaryIO, NamedTuple, Protocol
from urllib.parse import parse_qsl, urlsplit

from tasks.core.errors import DataError

REMOTE_SCHEMES = ("s3", "gs", "https", "http")

_PARTS = re.compile(r"([a-z0-9]+)://(?:[^/?#]*@)?([^/?#]*)([^?#]*)(?:\?([^#]*))?(?:#.*)?", re.DOTALL)
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s\[\]:@]+)(?::\d{0,5})?")
_SIGNATURE = re.compile(
    r"x-(amz|goog|oss|cos|ms)-.*|(aws|oss)accesskeyid|googleaccessid|key-pair-id|policy|expires?|signature"
    r"|(access_?|auth_?|api_?|security_?)?token|(access|api)_?key|password|secret|hmac|jwt|hdnts|hdnea",
    re.IGNORECASE,
)
"""Query parameters by which storage services and content networks know who may read. A change of any other is
taken for another file, so this lists only names that can mean nothing else."""
_SIGNED_BY = {
    "sig": re.compile(r"sig|s[eiprstv]|srt|spr|sip|sdd|sk(oid|tid|[estv])"),
    "hm": re.compile(r"hm|ex|is"),
    "oh": re.compile(r"oh|oe"),
}
"""Azure's, Discord's and Facebook's: the parameters that belong to a signature where the key is present."""


def is_remote(location: str) -> bool:
    return "://" in location and location.partition("://")[0] in REMOTE_SCHEMES


def is_web(location: str) -> bool:
    """Whether `?` begins a query, as in addresses of web servers; in the name of an object it is a letter."""
    return location.startswith(("https://", "http://"))


def is_valid(address: str) -> bool:
    """Whether an address names a host, or a bucket, at all."""
    if not is_web(address):
        return bool(_BUCKET.fullmatch(address.partition("://")[2].partition("/")[0]))
    found = _PARTS.fullmatch(address)
    if found is None or not _HOST.fullmatch(found[2]):
        return False
    try:
        return bool(urlsplit(address).hostname) and (urlsplit(address).port or 0) >= 0
    except ValueError:
        return False


def host_of(address: str) -> str:
    """Scheme and host, or bucket: `https://h/x?y` -> `https://h`."""
    scheme, _, rest = address.partition("://")
    return f"{scheme}://{rest.partition('?')[0].partition('/')[0]}"


def redact(location: str) -> str:
    """The location for a person: without user, password and query. Never raises."""
    found = _PARTS.fullmatch(location) if is_remote(location) else None
    return location if found is None else f"{found[1]}://{found[2]}{found[3]}"


def address_key(address: str) -> str:
    """The address as a sample's key: redacted, with a digest of those query parameters that name the file.

    So `get?id=1` and `get?id=2` are two files, while an address that was signed anew keeps its key.
    """
    found = _PARTS.fullmatch(address)
    if found is None or not is_web(address):
        return address
    pairs = parse_qsl(found[4] or "", keep_blank_values=True)
    signatures = [_SIGNATURE, *(_SIGNED_BY[name] for name, _ in pairs if name in _SIGNED_BY)]
    naming = [pair for pair in pairs if not any(one.fullmatch(pair[0]) for one in signatures)]
    if not naming:
        return redact(address)
    digest = blake2b(repr(naming).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{redact(address)}?{digest}"


def split_location(location: str) -> tuple[str, str]:
    """Folder and name of a file's location: `s3://b/x/t.csv` -> (`s3://b/x`, `t.csv`).

    The query of an address belongs to the name.
    """
    end = location.find("?") if is_web(location) else -1
    cut = location.rfind("/", 0, end if end >= 0 else None)
    return (location[:cut] or "/" if cut >= 0 else "."), location[cut + 1 :]


def without_query(location: str) -> str:
    """The location without the query of an address: its end is the file's suffix."""
    return location.partition("?")[0] if is_web(location) else location


def absolute_location(location: str) -> str:
    """The location as it reads from any working directory."""
    return location if is_remote(location) else os.path.abspath(location)


def join_location(folder: str, file: str) -> str:
    """A file's location in a folder; a remote or absolute `file` stands for itself."""
    return file if is_remote(file) or file.startswith("/") else f"{folder.rstrip('/')}/{file}"


SYSTEM = frozenset(
    {
        *("__MACOSX", "@eaDir", "#recycle", "@Recycle", "#snapshot", "@Recently-Snapshot", "lost+found"),
        *("$RECYCLE.BIN", "System Volume Information", "Thumbs.db", "desktop.ini", "Desktop.ini"),
    }
)
"""Folders and files that a system keeps beside people's own: thumbnails, bins, snapshots."""


def is_hidden(file: str) -> bool:
    """Whether the file, or a folder on the way to it, is no data: `.git/x`, `__MACOSX/._a.jpg`."""
    parts = file.split("/")
    return not SYSTEM.isdisjoint(parts) or any(part.startswith(".") for part in parts)


class ObjectStat(NamedTuple):  # made for every sample, in half the time of a frozen dataclass
    """Size in bytes, and a stamp that changes when the content does: modification time, or entity tag."""

    size: int
    stamp: str


ABSENT = ObjectStat(-1, "")

AHEAD = 1 << 18
"""Bytes of a file that are read before it has shown that it has more."""


class NotRegular(OSError):
    """A pipe, socket, device or folder in a file's place, or a name that no file can have."""


class StoreUnreachable(DataError, OSError):
    """The store itself does not answer, or refuses everything: it says nothing about a sample.

    It ends a build: counting the samples behind it as bad would publish a dataset that lacks them.
    """

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


_GONE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL)
"""What the system says of data that are missing or are not what they were."""


def is_environment_error(error: BaseException | None) -> bool:
    """Whether the error, or one that it came of, says something about this machine or a store (no room, no
    rights, a failing disk, no answer) and hence nothing about the data."""
    while error is not None:
        if isinstance(error, OSError) and error.errno not in _GONE:
            if error.errno is not None or isinstance(error, StoreUnreachable):
                return True
        elif isinstance(error, MemoryError | sqlite3.OperationalError):
            return True
        error = error.__cause__ or error.__context__
    return False


class Store(Protocol):
    """A folder. Files are named relative to it, `/` between their parts."""

    location: str
    """The folder as a person would write it, absolute."""

    def stat(self, file: str) -> ObjectStat:
        """ABSENT when there is no such file, or it cannot be looked at; Unreachable."""

    def open(self, file: str, in_order: bool = True) -> BinaryIO:
        """A regular file open for reading, seekable; OSError. Never waits for a pipe's other end.

        Not `in_order`: the reader seeks, so nothing is read ahead of it.
        """

    def read(self, file: str, most: int) -> bytes:
        """A file's content, or its first `most` + 1 bytes where it has more; OSError as `open`.

        Never takes more memory than there are bytes, whatever a server says of their number.
        """

    def read_end(self, file: str, most: int) -> bytes:
        """A file's last `most` bytes, or all where it has fewer; OSError as `open`."""

    def look_ahead(self, files: Sequence[str]) -> None:
        """Announce calls of `stat` for these files; a remote store asks about all of them at once."""

    def entries(self, folder: str = "") -> tuple[list[str], list[str]]:
        """Names of the folders and of the files directly in a folder, sorted; OSError."""

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
