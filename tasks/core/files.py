"""Atomic and append-only files, digests of files, and the errors of full or failing disks.

Every file that others read is written to a temporary name in the same folder, flushed to disk and renamed.
Append-only files (JSON lines) take one `write` per line, so that a killed writer leaves at most one torn last
line, which readers skip. The price is one fsync per file; it is paid where losing the file would cost more.
"""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
import sqlite3
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from blake3 import blake3

from tasks.core.errors import DataError, TarmacError, UsageError

CHUNK = 1 << 20
FULL = (errno.ENOSPC, errno.EDQUOT)
_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.EINVAL, errno.ELOOP)


def fsync_path(path: Path) -> None:
    """Flush a file's content, or a folder's names, to disk: a rename is durable only after this."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomic(path: Path, content: bytes | str) -> None:
    """Replace the content of `path` in one durable step; a missing folder is created."""
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
    """Point the symbolic link `link` at `target` by a rename, so that readers see the old or the new
    target."""
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
    """Write readable JSON with `write_atomic`; raises ValueError for NaN and Infinity, which JSON lacks."""
    write_atomic(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Parse a JSON file; raises OSError or ValueError (json.JSONDecodeError)."""
    return json.loads(path.read_text(encoding="utf-8"))


def append_line(path: Path, line: str) -> None:
    """Append one line with a single `write`, so that SIGKILL of this process cannot tear it.

    A torn line that an earlier writer left is terminated first, so that it does not spoil this one. Raises
    OSError if the file system is full and only a part was written.
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
    """Return the JSON objects from byte `offset` on, and the offset after the last complete line.

    A missing file counts as empty. A last line without a newline is still being written and is not read; a
    complete line that is not a JSON object was torn by a crash and is skipped.
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


def page_aligned(size: int) -> memoryview:
    """Return a buffer for reading files that begins at a page: the kernel copies a file in its cache to there
    in two thirds of the time that it takes for a bytearray, which begins within one."""
    return memoryview(mmap.mmap(-1, size))


_kept = threading.local()


def read_buffer() -> memoryview:
    """Return this thread's page-aligned buffer of CHUNK bytes, kept because new pages take as long as copying
    into them; whoever fills it empties it before anyone else of this thread may."""
    buffer: memoryview | None = getattr(_kept, "buffer", None)
    if buffer is None:
        buffer = _kept.buffer = page_aligned(CHUNK)
    return buffer


def blake3_file(path: Path) -> str:
    """Return the hexadecimal BLAKE3 of a file's content, as `b3sum` prints it; raises OSError.

    The file is read and not memory-mapped: if the disk fails under a map, SIGBUS kills the process.
    """
    hasher = blake3()
    buffer = read_buffer()
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            hasher.update(buffer[:count])
    return hasher.hexdigest()


def digest(value: Any) -> str:
    """Return the hexadecimal BLAKE3 of a JSON value in canonical form (sorted keys, no spaces)."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return blake3(text.encode()).hexdigest()


def code_digest() -> str:
    """Return the first 12 digits of the BLAKE3 of the library's sources: processes with the same digest treat
    the same input alike."""
    root = Path(__file__).resolve().parents[1]
    total = blake3()
    for path in sorted(root.rglob("*.py")):
        total.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()[:12]


class DiskFull(DataError):
    """A write failed because the disk is full."""


@contextlib.contextmanager
def disk_full_as_error(folder: Path) -> Iterator[None]:
    """Turn a disk-full error, including SQLite's, into a DiskFull that names `folder`."""
    try:
        yield
    except (OSError, sqlite3.OperationalError) as error:
        if not is_disk_full(error):
            raise
        raise DiskFull(
            f"the disk of {folder} is full; make room and run again: what is done is kept"
        ) from error


def is_disk_full(error: BaseException) -> bool:
    """Whether a write failed because the disk is full, including writes by SQLite."""
    if isinstance(error, DiskFull):
        return True
    if isinstance(error, sqlite3.OperationalError):
        return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
    return isinstance(error, OSError) and error.errno in FULL


@contextlib.contextmanager
def unreadable_as_error(kind: type[TarmacError] = UsageError) -> Iterator[None]:
    """Turn an OSError into an error of type `kind` that names the file and the fix."""
    try:
        yield
    except OSError as error:
        problem = error.strerror or error
        fix = "check its permissions and its disk"
        raise kind(f"{error.filename} cannot be read: {problem}; {fix}") from None


@contextlib.contextmanager
def ignore_missing() -> Iterator[None]:
    """Leave the block without an error if a file is missing; any other OSError is raised."""
    try:
        yield
    except OSError as error:
        if error.errno not in _MISSING:
            raise


def require_writable(folder: Path, config_key: str) -> None:
    """Raise a UsageError that names `config_key` if the folder cannot be created or written to."""
    for path in (folder, *folder.parents):
        if path.is_dir():
            if not os.access(path, os.W_OK | os.X_OK):
                raise UsageError(f"{config_key}: {path} is not writable; give another folder")
            return
        if path.exists():
            raise UsageError(f"{config_key}: {path} is a file; give a folder")


def own_folder(setting: str) -> Path:
    """Return a private folder of this user below TMPDIR, and create it if it is missing.

    Raises a UsageError that names `setting` if another user owns the folder or can write files into it.
    """
    root = Path(tempfile.gettempdir()) / f"tarmac-{os.getuid()}"
    try:
        root.mkdir(mode=0o700, exist_ok=True)
        status = root.lstat()
    except OSError as error:
        raise UsageError(f"{setting}: {root} cannot be created: {error.strerror}; set TMPDIR") from None
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise UsageError(f"{setting}: {root} is not private to this user; remove it, or set TMPDIR")
    return root
