"""What every source of raw samples does: list them cheaply, then read one.

Listing yields a record a sample without opening its files, so that finding out what has changed costs a
`stat` a sample. `content` carries into the record whatever the sample has beside its file (its row of the
table, its report), so that reading needs nothing but the record.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from tasks.dataset.reasons import Reason, Reject
from tasks.dataset.tar import Members

NO_FILE = (errno.ENAMETOOLONG, errno.ELOOP, errno.ENXIO)
"""A name too long, links in a circle, a socket: as true at the next try, unlike other errors."""


@dataclass(frozen=True, slots=True)
class Item:
    """One raw sample as listed.

    `place` is where a person finds it (`captions.csv:17`), `file` its file relative to `Source.root`,
    `fields` what filters and splits may look at, `content` the rest as JSON text. `fault` is set on what
    cannot even be listed, such as a torn row.
    """

    place: str
    original_key: str
    file: str
    fields: Mapping[str, Any]
    content: str
    fault: tuple[Reason, str] | None = None


class Source(Protocol):
    """One source of the config. Constructing it touches no file."""

    root: Path
    """Folder that the items' files are relative to."""

    def columns(self) -> Sequence[str]:
        """Names that `filter`, `group_by` and `from` may use; UsageError when the source is not there."""

    def items(self) -> Iterator[Item]:
        """Every raw sample, in the source's own order; UsageError or DataError when it cannot be listed."""

    def read(self, file: str, content: str) -> Members:
        """One sample's raw members by suffix; Reject when it cannot be taken."""

    def stored_bytes(self, file: str, size: int, content: str) -> int:
        """At most how many bytes of a tar the sample takes as it is, for a file of `size` bytes."""


def open_file(path: Path) -> BinaryIO:
    """A regular file, open for reading; Reject when it is absent or cannot be opened.

    Never waits: a pipe named like an image is refused, not read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise Reject("member.missing", "no such file") from None
    except OSError as error:
        if error.errno in NO_FILE:
            raise Reject("member.missing", os.strerror(error.errno)) from None
        raise Reject("source.unreadable", error.strerror or type(error).__name__) from None
    except ValueError:
        raise Reject("member.missing", "no file can have such a name") from None
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return open(descriptor, "rb")
    os.close(descriptor)
    raise Reject("member.missing", "not a regular file")


def read_file(path: Path, limit: int) -> bytes:
    """A regular file's content; Reject when it is absent, unreadable, or larger than `limit` bytes."""
    with open_file(path) as file:
        try:
            size = os.fstat(file.fileno()).st_size
            if size > limit:
                raise Reject("image.too_large", f"{size:,} bytes, more than any image within the limits")
            return file.read()
        except OSError as error:
            raise Reject("source.unreadable", error.strerror or type(error).__name__) from None
