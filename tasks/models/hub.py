"""Which files of the hub's repositories are on this machine, and which commit of each a project's runs use.

The files lie in huggingface_hub's own cache, where every trainer finds them. `fetched.json` in the folder of
runs pins each repository to a commit and records the SHA-256 of each file. A file whose size and time are
those of the last fetch counts as unchanged; any other is read again. This module needs no network, torch or
huggingface_hub.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ValidationError

from tasks.core.errors import DataError, first_line
from tasks.core.files import CHUNK, read_json
from tasks.core.findings import Finding, Severity
from tasks.core.schema import Config
from tasks.models.clip.clip_options import open_clip_needs
from tasks.models.needs import HubNeed, Need, PathNeed, UnknownNeed
from tasks.models.recipes import check_recipe

LOCK = "fetched.json"
OFFLINE, OURS = "HF_HUB_OFFLINE", "TARMAC_HUB_OFFLINE"
"""The variable that keeps every library from asking the hub, and the mark that Tarmac has set it."""
MAIN = "main"
"""The revision that libraries ask for by default."""


class Seal(BaseModel):
    """A file as it was fetched; as long as `modified_ns` holds, it need not be read again."""

    size_bytes: int
    sha256: str
    modified_ns: int


class Pinned(BaseModel):
    """A repository's commit, and its files that were fetched."""

    commit: str
    files: dict[str, Seal] = {}


class Lock(BaseModel):
    """The content of `fetched.json`."""

    repositories: dict[str, Pinned] = {}


@dataclass(frozen=True)
class Lack:
    """A need that is not met, and why.

    With `is_certain` the training will fail; otherwise it will try to download what is missing.
    """

    need: Need
    problem: str
    is_certain: bool

    def finding(self) -> Finding:
        """The finding that preflight and fetch show."""
        severity: Severity = "error" if self.is_certain else "warning"
        evidence = {"problem": self.problem}
        if isinstance(self.need, PathNeed):
            return Finding("weights.missing", severity, self.need.fix, {"file": self.need.path}, evidence)
        command = "tarmac fetch CONFIG"
        otherwise = "" if self.is_certain else "; otherwise the training downloads it when it starts"
        remedy = f"{command}, where there is a network{otherwise}"
        return Finding("weights.missing", severity, remedy, {}, evidence, command=command)


def needs(config: Config) -> list[Need]:
    """The needs of this config's training, teachers and scores; UsageError for a wrong model block."""
    found = list(check_recipe(config.train).needs) if config.train is not None else []
    for teacher in config.reinforce.teachers if config.reinforce is not None else ():
        found += open_clip_needs("reinforce.teachers", teacher.name, teacher.pretrained)
    if config.score is not None:
        found += open_clip_needs("score.model", config.score.model.name, config.score.model.pretrained)
    return list(dict.fromkeys(found))


def read_lock(runs: Path) -> Lock:
    """The pins and seals of the runs in this folder; DataError for a file that cannot be read."""
    try:
        return Lock.model_validate(read_json(runs / LOCK))
    except (FileNotFoundError, NotADirectoryError):
        return Lock()
    except (OSError, ValueError, ValidationError) as error:
        problem = first_line(error)
        raise DataError(
            f"{runs / LOCK} cannot be read ({problem}); remove it and run tarmac fetch again"
        ) from None


def lacks(wanted: Sequence[Need], lock: Lock, *, is_deep: bool = False) -> Iterator[Lack]:
    """The needs that are not met; with `is_deep` every file that was fetched is read."""
    for need in wanted:
        if isinstance(need, PathNeed):
            if not os.path.exists(os.path.expanduser(need.path)):
                yield Lack(need, need.problem, True)
        elif isinstance(need, HubNeed):
            pinned = lock.repositories.get(need.repository)
            files = None if pinned is None else files_of(need, pinned.files)
            if pinned is None or files is None:
                yield from _not_cached(need)
            else:
                yield from _not_as_fetched(need, pinned, files, is_deep)


def is_ready(wanted: Sequence[Need], lock: Lock) -> bool:
    """Whether all that is needed from the hub was fetched and is there, so that nothing has to ask the hub.

    It reads no content: a copied cache has other times, and weights of many gigabytes.
    """
    from_hub = [need for need in wanted if isinstance(need, HubNeed)]
    if not from_hub or any(isinstance(need, UnknownNeed) for need in wanted):
        return False
    return all(_is_there(need, lock.repositories.get(need.repository)) for need in from_hub)


