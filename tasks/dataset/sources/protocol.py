"""What every source of raw samples does: list them, and hand over one's raw members.

A source is of one of two kinds. Where a sample has files of its own, listing opens none of them: each is
looked at once, and `read` fetches one sample whenever it is wanted. Where samples come with their bytes out
of containers (tars, Parquet with images), listing reads each container once, in order, and hands the members
over on the way. One listing has all that a build needs: to find out what has changed, to plan shards, to
convert.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast

from tasks.core.stores import ABSENT, ObjectStat
from tasks.dataset.rejects import Reason, Reject
from tasks.dataset.tar.format import Members


@dataclass(frozen=True, slots=True)
class Container:
    """What samples are listed from: a table, a folder, a tar. `stat` changes when the container does."""

    name: str
    stat: ObjectStat


class RawSample(NamedTuple):  # made in a third of the time that a frozen dataclass takes
    """One raw sample as listed.

    `place` is where a person finds it (`captions.csv:17`), `file` its file as `FileSource.read` takes it,
    `fields` what filters and splits may use, `content` the rest as JSON text.
    """

    place: str
    original_key: str
    file: str
    fields: Mapping[str, Any]
    content: str = ""
    stat: ObjectStat = ABSENT
    """Of a sample with files of its own: their size and stamp together, ABSENT where one is not there."""
    members: Members | None = None
    """The raw members, where they come with the listing."""
    fault: tuple[Reason, str] | None = None
    """Why the sample cannot be taken, as far as the listing knows, such as a torn row."""
    may_pass: bool = False
    """Of a fault: whether the next try may succeed, as after a disk's or a server's trouble."""
    more_lost: bool = False
    """Of a fault: an unknown number of further samples of its container is lost with it."""


class Source(Protocol):
    """One source of the config. Constructing it touches no file; whoever lists it more than once opens it
    more than once."""

    @property
    def location(self) -> str:
        """Where it lies, absolute: two sources of equal items at different places are different."""

    @property
    def is_sequential(self) -> bool:
        """Whether samples come with their bytes; may open the first container to find out."""

    @property
    def passed_over(self) -> Mapping[str, int]:
        """How many files of each kind the listing found in its folder and read as nothing; empty for a source
        that is told its files, by a table or a pattern."""

    def columns(self) -> Sequence[str]:
        """Names that `filter`, `group_by` and `from` may use; UsageError when the source is not there."""

    def containers(self) -> Iterator[Container]:
        """In the source's own order, without reading them."""

    def items(self, container: Container) -> Iterator[RawSample]:
        """Every raw sample, in the container's order; UsageError or DataError when it cannot be listed."""


class FileSource(Source, Protocol):
    """A source whose samples have files of their own, read one by one."""

    def read(self, file: str, content: str) -> Members:
        """One sample's raw members by suffix; Absent when a file is not there, Reject when the sample cannot
        be taken for another reason."""

    def stored_bytes(self, file: str, size: int, content: str) -> int:
        """At most how many bytes of a tar the sample takes as it is, for files of `size` bytes."""


class Absent(Reject):
    """A file of a sample is not there. Whether it was when the sample was listed, the item's `stat` knows."""

    def __init__(self, detail: str = "no such file") -> None:
        super().__init__("member.missing", detail)


def of_files(source: Source) -> FileSource:
    """The source as one of files, which it is unless it `is_sequential`; the caller knows, because asking may
    open its first container."""
    return cast(FileSource, source)


def fault_of(reject: Reject) -> tuple[Reason, str]:
    """The reject as an item holds it."""
    return reject.reason, reject.detail
