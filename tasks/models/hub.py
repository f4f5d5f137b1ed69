"""What of the hub's repositories is on this machine, and which revision of each a project's runs use.

The files lie in huggingface_hub's own cache, where every trainer finds them. `fetched.json` in the folder of
runs pins each repository to a commit and keeps the SHA-256 of each file. A file whose size and time are those
of the last fetch counts as unchanged; any other is read again. Nothing here needs a network, torch or
huggingface_hub itself.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ValidationError

from tasks.core.errors import DataError, first_line
from tasks.core.files import CHUNK, read_json, write_json
from tasks.core.findings import Finding, Severity
from tasks.core.schema import Config
from tasks.models.clip.clip_options import open_clip_needs
from tasks.models.needs import HubNeed, Need, PathNeed, UnknownNeed
from tasks.models.recipes import check_recipe

LOCK = "fetched.json"
OFFLINE, OURS = "HF_HUB_OFFLINE", "TARMAC_HUB_OFFLINE"
"""What keeps every library from asking the hub, and the mark that Tarmac has set it."""
MAIN = "main"
"""The revision that libraries ask for unless told otherwise."""


class Seal(BaseModel):
    """A file as it was fetched; `modified_ns` saves reading it again where nobody has written to it."""

    size_bytes: int
    sha256: str
    modified_ns: int


class Pinned(BaseModel):
    """A repository's commit, and the files of it that were fetched."""

    commit: str
    files: dict[str, Seal] = {}


class Lock(BaseModel):
    """What `fetched.json` holds."""

    repositories: dict[str, Pinned] = {}


@dataclass(frozen=True)
class Lack:
    """A need that is not met, and why. `is_certain` where the training will fail for it; otherwise it will
    download what is missing, if it can."""

    need: Need
    problem: str
    is_certain: bool

    def finding(self) -> Finding:
        """As preflight and fetch show it."""
        if isinstance(self.need, PathNeed):
            remedy, command = self.need.fix, None
            where = {"file": self.need.path}
        else:
            command = "tarmac fetch CONFIG"
            otherwise = "" if self.is_certain else "; otherwise the training downloads it when it starts"
            remedy, where = f"{command}, where there is a network{otherwise}", {}
        severity: Severity = "error" if self.is_certain else "warning"
        evidence = {"problem": self.problem}
        return Finding("weights.missing", severity, remedy, where, evidence, command=command)


def needs(config: Config) -> list[Need]:
    """What the training of this config and its teachers need; UsageError for a wrong model block."""
    found = list(check_recipe(config.train).needs) if config.train is not None else []
    for teacher in config.reinforce.teachers if config.reinforce is not None else ():
        found += open_clip_needs("reinforce.teachers", teacher.name, teacher.pretrained)
    return list(dict.fromkeys(found))


def read_lock(runs: Path) -> Lock:
    """What was fetched for the runs in this folder; DataError for a file that cannot be read."""
    try:
        return Lock.model_validate(read_json(runs / LOCK))
    except (FileNotFoundError, NotADirectoryError):
        return Lock()
    except (OSError, ValueError, ValidationError) as error:
        says = first_line(error)
        raise DataError(
            f"{runs / LOCK} cannot be read ({says}); remove it and run tarmac fetch again"
        ) from None


def write_lock(runs: Path, lock: Lock) -> None:
    write_json(runs / LOCK, lock.model_dump())


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
    """Whether all that is needed of the hub was fetched and is there, so that nobody has to ask the hub."""
    of_hub = [need for need in wanted if isinstance(need, HubNeed)]
    if not of_hub or any(isinstance(need, UnknownNeed) for need in wanted):
        return False
    return all(_is_there(need, lock.repositories.get(need.repository)) for need in of_hub)


def go_offline(config: Config, runs: Path) -> bool:
    """Keep this process and its children from asking the hub, where nobody has to, by what was fetched for
    the runs in this folder; whether that is done. A choice that the environment makes stands."""
    if OFFLINE in os.environ or config.train is None:
        return False
    if not is_ready(check_recipe(config.train).needs, read_lock(runs)):
        return False
    os.environ.update({OFFLINE: "1", OURS: "1"})
    return True


