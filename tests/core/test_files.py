"""Files are whole or absent, and JSON lines survive a torn tail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.core import files


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    files.write_json(path, {"old": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        files.write_json(path, {"new": float("nan")})
    assert files.read_json(path) == {"old": 1}
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_reader_never_sees_half_a_file_while_its_writer_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "big.bin"
    files.write_atomic(path, b"0" * 5_000_000)
    code = (
        "import sys; from pathlib import Path; from tasks.core.files import write_atomic\n"
        "n = 0\n"
        "while True:\n"
        "    n += 1; write_atomic(Path(sys.argv[1]), str(n % 10).encode() * 5_000_000); print(n, flush=True)\n"
    )
    writer = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    for _ in range(3):
        writer.stdout.readline()
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    content = path.read_bytes()
    assert len(content) == 5_000_000
    assert len(set(content)) == 1


def test_a_link_is_switched_whole(tmp_path: Path) -> None:
    files.link_atomic(tmp_path / "current", "one")
    files.link_atomic(tmp_path / "current", "two")
    assert os.readlink(tmp_path / "current") == "two"
    assert os.listdir(tmp_path) == ["current"]


def test_lines_are_read_from_where_the_last_reading_ended(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    assert files.read_lines(path) == ([], 0)
    files.append_line(path, '{"a": 1}')
    rows, offset = files.read_lines(path)
    assert rows == [{"a": 1}]
    with path.open("ab") as file:
        file.write(b'{"torn": ')
    assert files.read_lines(path, offset) == ([], offset)
    files.append_line(path, '{"b": 2}')
    rows, _ = files.read_lines(path, offset)
    assert rows == [{"b": 2}]


def test_digest_ignores_the_order_of_keys() -> None:
    assert files.digest({"a": 1, "b": [1, 2]}) == files.digest({"b": [1, 2], "a": 1})
    assert files.digest({"a": 1}) != files.digest({"a": 2})
