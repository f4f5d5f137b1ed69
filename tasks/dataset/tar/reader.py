"""The one tolerant reader of tars: our own and those of others, sound or damaged, read forward.

Python's tarfile takes a damaged header, or the lack of end blocks, for the end of the archive, so that a
torn tar looks like a shorter whole one, and it believes what headers claim of sizes. Here damage comes as
values among the members: a `Gap` where bytes make no sense, behind which reading goes on, and a `Cut` where
the tar ends, or where other readers take it for ended. What is held in memory has a limit, however much a
header claims. Understood are ustar, GNU (long names, sparse files), pax (also global records) and V7.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, NamedTuple

from tasks.dataset.tar.format import (
    BLOCK,
    END,
    EXTENSIONS,
    LFS,
    LFS_POINTER,
    LONG_NAME,
    PAX,
    PAX_GLOBAL,
    Broken,
    Sample,
    TarHeader,
    compression_of,
    is_sparse,
    padding,
    parse_header,
    pax_records,
    pax_size,
    split_name,
)

BESIDE = frozenset({"md5", "sha1", "sha256", "sha512", "crc32c", "idx", "index", "tar.idx", "tar.md5"})
"""Suffixes of what tools put beside samples; where a key has nothing else, it is no sample."""
BUFFER = 1 << 18
"""Small, because every tar gets one and most of some sets are small."""
LONGEST_READ = 1 << 24
"""Bytes of memory taken at once for what a header claims."""
RECORD = 20 * BLOCK
"""tar programs fill the last record with zeros; more than that is damage."""
LONGEST_EXTENSION = 1 << 20
"""Bytes of the pax headers and long names before one member, together."""
LONGEST_NAME = 4096
"""Bytes; no file system takes more."""
LARGEST_CONTENT = 4 << 30
"""Bytes of a member that are kept at most."""
_OCTAL = b"01234567 \0"


class Member(NamedTuple):
    """One entry that is no folder.

    `oddity` says why it is none of a plain file's below a folder, such as "a symbolic link". `start` is the
    place in the file of its header, or of the first record about it, `offset` that of its content.
    `content` is None unless `keeps` asked for it.
    """

    name: str
    key: str
    suffix: str
    oddity: str | None
    size: int
    start: int
    offset: int
    content: bytes | None = None


class Gap(NamedTuple):
    """Bytes from `start` to `stop` that make no sense."""

    problem: str
    start: int
    stop: int

    def __str__(self) -> str:
        return f"{self.problem} at byte {self.start:,}"


class Cut(NamedTuple):
    """The tar ends at `offset`, or readers take it for ended there.

    `is_between` where end blocks show that the sample before is whole. `member` is the one that lacks its
    end, if its header is there.
    """

    problem: str
    offset: int
    is_between: bool = False
    member: Member | None = None

    def __str__(self) -> str:
        return f"{self.problem} at byte {self.offset:,}"


@dataclass(slots=True)
class StoredSample:
    """Adjacent members of one key; `is_torn` when some may be lost to damage."""

    key: str
    start: int
    is_torn: bool = False
    members: list[Member] = field(default_factory=list)
    suffixes: set[str] = field(default_factory=set)


class TarReader:
    """Iterates over the members of a tar and its damage; a Cut comes last. OSError as the file raises it.

    `keeps` says of which members the content is kept; contents of others are read over, or with `seeks`
    jumped over. Folders are passed over, and so is what webdataset passes over, unless the tar `is_own`,
    which then holds no such thing. `least` is where the data end at the earliest: zeros before that are no
    end but a gap; with `past_zeros` they are a gap wherever anything else follows.
    """

    def __init__(
        self,
        file: BinaryIO,
        keeps: Callable[[Member], bool] | None = None,
        *,
        is_own: bool = False,
        least: int = 0,
        past_zeros: bool = False,
        seeks: bool = False,
    ) -> None:
        self._window = _Window(file, seeks)
        self._keeps = keeps
        self.is_own = is_own
        self._least = least
        self._past_zeros = past_zeros
        self._of_all: dict[bytes, bytes] = {}
        """What global pax records say of all further members."""

    @property
    def offset(self) -> int:
        """How far the file has been read."""
        return self._window.offset

    def __iter__(self) -> Iterator[Member | Gap | Cut]:
        while True:
            found = self._next()
            if found is None:
                return
            if isinstance(found, Member | Gap | Cut):
                yield found
                if isinstance(found, Cut):
                    return

    def _next(self) -> Member | Gap | Cut | bool | None:
        """The next member or damage; None after a sound end, True for an entry that is passed over."""
        window = self._window
        start = window.offset
        records = dict(self._of_all)
        extended = 0
        while True:
            block = window.block()
            if len(block) < BLOCK:
                if not window.offset and block.startswith(LFS):
                    return Cut(f"is {LFS_POINTER}", 0)
                between = "ends without end blocks" if window.offset else "holds nothing"
                return Cut("ends within a header" if block else between, window.offset)
            try:
                header = parse_header(block)
            except Broken as error:
                compression = None if window.offset else compression_of(block)
                return self._search(f"is compressed by {compression}" if compression else str(error), start)
            if header is None:
                return self._zeros(start)
            window.skip(BLOCK)
            try:
                if header.kind not in EXTENSIONS:
                    return self._entry(header, records, start)
                extended += header.size
                cut = self._extend(header, extended, records)
                if cut is not None:
                    return cut
            except Broken as error:
                return Gap(str(error), start, window.offset)

    def _entry(self, header: TarHeader, records: dict[bytes, bytes], start: int) -> Member | Cut | bool:
        window = self._window
        size = pax_size(records, header.size) if header.has_content else 0
        name = records.get(b"GNU.sparse.name") or records.get(b"path") or header.name
        while header.has_map and window.block()[504:505].strip(b"\0"):
            window.skip(BLOCK)
        if header.has_map:
            window.skip(BLOCK)
        oddity = "a sparse file" if is_sparse(records) else header.oddity
        member = None if header.is_folder else self._member(name, oddity, size, start)
        is_kept = (
            member is not None
            and self._keeps is not None
            and not member.oddity
            and size <= LARGEST_CONTENT
            and self._keeps(member)
        )
        content = window.take(size) if is_kept else None
        left = size + padding(size) - len(content or b"")
        if window.skip(left) < left:
            return Cut("ends within a member", window.offset, member=member)
        if member is None:
            return True
        return member if content is None else member._replace(content=content)

    def _member(self, name: bytes, oddity: str | None, size: int, start: int) -> Member | None:
        """None for what webdataset passes over."""
        offset = self._window.offset
        if len(name) > LONGEST_NAME:
            oddity = f"of a name of {len(name):,} bytes"
            name = name[:LONGEST_NAME]
        text = name.decode("utf-8", "surrogateescape")
        key, suffix = split_name(text)
        if oddity is None and text.startswith("/"):
            oddity = "an absolute path"
        elif oddity is None and ".." in text and ".." in text.split("/"):
            oddity = "a path that leaves its folder"
        elif oddity is None and _is_passed_over(text, key, suffix):
            if not self.is_own:
                return None
            oddity = "a name without key or suffix"
        return Member(text, key, suffix, oddity, size, start, offset)

    def _extend(self, header: TarHeader, extended: int, records: dict[bytes, bytes]) -> Cut | None:
        """Add what the records say of the next entry; Broken where there is too much of it, all passed."""
        window = self._window
        is_read = extended <= LONGEST_EXTENSION and header.kind in (PAX, PAX_GLOBAL, LONG_NAME)
        content = window.take(header.size) if is_read else b""
        left = header.size - len(content) + padding(header.size)
        if window.skip(left) < left:
            return Cut("ends within a header", window.offset)
        if extended > LONGEST_EXTENSION:
            raise Broken(f"a header with {extended:,} bytes of records")
        if header.kind == LONG_NAME:
            records[b"path"] = content.partition(b"\0")[0]
        elif is_read:
            found = pax_records(content)
            records.update(found)
            if header.kind == PAX_GLOBAL:
                self._of_all |= {key: value for key, value in found.items() if key in (b"path", b"size")}
        return None

    def _search(self, problem: str, start: int) -> Gap:
        """Go on to the next sound header; where there is none, to the end blocks or behind everything."""
        window = self._window
        while not window.find_header():
            window.skip(max(0, window.left - len(END)) // BLOCK * BLOCK)
            if not window.fill():
                if window.view[window.at : window.end] != END:
                    window.skip(window.left)
                break
        return Gap(problem, start, window.offset)

    def _zeros(self, start: int) -> Gap | Cut | None:
        """What zeros where a header belongs mean: the end, too much of it, or a hole."""
        at = self._window.offset
        count, is_end = self._window.pass_zeros()
        if at < self._least or (self._past_zeros and not is_end):
            if is_end:
                return Cut("holds nothing but zeros from where a header belongs", at)
            return self._search("zeros instead of a header", start)
        if count < len(END):
            return Cut("has one end block instead of two", at, is_between=True)
        if not is_end:
            return Cut("goes on after the end blocks that stand", at, is_between=True)
        if count >= len(END) + RECORD:
            return Cut(f"goes on with {count:,} zeros after the end blocks that stand", at)
        return None


def _is_passed_over(name: str, key: str, suffix: str) -> bool:
    """Whether webdataset, too, passes the member over: hidden, without a suffix, or its own `__meta__`."""
    return not suffix or not key or key.endswith("/") or (name.startswith("__") and name.endswith("__"))


def group_samples(
    reader: TarReader, starts: Container[int] = (), *, splits_repeats: bool = False
) -> Iterator[StoredSample | Gap | Cut]:
    """The samples of a tar by webdataset's rule, adjacent members of one key, and its damage.

    A member that comes again belongs to the same sample, unless an index has a sample of its own start there
    (`starts`), or it `splits_repeats`, as open_clip's loader does. Samples beside damage are torn, but for
    those that `starts` prove to be whole. What tools put beside samples is none, unless the tar is our own.
    """
    current: StoredSample | None = None
    is_torn = False
    for found in reader:
        member = found.member if isinstance(found, Cut) else found if isinstance(found, Member) else None
        if member is not None:
            if current is None or _starts_sample(member, current, starts, splits_repeats):
                if current is not None and _is_sample(current, reader.is_own):
                    yield current
                current = StoredSample(member.key, member.start, is_torn)
            is_torn = False
            current.members.append(member)
            current.suffixes.add(member.suffix)
        if isinstance(found, Member):
            continue
        if current is not None:
            at = found.start if isinstance(found, Gap) else found.offset
            is_whole = at in starts or (isinstance(found, Cut) and found.is_between)
            current.is_torn |= not is_whole
        if isinstance(found, Gap):
            is_torn = found.stop not in starts
            yield found
            continue
        if current is not None and _is_sample(current, reader.is_own):
            yield current
        current = None
        yield found
    if current is not None and _is_sample(current, reader.is_own):
        yield current


def parse_foreign(span: bytes) -> Sample:
    """The one sample in the bytes of its span, whatever kind of tar it lies in."""
    reader = TarReader(io.BytesIO(span + END), keeps=lambda member: True)
    members = [found for found in reader if isinstance(found, Member)]
    return Sample(members[0].key, {member.suffix: member.content or b"" for member in members})


def _starts_sample(
    member: Member, current: StoredSample, starts: Container[int], splits_repeats: bool
) -> bool:
    if member.key != current.key:
        return True
    return (splits_repeats or member.start in starts) and member.suffix in current.suffixes


def _is_sample(sample: StoredSample, is_own: bool) -> bool:
    return is_own or not sample.suffixes <= BESIDE


class _Window:
    """A buffer that moves over the file: `view[at:end]` has been read and not yet passed.

    Positions move in whole blocks until the file ends.
    """

    def __init__(self, file: BinaryIO, seeks: bool) -> None:
        self._file = file
        self._seeks = seeks
        self._base = 0
        self._buffer = bytearray(BUFFER)
        self.view = memoryview(self._buffer)
        self.at = self.end = 0
        self._is_at_end = False

    @property
    def offset(self) -> int:
        return self._base + self.at

    @property
    def left(self) -> int:
        """Bytes in the buffer that have not been passed."""
        return self.end - self.at

    def fill(self) -> bool:
        """Read on until the buffer is full; whether there was anything more."""
        left = self.left
        if self.at and left < BUFFER:
            self.view[:left] = self.view[self.at : self.end]
            self._base += self.at
            self.at, self.end = 0, left
        before = self.end
        while self.end < BUFFER and not self._is_at_end:
            count = self._file.readinto(self.view[self.end :])  # type: ignore[attr-defined]
            self.end += count
            self._is_at_end = not count
        return self.end > before

    def block(self) -> bytes:
        """The next block, not passed; shorter where the file ends."""
        if self.left < BLOCK:
            self.fill()
        return bytes(self.view[self.at : min(self.at + BLOCK, self.end)])

    def skip(self, count: int) -> int:
        """Pass `count` bytes; how many there were."""
        if self.at + count <= self.end:
            self.at += count
            return count
        passed = min(count, self.left)
        self.at += passed
        if self._seeks and count - passed > BUFFER:
            self._file.seek(count - passed - BLOCK, 1)
            self._base += count - passed - BLOCK
            passed = count - BLOCK  # the last block is read, so that an end before it shows
        while passed < count and self.fill():
            step = min(count - passed, self.left)
            self.at += step
            passed += step
        return passed

    def take(self, count: int) -> bytes:
        """Pass `count` bytes and return them; fewer where the file ends."""
        stop = self.at + count
        if stop <= self.end:
            content = bytes(self.view[self.at : stop])
            self.at = stop
            return content
        parts: list[bytes | memoryview] = [self.view[self.at : self.end].tobytes()]
        left = count - len(parts[0])
        self._base += self.end
        self.at = self.end = 0
        while left and not self._is_at_end:  # past the buffer, which would copy a long member once more
            part = memoryview(bytearray(min(left, LONGEST_READ)))
            size = self._file.readinto(part)  # type: ignore[attr-defined]
            self._is_at_end = not size
            self._base += size
            left -= size
            parts.append(part[:size])
        return b"".join(parts)

    def find_header(self) -> bool:
        """Go to the next block in the buffer that is a sound header by its checksum; False without one."""
        for start in range(self.at, self.end // BLOCK * BLOCK, BLOCK):
            digits = self._buffer[start + 148 : start + 156]
            if digits.translate(None, _OCTAL) or not digits.strip(b" \0"):
                continue
            try:
                if parse_header(bytes(self.view[start : start + BLOCK])) is not None:
                    self.at = start
                    return True
            except Broken:
                continue
        return False

    def pass_zeros(self) -> tuple[int, bool]:
        """How many zeros stand here, and whether nothing else does; whole blocks of them are passed."""
        count = 0
        while self.left or self.fill():
            rest = len(bytes(self.view[self.at : self.end]).lstrip(b"\0"))
            zeros = self.left - rest
            if rest:
                self.skip(zeros // BLOCK * BLOCK)
                return count + zeros, False
            count += self.skip(zeros)
        return count, True