def files_of(need: HubNeed, names: Mapping[str, object]) -> list[str] | None:
    """Those of a repository's files that the need takes; None where a part of it is not among them."""
    chosen = [part.chosen(names.keys()) for part in need.parts]
    found = [files for files in chosen if files is not None]
    return sorted(frozenset().union(*found)) if len(found) == len(chosen) else None


def cache() -> Path:
    """The folder of huggingface_hub's cache, by the same variables."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or os.path.join(base, "huggingface")
    given = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    return Path(os.path.expanduser(os.path.expandvars(given or os.path.join(home, "hub"))))


def folder_of(repository: str) -> Path:
    return cache() / "--".join(["models", *repository.split("/")])


def path_of(repository: str, commit: str, file: str) -> Path:
    return folder_of(repository) / "snapshots" / commit / file


def current(repository: str) -> str | None:
    """The commit that libraries take without a network; None where there is none."""
    try:
        return (folder_of(repository) / "refs" / MAIN).read_text(encoding="utf-8").strip()
    except OSError:
        return None


def seal_of(path: Path, on_read: Callable[[int], object] = lambda read: None) -> Seal:
    """The file's size, time and digest; OSError. `on_read` is called with the bytes of each piece read."""
    hasher = hashlib.sha256()
    stat = path.stat()
    with path.open("rb", buffering=0) as file:
        while piece := file.read(CHUNK):
            hasher.update(piece)
            on_read(len(piece))
    return Seal(size_bytes=stat.st_size, sha256=hasher.hexdigest(), modified_ns=stat.st_mtime_ns)


def _not_cached(need: HubNeed) -> Iterator[Lack]:
    """Where nothing was fetched: what is in the cache by some other way."""
    commit = current(need.repository)
    names = {} if commit is None else _listed(folder_of(need.repository) / "snapshots" / commit)
    missing = [part.name for part in need.parts if part.chosen(names.keys()) is None]
    if missing:
        problem = f"{need.key}: {' and '.join(missing)} of {need.repository} not on this machine"
        yield Lack(need, problem, is_set(OFFLINE))


def _not_as_fetched(need: HubNeed, pinned: Pinned, files: Sequence[str], is_deep: bool) -> Iterator[Lack]:
    now = current(need.repository)
    if now != pinned.commit:
        was, there = pinned.commit[:12], "none" if now is None else now[:12]
        problem = f"{need.key}: revision {was} of {need.repository} was fetched, and the cache has {there}"
        yield Lack(need, problem, now is None)
        return
    for file in files:
        path, seal = path_of(need.repository, pinned.commit, file), pinned.files[file]
        try:
            is_same = is_as_sealed(path, seal, is_deep=is_deep)
        except OSError:
            yield Lack(need, f"{need.key}: {file} of {need.repository} was fetched and is gone", True)
            continue
        if not is_same:
            problem = f"{need.key}: {file} of {need.repository} is not as it was fetched: {path}"
            yield Lack(need, problem, True)


def is_as_sealed(path: Path, seal: Seal, *, is_deep: bool) -> bool:
    """Whether the file is what was fetched, by size and time, else by its content; OSError."""
    stat = path.stat()
    if stat.st_size != seal.size_bytes:
        return False
    if stat.st_mtime_ns == seal.modified_ns and not is_deep:
        return True
    return seal_of(path).sha256 == seal.sha256


def _is_there(need: HubNeed, pinned: Pinned | None) -> bool:
    files = None if pinned is None else files_of(need, pinned.files)
    if pinned is None or files is None or current(need.repository) != pinned.commit:
        return False
    try:
        sizes = [path_of(need.repository, pinned.commit, file).stat().st_size for file in files]
    except OSError:
        return False
    return sizes == [pinned.files[file].size_bytes for file in files]


def _listed(snapshot: Path) -> dict[str, None]:
    """The files of a snapshot that are really there."""
    found = [path for path in snapshot.rglob("*") if path.is_file()] if snapshot.is_dir() else []
    return {path.relative_to(snapshot).as_posix(): None for path in found}


def is_set(variable: str) -> bool:
    return os.environ.get(variable, "").upper() in ("1", "ON", "YES", "TRUE")
