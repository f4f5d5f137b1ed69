"""The result files of a run, each read once per version; a file that holds no result is moved aside.

A file may be torn, of another form, or named for something else. Anybody may leave one there, so nobody who
reads results may fail over it. The agent moves it aside once it has stayed the same for a while, because
another program may still be writing it, and reports a finding.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from tasks.core.findings import Finding
from tasks.core.lock import Held, Lease
from tasks.evaluation import results
from tasks.evaluation.results import EvaluationResult
from tasks.runs.folder import RunFolder

SETTLED_S = 30.0
logger = logging.getLogger(__name__)
Version = tuple[int, ...]
Content = TypeVar("Content")


def once_per_version(read: Callable[[Path], Content], files: int = 4096) -> Callable[[Path], Content]:
    """Return `read` with a cache of its values for up to `files` files, each until the file changes.

    Nothing is cached of a missing file: one that appears meanwhile would count as there for ever.
    """
    cached = lru_cache(maxsize=files)(lambda path, version: read(path))

    def read_once(path: Path) -> Content:
        version = _version(path)
        return cached(path, version) if version else read(path)

    return read_once


def _version(path: Path) -> Version:
    try:
        stat = path.stat()
    except FileNotFoundError:
        return ()
    return stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino


_result = once_per_version(results.examine_result)
_summary = once_per_version(results.examine_summary)


def result_of(path: Path) -> EvaluationResult | None:
    """Return the result in a file; None when it holds none or is missing."""
    found = _result(path)
    return found if isinstance(found, EvaluationResult) else None


class UnusableResults:
    """The unusable files of one run, in the hands of its agent."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self._since: dict[Path, tuple[Version, float]] = {}
        self._findings: list[Finding] = []

    def look(self) -> None:
        """Move aside what has been unusable for SETTLED_S, unless the job that may write it is at work."""
        found = dict(self._unusable())
        self._since = {path: since for path, since in self._since.items() if path in found}
        for path, why in found.items():
            version, now = _version(path), time.monotonic()
            known, since = self._since.setdefault(path, (version, now))
            if known != version:
                self._since[path] = (version, now)
            elif now - since >= SETTLED_S:
                self._set_aside(path, why)

    def is_summary(self, path: Path) -> bool:
        """Whether the agent's own file of `eval_results/` is sound; one that is not is moved aside."""
        if not path.exists():
            return False
        found = results.examine_summary(path)
        if isinstance(found, str):
            self._set_aside(path, found)
        return not isinstance(found, str)

    def take(self) -> list[Finding]:
        """Return the findings about files that were moved aside since the last call."""
        taken, self._findings = self._findings, []
        return taken

    def _unusable(self) -> Iterator[tuple[Path, str]]:
        """The unusable files and why they are."""
        found = (
            *((path, _result(path)) for path in results.files_of(self._run)),
            *((path, _summary(path)) for path in self._run.eval_results.glob("step_*.json")),
        )
        return ((path, why) for path, why in found if isinstance(why, str))

    def _set_aside(self, path: Path, why: str) -> None:
        try:
            with Lease(path.with_name(f".{path.stem}.lease")):  # of the job that may write it
                aside = results.set_aside(path)
        except Held:
            return
        except OSError as error:
            logger.warning("%s is no result (%s) and cannot be moved aside: %s", path, why, error)
            return
        logger.warning("%s is no result (%s); moved aside to %s", path, why, aside.name)
        where = {"file": str(path.relative_to(self._run.path))}
        evidence = {"what": why, "moved_to": aside.name}
        remedy = "have whoever wrote it write it again, whole and by rename"
        self._findings.append(Finding("result.invalid", "warning", remedy, where, evidence))
