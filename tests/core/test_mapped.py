"""Views of a file, and what becomes of one that is cut meanwhile."""

import os
from pathlib import Path

import pytest

from tasks.core.mapped import map_range, readable


def test_a_view_holds_the_bytes_from_any_offset(tmp_path: Path) -> None:
    content = os.urandom(20_000)
    (tmp_path / "file").write_bytes(content)
    with (tmp_path / "file").open("rb") as file:
        view = map_range(file.fileno(), 4097, 9000)
    assert bytes(readable(view)) == content[4097:13097] and not view.flags.writeable


def test_a_file_that_is_too_short_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(5000))
    with (tmp_path / "file").open("rb") as file, pytest.raises(ValueError, match="length"):
        map_range(file.fileno(), 4097, 904)


def test_pages_that_are_gone_are_an_error_and_no_signal(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(100_000))
    with path.open("rb") as file:
        view = map_range(file.fileno(), 0, 100_000)
    os.truncate(path, 50_000)
    readable(view[:40_000])
    with pytest.raises(OSError, match="Input/output error"):
        readable(view[60_000:60_001])
