"""Which files beside a version's tars are as they were built, and what is wrong with the others.

build.json seals them all, and itself. A file whose seal is wrong is at fault and is not used; so is one
without a seal that cannot be read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from tasks.core.files import blake3_file
from tasks.core.process import available_cores
from tasks.core.stores import Unreachable
from tasks.dataset.build_info import FileSeal, parse_build_info
from tasks.dataset.layout import BUILD
from tasks.dataset.verify.report import Fault, Fix, file_fault
from tasks.dataset.verify.tars import VersionFiles

MOST_JSON = 64_000_000
"""Bytes of a JSON file: sizes.json takes 25 for each shard."""
DIGITS = 12
"""Of a checksum, for a message."""

Read = TypeVar("Read")


class Misfit(ValueError):
    """A table that is none, or one of other shards; the text says why."""


class SealedFiles:
    """The files by what their seals say: `sealed` are those that have it, `faults` are by the file's name."""

    def __init__(self, files: VersionFiles) -> None:
        self._files = files
        self.faults: dict[str, Fault] = {}
        self.sealed = self._check_seals()

    def _check_seals(self) -> frozenset[str]:
        """The files whose BLAKE3 is the one in build.json, which seals itself."""
        seals = self.use(BUILD, self._read_seals) or {}
        with ThreadPoolExecutor(available_cores()) as pool:
            problems = dict(zip(seals, pool.map(self._difference, seals, seals.values()), strict=True))
        for name, problem in problems.items():
            if problem is not None:
                self.blame(name, problem)
        return frozenset(name for name in seals if name not in self.faults)

    def _read_seals(self, path: Path) -> Mapping[str, FileSeal]:
        content = read_json_bytes(path)
        try:
            return parse_build_info(content).files
        except (ValueError, RecursionError) as error:
            fix = Fix.TABLE if _has_config(content) else Fix.SEAL
            self.blame(BUILD, f"it {str(error)[:100]}", fix)
            return {}

    def _difference(self, name: str, seal: FileSeal) -> str | OSError | None:
        try:
            path = self._files.require(name)
            size = path.stat().st_size
            if size != seal.bytes:
                return f"{size:,} bytes, {seal.bytes:,} when it was built"
            found = blake3_file(path)
        except Unreachable:
            raise
        except OSError as error:
            return error
        if found == seal.blake3:
            return None
        return f"its bytes are not those that were built: BLAKE3 {found[:DIGITS]}, not {seal.blake3[:DIGITS]}"

    def is_unsealed(self, name: str) -> bool:
        """Whether nothing says what a file was, and nothing is known to be wrong with it."""
        return name not in self.sealed and name not in self.faults

    def blame(self, name: str, problem: str | OSError, fix: Fix | str = Fix.TABLE) -> None:
        """Say what is wrong with a file, unless something was said before."""
        if isinstance(problem, PermissionError):
            fix = Fix.RIGHTS
        elif isinstance(problem, FileNotFoundError) and name == BUILD:
            fix = Fix.SEAL
        self.faults.setdefault(name, file_fault(name, _worded(problem), fix))

    def note(self, name: str, **evidence: str) -> None:
        """Add to what is said of a file that is at fault."""
        known = self.faults.get(name)
        if known is not None:
            self.faults[name] = replace(known, evidence={**known.evidence, **evidence})

    def use(self, name: str, read: Callable[[Path], Read]) -> Read | None:
        """What `read` makes of a file; None where it is at fault."""
        if name in self.faults:
            return None
        try:
            path = self._files.require(name)
        except Unreachable:
            raise
        except OSError as error:
            self.blame(name, error)
            return None
        try:
            return read(path)
        except (OSError, Misfit) as error:
            self.blame(name, error if isinstance(error, OSError) else str(error))
        except Exception as error:  # noqa: BLE001 - libraries raise whatever torn files lead them to
            self.blame(name, f"torn: it cannot be read ({type(error).__name__})")
        return None


def _worded(problem: str | OSError) -> str:
    if isinstance(problem, FileNotFoundError | NotADirectoryError):
        return "missing"
    return problem if isinstance(problem, str) else f"unreadable: {problem.strerror or problem}"


def read_json_bytes(path: Path) -> bytes:
    if path.stat().st_size > MOST_JSON:
        raise Misfit(f"it has more than {MOST_JSON:,} bytes")
    return path.read_bytes()


def _has_config(content: bytes) -> bool:
    """Whether a damaged build.json still says what a repair needs."""
    try:
        return isinstance(json.loads(content)["dataset"], dict)
    except (ValueError, TypeError, KeyError, RecursionError):
        return False
