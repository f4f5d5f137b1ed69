"""What every source of raw samples does: list them cheaply, then read one.

Listing yields a record a sample without opening its files, so that finding out what has changed costs a
`stat` a sample. `content` carries into the record whatever the sample has beside its file (its row of the
table, its report), so that reading needs nothing but the record.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tasks.dataset.reasons import Reason, Reject
from tasks.dataset.tar import Members


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


def read_file(path: Path, limit: int) -> bytes:
    """A regular file's content; Reject when it is absent, unreadable, or larger than `limit` bytes.

    Never waits: a pipe named like an image is refused, not read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise Reject("member.missing", "no such file") from None
    except OSError as error:
        raise Reject("source.unreadable", error.strerror or type(error).__name__) from None
    except ValueError:
        raise Reject("member.missing", "no file can have such a name") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise Reject("source.unreadable", "not a regular file")
        if status.st_size > limit:
            raise Reject(
                "image.too_large", f"{status.st_size:,} bytes, more than any image within the limits"
            )
        with open(descriptor, "rb", buffering=0, closefd=False) as file:
            return file.readall()
    except OSError as error:
        raise Reject("source.unreadable", error.strerror or type(error).__name__) from None
    finally:
        os.close(descriptor)
