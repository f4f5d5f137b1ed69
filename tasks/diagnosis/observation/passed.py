"""Reads again the samples that a process has just passed in a tar, for their members and sizes.

It runs in a process of its own, because reading from a disk that hangs would hang the examination too, and
such a read cannot be interrupted. Only the headers of the tar are read, and that of the first image, whose
size in pixels decides whether decoding takes so long.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from tasks.core.process import child_environment
from tasks.dataset.tar.reader import Cut, Gap, Member, StoredSample, TarReader, group_samples
from tasks.diagnosis.observation.record import Passed, SampleKind

MOST_SAMPLES = 1_000
"""The most samples of one range: enough for a verdict, and quickly read."""
IMAGES = frozenset({"jpg", "jpeg", "png", "webp"})
MOST_IMAGES = 32
"""The images of each kind of samples whose header is read."""
HEAD_BYTES = 1 << 18
"""The first bytes of an image, which hold its header unless a large preview precedes it."""
Range = tuple[int, str, int, int, int]
"""A process, a path, the first and the last byte read there, and the bytes read of all files."""
ALL_PASSED = 4
"""A process that has read this many times the size of a tar that it has open reads the tar in circles."""


FULL = -1
"""Stands for the process in an answer about a folder."""


@dataclass(frozen=True)
class Replayed:
    """The samples in the ranges by process, the folders without room, and whether all was read in time."""

    passed: dict[int, list[Passed]]
    full: list[str]
    is_whole: bool


class ReplayReader:
    """The process that reads samples again. It starts early, as its start takes as long as its work."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tasks.diagnosis.observation.passed"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=child_environment(),
        )

    def ask(self, ranges: Sequence[Range], folders: Sequence[tuple[int, str]] = ()) -> None:
        """Request these ranges, and whether these folders have room; the answers come later, in the same
        order."""
        stdin, self._process.stdin = self._process.stdin, None
        assert stdin is not None
        with suppress(BrokenPipeError), stdin:
            stdin.write(json.dumps({"folders": folders, "ranges": ranges}).encode())

    def answer(self, timeout_s: float) -> Replayed:
        """Return what was found until then."""
        try:
            output, _ = self._process.communicate(timeout=timeout_s)
            is_whole = self._process.returncode == 0
        except subprocess.TimeoutExpired as late:
            self._process.kill()  # not waited for: in an uninterruptible read it ends when the disk answers
            output, is_whole = late.output or b"", False
        found: dict[int, list[Passed]] = {}
        full: list[str] = []
        for line in output.split(b"\n")[:-1]:
            pid, one = json.loads(line)
            if pid == FULL:
                full.append(one)
                continue
            kinds = [SampleKind(**kind) for kind in one.pop("kinds")]
            found.setdefault(pid, []).append(Passed(kinds=kinds, **one))
        return Replayed(found, full, is_whole)


class _UpTo(io.RawIOBase):
    """A file that ends where the observed process has read to: the rest may take long on a slow disk."""

    def __init__(self, path: Path, stop: int) -> None:
        self._file = path.open("rb", buffering=0)
        self._stop = stop

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)[: max(self._stop - self._file.tell(), 0)]
        return self._file.readinto(view) or 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()
        super().close()


def passed_in(path: Path, name: str, start: int, stop: int) -> Passed | None:
    """Return the samples of the tar at `path` that end between two offsets, MOST_SAMPLES at most.

    None where the file is no tar. OSError where it cannot be read.
    """
    before, reached = 0, start
    kinds: dict[tuple[str, ...], SampleKind] = {}
    with _UpTo(path, stop) as file:
        for entry in group_samples(TarReader(cast(BinaryIO, file), seeks=True)):
            if isinstance(entry, Gap | Cut):
                if before == 0 and not kinds:
                    return None
                continue
            end = entry.members[-1].offset + entry.members[-1].size
            if end > stop or entry.is_torn or sum(kind.samples for kind in kinds.values()) >= MOST_SAMPLES:
                break
            if end <= start:
                before += 1
            else:
                _count(entry, file.fileno(), kinds)
                reached = end
    return Passed(name, start, reached, before, list(kinds.values()))


def _count(sample: StoredSample, descriptor: int, kinds: dict[tuple[str, ...], SampleKind]) -> None:
    members = tuple(sorted(sample.suffixes))
    known = kinds.get(members, SampleKind(members, 0, 0))
    image = next((member for member in sample.members if member.suffix in IMAGES), None)
    pixels, undecodable, images = known.pixels, known.undecodable, known.images
    if image is not None and images < MOST_IMAGES:
        found = _pixels(image, descriptor)
        pixels, images, undecodable = pixels or found, images + 1, undecodable + (found is None)
    size = known.bytes + sum(member.size for member in sample.members)
    kinds[members] = SampleKind(members, known.samples + 1, size, pixels, images, undecodable)


def _pixels(image: Member, descriptor: int) -> int | None:
    """Return the pixels of an image by its header; None where that cannot be read."""
    from PIL import Image  # a late import, because most ranges are empty

    head = os.pread(descriptor, min(image.size, HEAD_BYTES), image.offset)
    try:
        width, height = Image.open(io.BytesIO(head)).size
    except (OSError, ValueError, Image.DecompressionBombError):
        return None
    return int(width * height)


def main() -> None:
    asked = json.load(sys.stdin)
    for pid, name, start, stop, read in asked["ranges"]:
        path = _inside(pid, name)
        with suppress(OSError):
            if read >= ALL_PASSED * (size := path.stat().st_size):
                start, stop = 0, size
            if (passed := passed_in(path, name, start, stop)) is not None:
                print(json.dumps((pid, asdict(passed))), flush=True)  # noqa: T201 - the answer to the starter
    for pid, name in asked["folders"]:
        with suppress(OSError):
            room = os.statvfs(_inside(pid, name))
            if room.f_bavail == 0 and not room.f_flag & os.ST_RDONLY:
                print(json.dumps((FULL, name)), flush=True)  # noqa: T201 - the answer to the starter


def _inside(pid: int, name: str) -> Path:
    """Return a path of another process, which may have its own root."""
    inside = f"/proc/{pid}/root{name}"
    return Path(inside if os.path.exists(inside) else name)


if __name__ == "__main__":
    main()
