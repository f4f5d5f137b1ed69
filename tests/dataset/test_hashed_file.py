import errno
import os
import resource
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3

from tasks.dataset.tar.hashed_file import HashedFile

LONG = 1 << 21
PIECES = [b"", b"a", np.arange(3 * LONG, dtype=np.uint32).view(np.uint8), memoryview(b"b" * LONG), b"c"]


def test_what_is_appended_is_written_in_order_and_hashed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with closing(HashedFile(path)) as file:
        for piece in PIECES:
            file.append([piece, b"|"])
        digest = file.finish()
    content = path.read_bytes()
    assert content == b"".join(bytes(piece) + b"|" for piece in PIECES)
    assert blake3(content).hexdigest() == digest


def test_a_buffer_is_free_again_after_wait(tmp_path: Path) -> None:
    buffer = bytearray(LONG)
    with closing(HashedFile(tmp_path / "file")) as file:
        for number in range(5):
            buffer[:] = bytes([number]) * LONG
            file.append([buffer])
            file.wait()
        file.finish()
    assert (tmp_path / "file").read_bytes() == b"".join(bytes([n]) * LONG for n in range(5))


@pytest.fixture
def small_files() -> Iterator[int]:
    """Bytes after which the system takes only a part of what is written, and then nothing."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    most = LONG // 2 + 1
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    yield most
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_what_is_written_in_part_is_told(tmp_path: Path, small_files: int) -> None:
    too_large = pytest.raises(OSError, match=os.strerror(errno.EFBIG))
    with closing(HashedFile(tmp_path / "file")) as file, too_large:
        file.append([bytes(LONG)])
    assert (tmp_path / "file").stat().st_size == small_files
