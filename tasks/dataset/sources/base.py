"""What every source of raw samples does: list them, and hand over one's raw members.

A source is of one of two kinds. Where a sample has files of its own, listing opens none of them: finding out
what has changed costs a `stat` a sample, and `read` fetches one sample whenever it is wanted. Where samples
come with their bytes out of containers (tars, Parquet with images, remote archives), listing them reads each
container once, in order, and hands the members over on the way.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple, Protocol, cast

from tasks.core.stores import NotRegular, Stat, Store, Unreachable
from tasks.dataset.rejects import Reason, Reject
from tasks.dataset.tar.writer import Members

NO_FILE = (errno.ENAMETOOLONG, errno.ELOOP, errno.ENXIO)
"""A name too long, links in a circle, a socket: as true at the next try, unlike other errors."""


@dataclass(frozen=True, slots=True)
class Container:
    """What samples are listed from: a table, a folder, a tar. `stat` tells whether it has changed."""

    name: str
    stat: Stat


class Item(NamedTuple):  # made in a third of the time that a frozen dataclass takes
    """One raw sample as listed.

    `place` is where a person finds it (`captions.csv:17`), `file` its file as `Source.stat` and
    `Source.read` take it, `fields` what filters and splits may look at, `content` the rest as JSON text.
    `members` are the raw members, of a sequential source only. `fault` is set on what cannot be taken, such
    as a torn row.
    """

    place: str
    original_key: str
    file: str
    fields: Mapping[str, Any]
    content: str
    fault: tuple[Reason, str] | None = None
    members: Members | None = None
    may_pass: bool = False
    """Of a fault: whether it may be gone at the next try, as a disk's or a server's trouble may."""


class Source(Protocol):
    """One source of the config. Constructing it touches no file."""

    @property
    def location(self) -> str:
        """Where it lies, absolute: two sources of equal items at different places are different."""

    @property
    def is_sequential(self) -> bool:
        """Whether samples come with their bytes; may open the first container to find out."""

    def columns(self) -> Sequence[str]:
        """Names that `filter`, `group_by` and `from` may use; UsageError when the source is not there."""

    def containers(self) -> Iterator[Container]:
        """In the source's own order, without reading them."""

    def items(self, container: Container) -> Iterator[Item]:
        """Every raw sample, in the container's order; UsageError or DataError when it cannot be listed."""


class FileSource(Source, Protocol):
    """A source whose samples have files of their own, looked at and read one by one."""

    def stat(self, file: str) -> Stat:
        """Of an item's file, or of all its files together; ABSENT."""

    def read(self, file: str, content: str) -> Members:
        """One sample's raw members by suffix; Reject when it cannot be taken."""

    def stored_bytes(self, file: str, size: int, content: str) -> int:
        """At most how many bytes of a tar the sample takes as it is, for a file of `size` bytes."""


def of_files(source: Source) -> FileSource:
    """The source as one of files, which it is unless it `is_sequential`; the caller knows, because asking may
    open its first container."""
    return cast(FileSource, source)


def open_file(store: Store, file: str, in_order: bool = True) -> BinaryIO:
    """A regular file, open for reading as `Store.open` does; Reject when it is absent or cannot be opened."""
    try:
        return store.open(file, in_order)
    except (OSError, ValueError) as error:
        raise _rejected(error) from None


def read_file(store: Store, file: str, limit: int) -> bytes:
    """A regular file's content; Reject when it is absent, unreadable, or larger than `limit` bytes."""
    content = read_start(store, file, limit)
    if len(content) > limit:
        raise Reject("image.too_large", f"more than {limit:,} bytes, as no image within the limits has")
    return content


def read_start(store: Store, file: str, most: int) -> bytes:
    """A regular file's content, or its first `most` + 1 bytes; Reject when it is absent or unreadable."""
    try:
        return store.read(file, most)
    except (OSError, ValueError) as error:
        raise _rejected(error) from None


def _rejected(error: OSError | ValueError) -> Reject:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return Reject("member.missing", "no such file")
    if isinstance(error, NotRegular):
        return Reject("member.missing", str(error))
    if not isinstance(error, OSError):
        return Reject("member.missing", "no file can have such a name")
    if error.errno in NO_FILE:
        return Reject("member.missing", os.strerror(error.errno))
    return unreadable(error)


def unreadable(error: OSError) -> Reject:
    if isinstance(error, Unreachable):
        raise error  # the source is gone, not one sample
    return Reject("source.unreadable", error.strerror or type(error).__name__)
