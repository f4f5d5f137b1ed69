import errno
import hashlib
import os
import resource
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from tasks.dataset.background_file import FLUSHED, BackgroundFile

PIECES = [b"", b"a", np.arange(3 * FLUSHED, dtype=np.uint32).view(np.uint8), memoryview(b"b" * FLUSHED), b"c"]


def test_what_is_appended_is_on_disk_in_order_and_hashed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with closing(BackgroundFile(path)) as file:
        for piece in PIECES:
            file.append([piece, b"|"])
        digest = file.finish()
    content = path.read_bytes()
    assert content == b"".join(bytes(piece) + b"|" for piece in PIECES)
    assert hashlib.sha256(content).hexdigest() == digest


def test_a_buffer_is_free_again_after_wait(tmp_path: Path) -> None:
    buffer = bytearray(FLUSHED)
    with closing(BackgroundFile(tmp_path / "file")) as file:
        for number in range(5):
            buffer[:] = bytes([number]) * FLUSHED
            file.append([buffer])
            file.wait()
        file.finish()
    assert (tmp_path / "file").read_bytes() == b"".join(bytes([n]) * FLUSHED for n in range(5))


@pytest.fixture
def small_files() -> Iterator[int]:
    """Bytes after which the system takes only a part of what is written, and then nothing."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    most = FLUSHED // 2 + 1
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    yield most
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("how", ["append", "wait", "finish"])
def test_what_is_written_in_part_is_told(tmp_path: Path, small_files: int, how: str) -> None:
    with closing(BackgroundFile(tmp_path / "file")) as file:
        file.append([bytes(FLUSHED)])
        with pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
            file.append([b"more"]) if how == "append" else getattr(file, how)()
    assert (tmp_path / "file").stat().st_size == small_files


def test_a_flush_that_failed_on_the_way_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", fail)
    with closing(BackgroundFile(tmp_path / "file")) as file:
        file.append([bytes(FLUSHED)])
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            file.finish()
