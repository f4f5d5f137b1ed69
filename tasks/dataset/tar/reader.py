"""The one tolerant reader of tars, our own and those of others, sound or damaged. It reads forward.

Python's tarfile treats a damaged header or missing end blocks as the end of the archive, so a torn tar looks
like a shorter complete one, and it trusts the sizes in headers. This reader yields damage among the members:
a `Gap` where bytes make no sense, after which reading continues, and a `Cut` where the tar ends, or where
other readers believe that it ends. Memory is limited, whatever a header claims. It supports ustar, GNU (long
names, sparse files), pax (also global records) and V7.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, Literal, NamedTuple

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
"""Suffixes of files that tools put next to samples; a key with only such members is not a sample."""
BUFFER = 1 << 18
"""The buffer is small, because every tar gets one, and some datasets consist of small tars."""
LONGEST_READ = 1 << 24
"""Bytes of memory that are allocated at once for a size that a header claims."""
RECORD = 20 * BLOCK
"""tar programs fill the last record with zeros; more zeros are damage."""
LONGEST_EXTENSION = 1 << 20
"""The most bytes of all pax headers and long names before one member."""
LONGEST_NAME = 4096
"""The most bytes of a name; no file system accepts more."""
LARGEST_CONTENT = 4 << 30
"""The most bytes of a member's content that are kept."""
_OCTAL = b"01234567 \0"