def go_offline(config: Config, runs: Path) -> bool:
    """Keep this process and its children from asking the hub where all was fetched for the runs in this
    folder.

    Returns whether it did. A choice that the environment makes is left as it is.
    """
    if OFFLINE in os.environ or config.train is None:
        return False
    if not is_ready(check_recipe(config.train).needs, read_lock(runs)):
        return False
    os.environ.update({OFFLINE: "1", OURS: "1"})
    return True


def files_of(need: HubNeed, names: Mapping[str, object]) -> list[str] | None:
    """Choose the files of a repository that the need takes; None where a part of it is missing."""
    chosen = [part.chosen(names.keys()) for part in need.parts]
    found = [files for files in chosen if files is not None]
    return sorted(frozenset().union(*found)) if len(found) == len(chosen) else None


def cache() -> Path:
    """The folder of huggingface_hub's cache, found by the same variables without importing it."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or os.path.join(base, "huggingface")
    given = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    return Path(os.path.expanduser(os.path.expandvars(given or os.path.join(home, "hub"))))


def folder_of(repository: str) -> Path:
    return cache() / "--".join(["models", *repository.split("/")])


def path_of(repository: str, commit: str, file: str) -> Path:
    return folder_of(repository) / "snapshots" / commit / file


def current(repository: str) -> str | None:
    """The commit that libraries use without a network; None where there is none."""
    try:
        return (folder_of(repository) / "refs" / MAIN).read_text(encoding="utf-8").strip()
    except OSError:
        return None


def seal_of(path: Path, on_read: Callable[[int], object] = lambda read: None) -> Seal:
    """Read the file's size, time and digest; `on_read` gets the number of bytes of each piece. Raises
    OSError."""
    hasher = hashlib.sha256()
    stat = path.stat()
    with path.open("rb", buffering=0) as file:
        while piece := file.read(CHUNK):
            hasher.update(piece)
            on_read(len(piece))
    return Seal(size_bytes=stat.st_size, sha256=hasher.hexdigest(), modified_ns=stat.st_mtime_ns)


def _not_cached(need: HubNeed) -> Iterator[Lack]:
    """The lack of a repository that was not fetched, unless it came into the cache by some other way."""
    commit = current(need.repository)
    snapshot = path_of(need.repository, commit or "", "")
    found = snapshot.rglob("*") if commit is not None else ()
    names = {path.relative_to(snapshot).as_posix() for path in found if path.is_file()}
    if missing := [part.name for part in need.parts if part.chosen(names) is None]:
        problem = f"{need.key}: {' and '.join(missing)} of {need.repository} not on this machine"
        yield Lack(need, problem, is_set(OFFLINE))


def _is_there(need: HubNeed, pinned: Pinned | None) -> bool:
    files = None if pinned is None else files_of(need, pinned.files)
    if pinned is None or files is None or current(need.repository) != pinned.commit:
        return False
    try:
        sizes = [path_of(need.repository, pinned.commit, file).stat().st_size for file in files]
    except OSError:
        return False
    return sizes == [pinned.files[file].size_bytes for file in files]


def _not_as_fetched(need: HubNeed, pinned: Pinned, files: Sequence[str], is_deep: bool) -> Iterator[Lack]:
    now = current(need.repository)
    if now != pinned.commit:
        was, there = pinned.commit[:12], "none" if now is None else now[:12]
        problem = f"{need.key}: revision {was} of {need.repository} was fetched, and the cache has {there}"
        yield Lack(need, problem, now is None)
        return
    for file in files:
        path = path_of(need.repository, pinned.commit, file)
        try:
            if not _is_as_sealed(path, pinned.files[file], is_deep):
                problem = f"{need.key}: {file} of {need.repository} is not as it was fetched: {path}"
                yield Lack(need, problem, True)
        except OSError:
            yield Lack(need, f"{need.key}: {file} of {need.repository} was fetched and is gone", True)


def _is_as_sealed(path: Path, seal: Seal, is_deep: bool) -> bool:
    """Whether the file is the one that was fetched: by size and time, else by its content. Raises OSError."""
    stat = path.stat()
    if stat.st_size != seal.size_bytes:
        return False
    is_untouched = stat.st_mtime_ns == seal.modified_ns and not is_deep
    return is_untouched or seal_of(path).sha256 == seal.sha256


def is_set(variable: str) -> bool:
    return os.environ.get(variable, "").upper() in ("1", "ON", "YES", "TRUE")
