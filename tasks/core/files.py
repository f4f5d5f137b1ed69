"""Files that appear whole or not at all, their digests, and what a failing disk means.

Every file that others read is written to a temporary name in the same folder, flushed to disk and renamed.
Append-only files (JSON lines) take one `write` per line, so that a killed writer leaves at most one torn last
line, which readers skip. The price is one fsync per file, paid where losing the file would cost more.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from blake3 import blake3

from tasks.core.errors import DataError, TarmacError, UsageError

CHUNK = 1 << 20
FULL = (errno.ENOSPC, errno.EDQUOT)
_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.EINVAL, errno.ELOOP)


def fsync_path(path: Path) -> None:
    """Make a file's content, or a folder's names, durable: a rename is on disk only after this."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomic(path: Path, content: bytes | str) -> None:
    """Replace `path` by `content` in one durable step; a missing folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), 0o644)
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    fsync_path(path.parent)


def link_atomic(link: Path, target: str) -> None:
    """Point the symbolic link `link` at `target` by a rename, so that readers see the old or the new one."""
    temporary = link.with_name(f".{link.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    try:
        os.replace(temporary, link)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_path(link.parent)


def write_json(path: Path, value: Any) -> None:
    """`write_atomic` of readable JSON; ValueError for NaN and Infinity, which JSON does not have."""
    write_atomic(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """The parsed file; OSError or ValueError (json.JSONDecodeError)."""
    return json.loads(path.read_text(encoding="utf-8"))


def append_line(path: Path, line: str) -> None:
    """Append one line by a single `write`, which survives SIGKILL of this process.

    A torn line that an earlier writer left is ended first, so that it costs no other line. OSError where the
    file system is full and takes only a part.
    """
    data = line.rstrip("\n").encode() + b"\n"
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            data = b"\n" + data
        if os.write(descriptor, data) != len(data):
            raise OSError(errno.ENOSPC, "only a part of a line could be written", str(path))
    finally:
        os.close(descriptor)


def read_lines(path: Path, offset: int = 0) -> tuple[list[dict[str, Any]], int]:
    """The JSON objects from byte `offset` on, and the offset after the last whole line.

    A missing file counts as empty. A last line without a newline is still being written and stays unread; a
    whole line that is no JSON object was torn by a crash and is skipped.
    """
    try:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read()
    except FileNotFoundError:
        return [], offset
    end = data.rfind(b"\n") + 1
    rows = []
    for line in data[:end].splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows, offset + end


def blake3_file(path: Path) -> str:
    """Hexadecimal BLAKE3 of a file's content, as `b3sum` prints it; OSError.

    The file is read and not mapped: where a disk fails under a map, the process dies of SIGBUS.
    """
    hasher = blake3()
    buffer = memoryview(bytearray(CHUNK))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            hasher.update(buffer[:count])
    return hasher.hexdigest()


def digest(value: Any) -> str:
    """Hexadecimal BLAKE3 of a JSON value in canonical form (sorted keys, no spaces)."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return blake3(text.encode()).hexdigest()


def code_digest() -> str:
    """The first 12 digits of the BLAKE3 of the library's own sources: processes with the same digest do the
    same with the same input."""
    root = Path(__file__).resolve().parents[1]
    total = blake3()
    for path in sorted(root.rglob("*.py")):
        total.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()[:12]


class DiskFull(DataError):
    """There was no room for a write."""


@contextlib.contextmanager
def disk_full_as_error(folder: Path) -> Iterator[None]:
    """Turn a disk-full error, SQLite's too, into a DiskFull that names `folder`."""
    try:
        yield
    except (OSError, sqlite3.OperationalError) as error:
        if not is_disk_full(error):
            raise
        raise DiskFull(
            f"the disk of {folder} is full; make room and run again: what is done is kept"
        ) from error


def is_disk_full(error: BaseException) -> bool:
    """Whether the file system, or SQLite on it, had no room left for a write."""
    if isinstance(error, DiskFull):
        return True
    if isinstance(error, sqlite3.OperationalError):
        return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
    return isinstance(error, OSError) and error.errno in FULL


@contextlib.contextmanager
def unreadable_as_error(kind: type[TarmacError] = UsageError) -> Iterator[None]:
    """Turn an OSError into an error of this kind that names the file and the fix."""
    try:
        yield
    except OSError as error:
        fix = "mind its rights and its disk"
        raise kind(f"{error.filename} cannot be read: {error.strerror or error}; {fix}") from None


@contextlib.contextmanager
def ignore_missing() -> Iterator[None]:
    """Leave the block where a file is missing; any other OSError is raised."""
    try:
        yield
    except OSError as error:
        if error.errno not in _MISSING:
            raise


def require_writable(folder: Path, config_key: str) -> None:
    """UsageError naming `config_key` where no such folder can be made or written into."""
    for path in (folder, *folder.parents):
        if path.is_dir():
            if not os.access(path, os.W_OK | os.X_OK):
                raise UsageError(f"{config_key}: {path} may not be written into; give another folder")
            return
        if path.exists():
            raise UsageError(f"{config_key}: {path} is a file; give a folder")


def own_folder(setting: str) -> Path:
    """A folder below TMPDIR of this user alone, made where it is missing.

    UsageError, which names the `setting` that needs it, when it is another's, who could
    put other files there.
    """
    root = Path(tempfile.gettempdir()) / f"tarmac-{os.getuid()}"
    try:
        root.mkdir(mode=0o700, exist_ok=True)
        status = root.lstat()
    except OSError as error:
        raise UsageError(f"{setting}: {root} cannot be made: {error.strerror}; set TMPDIR") from None
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise UsageError(f"{setting}: {root} is not this user's alone; remove it, or set TMPDIR")
    return root