class Member(NamedTuple):
    """One entry that is not a folder.

    `oddity` states why it is not a plain file below the tar's folder, such as "a symbolic link". `start` is
    the offset in the file of its header, or of the first record about it, `offset` that of its content.
    `content` is None unless `keeps` requested it.
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
    """The tar ends at `offset`, or readers believe that it ends there.

    `is_between` means that end blocks prove the sample before to be complete. `member` is the one whose end
    is missing, if its header is present.
    """

    problem: str
    offset: int
    is_between: bool = False
    member: Member | None = None

    def __str__(self) -> str:
        return f"{self.problem} at byte {self.offset:,}"


@dataclass(slots=True)
class StoredSample:
    """Adjacent members of one key; `is_torn` if damage may have removed some of them."""

    key: str
    start: int
    is_torn: bool = False
    members: list[Member] = field(default_factory=list)
    suffixes: set[str] = field(default_factory=set)


class TarReader:
    """Iterates over the members of a tar and its damage; a Cut comes last. Raises the file's OSErrors.

    `keeps` selects the members whose content is kept; other contents are read and dropped, or skipped by
    seeking with `seeks`. Folders are ignored, and so are members that webdataset ignores, unless the tar
    `is_own`, where these are odd. The data end at `least` or later: zeros before that are a gap and not the
    end; with `past_zeros`, zeros are a gap if anything else follows.
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
        """Global pax records, which apply to all further members."""

    @property
    def offset(self) -> int:
        """The offset up to which the file has been read."""
        return self._window.offset

    def __iter__(self) -> Iterator[Member | Gap | Cut]:
        while (found := self._next()) is not None:
            if found is not True:
                yield found
            if isinstance(found, Cut):
                return

    def _next(self) -> Member | Gap | Cut | Literal[True] | None:
        """Return the next member or damage; None after a sound end, True for an entry that is ignored."""
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

    def _entry(
        self, header: TarHeader, records: dict[bytes, bytes], start: int
    ) -> Member | Cut | Literal[True]:
        """Read the entry that the header and the records before it announce."""
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
        """Return the member, or None if webdataset ignores it."""
        offset = self._window.offset
        if len(name) > LONGEST_NAME:
            oddity = f"of a name of {len(name):,} bytes"
            name = name[:LONGEST_NAME]
        text = name.decode("utf-8", "surrogateescape")
        key, suffix = split_name(text)
        is_meta = text.startswith("__") and text.endswith("__")  # such as webdataset's own `__meta__`
        is_ignored = is_meta or not suffix or not key or key.endswith("/")
        if oddity is None and text.startswith("/"):
            oddity = "an absolute path"
        elif oddity is None and ".." in text and ".." in text.split("/"):
            oddity = "a path that leaves its folder"
        elif oddity is None and is_ignored:
            if not self.is_own:
                return None
            oddity = "a name without key or suffix"
        return Member(text, key, suffix, oddity, size, start, offset)

    def _extend(self, header: TarHeader, extended: int, records: dict[bytes, bytes]) -> Cut | None:
        """Read the records and add them to those of the next entry; Broken, after skipping them, if they are
        too long."""
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
        """Skip to the next sound header or, if there is none, to the end blocks or the end of the file."""
        window = self._window
        while not window.find_header():
            window.skip(max(0, window.left - len(END)) // BLOCK * BLOCK)
            if not window.fill():
                if window.view[window.at : window.end] != END:
                    window.skip(window.left)
                break
        return Gap(problem, start, window.offset)

    def _zeros(self, start: int) -> Gap | Cut | None:
        """Return what zeros in place of a header mean: the end, an excess of zeros, or a gap."""
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


def group_samples(
    reader: TarReader, starts: Container[int] = (), *, splits_repeats: bool = False
) -> Iterator[StoredSample | Gap | Cut]:
    """Yield the samples of a tar by webdataset's rule, adjacent members of one key, and its damage.

    A repeated member belongs to the same sample, unless a sample begins there according to the index
    (`starts`), or unless `splits_repeats`, as in open_clip's loader. Samples next to damage are torn, unless
    `starts` prove them to be complete. Keys with only BESIDE members are not samples, unless the tar is our
    own.
    """
    current: StoredSample | None = None
    is_torn = False
    for found in reader:
        member = found.member if isinstance(found, Cut) else found if isinstance(found, Member) else None
        if member is not None:
            may_split = splits_repeats or member.start in starts
            if (
                current is None
                or member.key != current.key
                or (may_split and member.suffix in current.suffixes)
            ):
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
    """Parse the sample in the bytes of its span from any kind of tar."""
    reader = TarReader(io.BytesIO(span + END), keeps=lambda member: True)
    members = [found for found in reader if isinstance(found, Member)]
    return Sample(members[0].key, {member.suffix: member.content or b"" for member in members})


def _is_sample(sample: StoredSample, is_own: bool) -> bool:
    return is_own or not sample.suffixes <= BESIDE


class _Window:
    """A buffer that moves over the file: `view[at:end]` has been read but not passed yet.

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
        """The number of bytes in the buffer that have not been passed."""
        return self.end - self.at

    def fill(self) -> bool:
        """Fill the buffer, and return whether there was anything more to read."""
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
        """Return the next block without passing it; it is shorter at the end of the file."""
        if self.left < BLOCK:
            self.fill()
        return bytes(self.view[self.at : min(self.at + BLOCK, self.end)])

    def skip(self, count: int) -> int:
        """Pass `count` bytes, and return how many there were."""
        if self.at + count <= self.end:
            self.at += count
            return count
        passed = min(count, self.left)
        self.at += passed
        if self._seeks and count - passed > BUFFER:
            self._file.seek(count - passed - BLOCK, 1)
            self._base += count - passed - BLOCK
            passed = count - BLOCK  # the last block is read, to notice an end before it
        while passed < count and self.fill():
            step = min(count - passed, self.left)
            self.at += step
            passed += step
        return passed

    def take(self, count: int) -> bytes:
        """Pass `count` bytes and return them; fewer if the file ends."""
        stop = self.at + count
        if stop <= self.end:
            content = bytes(self.view[self.at : stop])
            self.at = stop
            return content
        parts: list[bytes | memoryview] = [self.view[self.at : self.end].tobytes()]
        left = count - len(parts[0])
        self._base += self.end
        self.at = self.end = 0
        while left and not self._is_at_end:  # without the buffer, which would cost one more copy
            part = memoryview(bytearray(min(left, LONGEST_READ)))
            size = self._file.readinto(part)  # type: ignore[attr-defined]
            self._is_at_end = not size
            self._base += size
            left -= size
            parts.append(part[:size])
        return b"".join(parts)

    def find_header(self) -> bool:
        """Go to the next block in the buffer that is a sound header by its checksum; return False without
        one."""
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
        """Pass whole blocks of zeros; return the number of zeros here, and whether only zeros follow."""
        count = 0
        while self.left or self.fill():
            rest = len(bytes(self.view[self.at : self.end]).lstrip(b"\0"))
            zeros = self.left - rest
            if rest:
                self.skip(zeros // BLOCK * BLOCK)
                return count + zeros, False
            count += self.skip(zeros)
        return count, True
