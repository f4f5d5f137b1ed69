"""The interface of folders of raw data, local or remote, and functions on locations of files.

A location is a path or an address such as `s3://bucket/folder`. An address often carries credentials (a user
and password, or a signature in the query), so messages and sample keys use addresses without these.
`tasks.core.folders` opens stores. A store never writes, and a name never runs a command.
"""

from __future__ import annotations

import errno
import os
import re
import sqlite3
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import BinaryIO, NamedTuple, Protocol
from urllib.parse import parse_qsl, urlsplit

from tasks.core.errors import DataError

REMOTE_SCHEMES = ("s3", "gs", "https", "http", "hf")

_PARTS = re.compile(r"([a-z0-9]+)://(?:[^/?#]*@)?([^/?#]*)([^?#]*)(?:\?([^#]*))?(?:#.*)?", re.DOTALL)
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s\[\]:@]+)(?::\d{0,5})?")
_SIGNATURE = re.compile(
    r"x-(amz|goog|oss|cos|ms)-.*|(aws|oss)accesskeyid|googleaccessid|key-pair-id|policy|expires?|signature"
    r"|(access_?|auth_?|api_?|security_?)?token|(access|api)_?key|password|secret|hmac|jwt|hdnts|hdnea",
    re.IGNORECASE,
)
"""Query parameters by which storage services and content networks authorise a reader. A change of any other
parameter counts as another file, so this lists only names that can have no other meaning."""
_SIGNED_BY = {
    "sig": re.compile(r"sig|s[eiprstv]|srt|spr|sip|sdd|sk(oid|tid|[estv])"),
    "hm": re.compile(r"hm|ex|is"),
    "oh": re.compile(r"oh|oe"),
}
"""Azure's, Discord's and Facebook's signatures: where the key is present, the matching parameters belong to
the signature."""


def is_remote(location: str) -> bool:
    return "://" in location and location.partition("://")[0] in REMOTE_SCHEMES


def is_web(location: str) -> bool:
    """Whether `?` begins a query, as in addresses of web servers; in an object's name it is an ordinary
    character."""
    return location.startswith(("https://", "http://"))


def is_valid(address: str) -> bool:
    """Whether an address names a valid host, bucket, or kind of repository."""
    if address.startswith("hf://"):
        return address.startswith("hf://datasets/")
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
    """Return the scheme and the host or bucket: `https://h/x?y` -> `https://h`."""
    scheme, _, rest = address.partition("://")
    return f"{scheme}://{rest.partition('?')[0].partition('/')[0]}"


def redact(location: str) -> str:
    """Return the location without user, password and query, for messages. Never raises."""
    found = _PARTS.fullmatch(location) if is_remote(location) else None
    return location if found is None else f"{found[1]}://{found[2]}{found[3]}"


def address_key(address: str) -> str:
    """Return the address as a sample's key: redacted, with a digest of the query parameters that name the
    file.

    So `get?id=1` and `get?id=2` are two files, while an address that was signed again keeps its key.
    """
    found = _PARTS.fullmatch(address)
    if found is None or not is_web(address):
        return address
    pairs = parse_qsl(found[4] or "", keep_blank_values=True)
    signs = _signing(name for name, _ in pairs)
    naming = [pair for pair in pairs if pair[0] not in signs]
    if not naming:
        return redact(address)
    from hashlib import blake2b  # which brings all of OpenSSL

    digest = blake2b(repr(naming).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{redact(address)}?{digest}"


def unsigned(address: str) -> str:
    """Return a web address without user, password and signature; an address without these, or any other text,
    as it is."""
    found = _PARTS.fullmatch(address) if is_web(address) else None
    if found is None:
        return address
    pieces = (found[4] or "").split("&")
    signs = _signing(piece.partition("=")[0] for piece in pieces)
    naming = "&".join(piece for piece in pieces if piece.partition("=")[0] not in signs)
    if not signs and address.startswith(f"{found[1]}://{found[2]}"):
        return address
    return f"{redact(address)}?{naming}" if naming else redact(address)


def _signing(names: Iterable[str]) -> set[str]:
    """Return those of a query's parameters that belong to a signature."""
    there = set(names)
    signatures = [_SIGNATURE, *(_SIGNED_BY[name] for name in there if name in _SIGNED_BY)]
    return {name for name in there if any(one.fullmatch(name) for one in signatures)}


def split_location(location: str) -> tuple[str, str]:
    """Split a file's location into folder and name: `s3://b/x/t.csv` -> (`s3://b/x`, `t.csv`).

    The query of an address belongs to the name.
    """
    end = location.find("?") if is_web(location) else -1
    cut = location.rfind("/", 0, end if end >= 0 else None)
    return (location[:cut] or "/" if cut >= 0 else "."), location[cut + 1 :]


def without_query(location: str) -> str:
    """Return the location without the query of an address, so that it ends with the file's suffix."""
    return location.partition("?")[0] if is_web(location) else location


def absolute_location(location: str) -> str:
    """Return the location in a form that is valid in any working directory."""
    return location if is_remote(location) else os.path.abspath(location)


def join_location(folder: str, file: str) -> str:
    """Return a file's location in a folder; a remote or absolute `file` is returned unchanged."""
    return file if is_remote(file) or file.startswith("/") else f"{folder.rstrip('/')}/{file}"


SYSTEM = frozenset(
    {
        *("__MACOSX", "@eaDir", "#recycle", "@Recycle", "#snapshot", "@Recently-Snapshot", "lost+found"),
        *("$RECYCLE.BIN", "System Volume Information", "Thumbs.db", "desktop.ini", "Desktop.ini"),
    }
)
"""Folders and files that operating systems add to users' data: thumbnails, bins, snapshots."""


def is_hidden(file: str) -> bool:
    """Whether the file, or a folder in its path, is hidden or a system's: `.git/x`, `__MACOSX/._a.jpg`."""
    parts = file.split("/")
    return not SYSTEM.isdisjoint(parts) or any(part.startswith(".") for part in parts)


def hidden_part(file: str) -> str:
    """Return the first part of the path that is hidden or a system's, `._*` for the files that macOS adds
    beside others on a foreign disk; "" where none is."""
    parts = file.split("/")
    found = next((part for part in parts if part in SYSTEM or part.startswith(".")), "")
    return "._*" if found.startswith("._") else found


class ObjectStat(NamedTuple):  # created for every sample, in half the time of a frozen dataclass
    """The size in bytes, and a stamp that changes with the content: modification time or entity tag."""

    size: int
    stamp: str


ABSENT = ObjectStat(-1, "")

AHEAD = 1 << 18
"""Bytes to read from a file at first, before it is known to have more."""


class NotRegular(OSError):
    """There is a pipe, socket, device or folder in place of a file, or the name is invalid."""


class StoreUnreachable(DataError, OSError):
    """The store itself does not answer or denies all access, which is no evidence about a sample.

    The error ends a build: counting the store's samples as bad would publish a dataset without them.
    """

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


_GONE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL)
"""Error numbers for data that are missing or have changed."""


