"""Reads a tar's samples from front to back, plain or compressed, with webdataset's grouping.

Only local files are opened, by this module and never by webdataset's opener, which would run a shell command
for `pipe:` and for every remote scheme.
"""

from __future__ import annotations

import lzma
import re
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from webdataset.shardlists import expand_urls
from webdataset.tariterators import group_by_keys, tar_file_expander

from tasks.core.errors import DataError, UsageError
from tasks.dataset.tar.format import END

COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0")
"""What webdataset unpacks."""

Raw = dict[str, Any]


def local_files(urls: Sequence[str | Path]) -> list[Path]:
    """Paths of the tars; a path stands for itself, in a string braces are expanded."""
    files = [url for url in urls if isinstance(url, Path)]
    for url in (part for pattern in urls if isinstance(pattern, str) for part in expand_urls(pattern)):
        scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):", url)
        if (scheme and scheme[1] != "file") or url == "-":
            raise UsageError(
                f"{url}: only local files are read, since webdataset runs a shell command for any other "
                "address; copy the shards to this machine first"
            )
        files.append(Path(url.removeprefix("file://").removeprefix("file:")))
    if not files:
        raise UsageError("the list of shards is empty")
    return files


def read_tar(path: Path) -> Iterator[Raw]:
    """webdataset's samples of one tar, plain or compressed: members by suffix, `__key__` and `__url__`.

    DataError when it is broken, ends early or holds no sample.
    """
    key = None
    try:
        with path.open("rb") as file:
            _check_end(path)
            for raw in group_by_keys(tar_file_expander([{"url": str(path), "stream": file}])):
                key = raw["__key__"]
                yield raw
    except (OSError, EOFError, ValueError, tarfile.TarError, zlib.error, lzma.LZMAError) as error:
        where = f"after sample {key!r}" if key else "at its start"
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error.args[0]
        raise DataError(f"{path}: cannot be read {where}: {reason}") from error
    if key is None:
        raise DataError(f"{path}: holds no samples; take it off the list of shards")


def _check_end(path: Path) -> None:
    """DataError for a plain tar cut between two members, which tar readers take for a complete one."""
    size = path.stat().st_size
    with path.open("rb") as file:
        compressed = file.read(6).startswith(COMPRESSED)
        file.seek(max(size - len(END), 0))
        if not compressed and file.read() != END:
            raise DataError(f"{path}: truncated, its end blocks are missing; copy or build it again")
