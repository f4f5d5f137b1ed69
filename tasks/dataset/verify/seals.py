"""The files beside a version's tars: which are as they were built, and what is wrong with the others.

build.json seals all of them, and itself. A file is at fault, and is not used, where its seal is wrong, or
where it has no seal and cannot be read.
"""

from __future__ import annotations

import json
import shutil
import stat
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from tasks.core.files import CHUNK, blake3_file, disk_full_as_error
from tasks.core.process import available_cores
from tasks.core.stores import NotRegular, StoreUnreachable, is_remote
from tasks.core.threads import map_in_threads
from tasks.dataset.verify.findings import DIGITS, Fault, Fix, file_fault
from tasks.dataset.verify.tars import attempt, open_file
from tasks.dataset.version.build_info import FileSeal, parse_build_info
from tasks.dataset.version.layout import BUILD

MOST_JSON = 64_000_000
"""The most bytes of a JSON file that are read: sizes.json takes 25 bytes per shard."""

Read = TypeVar("Read")


class Misfit(ValueError):
    """The content of a file is not what it should be; the text says why."""


class VersionFiles:
    """The files by their names in the version: `sealed` are those whose seal is right, `faults` holds what is
    wrong with others.

    Local files are used where they lie. A remote file is fetched at its first use, into a temporary folder
    that `close` removes.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._copies: tempfile.TemporaryDirectory[str] | None = None
        self.root = Path(folder)
        """The folder that holds the files that were used."""
        if is_remote(folder):
            self._copies = tempfile.TemporaryDirectory(prefix="tarmac-verify-")
            self.root = Path(self._copies.name)
        self.faults: dict[str, Fault] = {}
        seals = self.use(BUILD, self._read_seals) or {}
        found = map_in_threads(lambda one: attempt(self._difference, *one), seals.items(), available_cores())
        for name, problem in zip(seals, found, strict=True):
            if problem is not None:
                self.blame(name, problem)
        self.sealed = frozenset(name for name in seals if name not in self.faults)

    def close(self) -> None:
        if self._copies is not None:
            self._copies.cleanup()

    def _require(self, name: str) -> Path:
        """The path of a file that exists and can be read; OSError, NotRegular for a pipe or folder in its
        place."""
        path = self.root / name
        if self._copies is None:
            if not stat.S_ISREG(path.stat().st_mode):
                raise NotRegular("not a regular file")
            path.open("rb").close()
        elif not path.exists():
            path.parent.mkdir(exist_ok=True)
            part = path.with_name(f"{path.name}.part")
            with (
                open_file(self._folder, name) as file,
                disk_full_as_error(self.root),
                part.open("wb") as copy,
            ):
                shutil.copyfileobj(file, copy, CHUNK)
            part.replace(path)
        return path

    def _read_seals(self, path: Path) -> Mapping[str, FileSeal]:
        content = read_json_bytes(path)
        try:
            return parse_build_info(content).files
        except (ValueError, RecursionError) as error:
            fix = Fix.TABLE if _has_config(content) else Fix.SEAL
            self.blame(BUILD, f"it {str(error)[:100]}", fix)
            return {}

    def _difference(self, name: str, seal: FileSeal) -> str | None:
        """How a file differs from its seal; OSError where it cannot be read."""
        path = self._require(name)
        size = path.stat().st_size
        if size != seal.bytes:
            return f"{size:,} bytes, {seal.bytes:,} when it was built"
        found = blake3_file(path)
        if found == seal.blake3:
            return None
        return f"its bytes are not those that were built: BLAKE3 {found[:DIGITS]}, not {seal.blake3[:DIGITS]}"

    def is_unsealed(self, name: str) -> bool:
        """Whether a file has no seal, and nothing is known to be wrong with it."""
        return name not in self.sealed and name not in self.faults

    def blame(self, name: str, problem: str | OSError, fix: Fix | str = Fix.TABLE) -> None:
        """Record what is wrong with a file, unless something was recorded before."""
        if isinstance(problem, PermissionError):
            fix = Fix.RIGHTS
        elif isinstance(problem, FileNotFoundError) and name == BUILD:
            fix = Fix.SEAL
        if isinstance(problem, FileNotFoundError | NotADirectoryError):
            problem = "missing"
        elif isinstance(problem, OSError):
            problem = f"unreadable: {problem.strerror or problem}"
        self.faults.setdefault(name, file_fault(name, problem, fix))

    def use(self, name: str, read: Callable[[Path], Read]) -> Read | None:
        """Return what `read` returns for a file, or None where the file is at fault."""
        if name in self.faults:
            return None
        try:
            return read(self._require(name))
        except StoreUnreachable:
            raise
        except (OSError, Misfit) as error:
            self.blame(name, error if isinstance(error, OSError) else str(error))
        except Exception as error:  # noqa: BLE001 - libraries raise whatever torn files lead them to
            self.blame(name, f"torn: it cannot be read ({type(error).__name__})")
        return None


def read_json_bytes(path: Path) -> bytes:
    if path.stat().st_size > MOST_JSON:
        raise Misfit(f"it has more than {MOST_JSON:,} bytes")
    return path.read_bytes()


def _has_config(content: bytes) -> bool:
    """Whether a damaged build.json still holds the config that a repair needs."""
    try:
        return isinstance(json.loads(content)["dataset"], dict)
    except (ValueError, TypeError, KeyError, RecursionError):
        return False