def is_environment_error(error: BaseException | None) -> bool:
    """Whether the error, or one of its causes, is about this machine or a store (disk full, no permission, a
    failing disk, no answer) and hence no evidence about the data."""
    while error is not None:
        if isinstance(error, OSError) and error.errno not in _GONE:
            if error.errno is not None or isinstance(error, StoreUnreachable):
                return True
        elif isinstance(error, MemoryError | sqlite3.OperationalError):
            return True
        error = error.__cause__ or error.__context__
    return False


class Store(Protocol):
    """A folder. File names are relative to it, with `/` between their parts."""

    location: str
    """The absolute location of the folder, as a user would write it."""

    def stat(self, file: str) -> ObjectStat:
        """Return size and stamp; ABSENT if there is no such file or it may not be read. Raises
        StoreUnreachable."""

    def open(self, file: str, in_order: bool = True, size: int = -1) -> BinaryIO:
        """Open a regular file for reading, seekable; raises OSError. Never waits for a pipe's other end.

        `in_order=False` means that the reader seeks, so nothing is read ahead. A caller that knows the `size`
        saves a request, and gets the error of a file that is gone when it reads.
        """

    def blocks(self, file: str, size: int = -1) -> Generator[memoryview, None, None]:
        """Yield a file's content from front to back, in pieces of a few megabytes; else as `open`."""

    def read(self, file: str, most: int) -> bytes:
        """Return a file's content, or its first `most` + 1 bytes if it has more; raises OSError as `open`
        does.

        Never allocates more memory than bytes arrive, whatever size a server reports.
        """

    def read_end(self, file: str, most: int) -> bytes:
        """Return a file's last `most` bytes, or all if it has fewer; raises OSError as `open` does."""

    def announce(self, files: Iterable[str], most: int) -> None:
        """Announce calls of `read` for these files, in this order, so that a remote store requests several at
        once. Replaces what was announced before."""

    def look_ahead(self, files: Sequence[str]) -> None:
        """Announce calls of `stat` for these files, so that a remote store requests all of them at once."""

    def entries(self, folder: str = "") -> tuple[list[str], list[str]]:
        """Return the sorted names of the folders and of the files directly in a folder; raises OSError."""

    def files(self) -> Iterator[str]:
        """Yield every file below, folder by folder in the order of their names; raises OSError."""


def read_at_most(file: BinaryIO, most: int) -> bytes:
    """Return the rest of an open file, or at most `most` + 1 bytes of it."""
    content = file.read(min(most, AHEAD) + 1)
    if len(content) <= min(most, AHEAD):
        return content
    pieces, size = [content], len(content)
    while size <= most and (content := file.read(min(most + 1 - size, 16 * AHEAD))):
        pieces.append(content)
        size += len(content)
    return b"".join(pieces)
