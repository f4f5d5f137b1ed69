"""The contract of every source of raw samples: to list them, and to return the raw members of each.

There are two kinds of source. Where a sample has files of its own, listing opens none of them: it reads their
size and stamp once, and `read` fetches one sample when it is needed. Where samples come with their bytes in
containers (tars, Parquet with images), listing reads each container once, in order, and returns the members
along the way. One listing has all that a build needs to find out what has changed, to plan shards and to
convert.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from tasks.core.stores import ABSENT, ObjectStat
from tasks.dataset.tar.format import Members
from tasks.dataset.version.rejects import Reason, Reject

if TYPE_CHECKING:  # asyncio takes as long to import as all of a source
    from tasks.core.remote.addresses import AddressFetcher


BY_ROW = "row "
"""How the stamp begins of a sample with a file at a web address outside the source. No such file is looked at
before it is fetched, so the row stands for it: the rest of the stamp is its digest."""


def is_by_row(stamp: str) -> bool:
    return stamp.startswith(BY_ROW)


@dataclass(frozen=True, slots=True)
class Container:
    """A table, folder or tar that samples are listed from. `stat` changes when the container does."""

    name: str
    stat: ObjectStat


class RawSample(NamedTuple):  # made in a third of the time that a frozen dataclass takes
    """One raw sample as listed.

    `place` is where a person finds it (`captions.csv:17`), `file` its file as `FileSource.read` takes it,
    `fields` the values that filters and splits may use, `content` the rest as JSON text.
    """

    place: str
    original_key: str
    file: str
    fields: Mapping[str, Any]
    content: str = ""
    stat: ObjectStat = ABSENT
    """For a sample with files of its own, their size and stamp together; ABSENT where one is not there."""
    members: Members | None = None
    """The raw members, where they come with the listing."""
    fault: tuple[Reason, str] | None = None
    """Why the sample cannot be taken, as far as the listing knows, such as a torn row."""
    may_pass: bool = False
    """Whether the next try may succeed in spite of the fault, as after a disk's or a server's trouble."""
    more_lost: bool = False
    """Whether an unknown number of further samples of the container is lost with this one."""


class Source(Protocol):
    """One source of the config. Constructing it touches no file; each listing needs a source of its own."""

    @property
    def location(self) -> str:
        """Its absolute location: sources with equal items at different places are different."""

    @property
    def is_sequential(self) -> bool:
        """Whether samples come with their bytes; reading this may open the first container."""

    @property
    def passed_over(self) -> Mapping[str, int]:
        """How many files of each kind, and rows of reports, the listing found and did not use; empty for a
        source whose files are named by a table or a pattern."""

    def columns(self) -> Sequence[str]:
        """Return the names that `filter`, `group_by` and `from` may use; UsageError without the source."""

    def containers(self) -> Iterator[Container]:
        """Yield the containers in the source's own order, without reading them."""

    def items(self, container: Container) -> Iterator[RawSample]:
        """Yield every raw sample in the container's order; UsageError or DataError if it cannot be listed."""


class FileSource(Source, Protocol):
    """A source whose samples have files of their own, read one by one."""

    def read(self, file: str, content: str) -> Members:
        """Return one sample's raw members by suffix; Absent when a file is not there, Reject when the sample
        cannot be taken for another reason."""

    def announce(self, samples: Sequence[tuple[str, str]], fetcher: AddressFetcher | None) -> None:
        """Announce a `read` of each of these samples, in this order, so that remote files are fetched ahead
        of it: by `fetcher` those at web addresses outside the source, without one all others, by their
        stores."""

    def stored_bytes(self, file: str, size: int, content: str) -> int:
        """Return the most bytes of a tar that the sample takes unconverted, for files of `size` bytes."""


class ContainerSource(Source, Protocol):
    """A source whose samples come with the bytes of their containers."""

    def stated(self, container: Container) -> int | None:
        """Return how many samples the container states to hold, without reading them; None where it states
        nothing, or is damaged. DataError or UsageError where `items` would raise it for a damaged one."""


class Absent(Reject):
    """A file of a sample is not there. The item's `stat` shows whether it was when the sample was listed."""

    def __init__(self, detail: str = "no such file") -> None:
        super().__init__("member.missing", detail)


def of_files(source: Source) -> FileSource:
    """Return the source as one of files, which it is unless it `is_sequential`. The caller has checked that,
    since the check may open the first container."""
    return cast(FileSource, source)


def of_containers(source: Source) -> ContainerSource:
    """Return the source as one of containers, which it is if it `is_sequential`."""
    return cast(ContainerSource, source)


def fault_of(reject: Reject) -> tuple[Reason, str]:
    """Return the reject as an item holds it."""
    return reject.reason, reject.detail
