"""Files are whole or absent, and JSON lines survive a torn tail."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from blake3 import blake3

from tasks.core import files
from tasks.core.errors import DataError


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


def test_the_digest_of_a_file_is_what_b3sum_prints(tmp_path: Path) -> None:
    """The vectors are BLAKE3's own, of 0, 1, 2, ... 250, 0, 1, ... (test_vectors.json)."""
    for size, digest in (
        (0, "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"),
        (102400, "bc3e3d41a1146b069abffad3c0d44860cf664390afce4d9661f7902e7943e085"),
    ):
        (tmp_path / "x").write_bytes(bytes(n % 251 for n in range(size)))
        assert files.blake3_file(tmp_path / "x") == digest
    content = os.urandom(3 * files.CHUNK + 1)
    (tmp_path / "x").write_bytes(content)
    assert files.blake3_file(tmp_path / "x") == blake3(content).hexdigest()


def test_a_full_disk_is_known_by_its_code(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "x.db")
    database.execute("CREATE TABLE full (content)")
    database.execute("PRAGMA max_page_count = 2")
    full = pytest.raises(DataError, match=rf"the disk of {tmp_path} is full; make room")
    with full, files.disk_full_as_error(tmp_path):
        database.execute("INSERT INTO full VALUES (zeroblob(100000))")
    with full, files.disk_full_as_error(tmp_path), open("/dev/full", "wb") as file:
        file.write(b"x")
    no_table = pytest.raises(sqlite3.OperationalError, match="no such table: disk is full")
    with no_table, files.disk_full_as_error(tmp_path):
        database.execute('SELECT * FROM "disk is full"')
    database.close()
