"""What `tarmac fetch` does: files of the hub's repositories into the cache, pinned and with their digests.

huggingface_hub downloads, in a child process that is ended when nothing comes for a while: whatever hangs in
it, a name service or a proxy, cannot hang the command. Each file is proven by the digest that the hub lists
and written down in `fetched.json` before the next one begins. So a killed fetch goes on with the next file,
and a file that was begun with its next byte.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tasks.core.child import call
from tasks.core.errors import DataError, TarmacError, UsageError, first_line
from tasks.core.files import disk_full_as_error, fsync_path, require_writable, write_atomic
from tasks.core.lock import Lease
from tasks.core.screen import Progress, no_progress
from tasks.models import hub
from tasks.models.hub import Lock, Pinned
from tasks.models.needs import HubNeed, Need, Part

LEASE = ".locks/tarmac.lease"
"""In the cache, which projects share."""
PATIENCE_S = 60.0
"""Nothing new for so long ends a fetch; one that goes on with it later loses nothing."""
OFFERED_S = 20.0
"""How long the hub may take to say what it has."""
PIECE = 1 << 18
"""Bytes at a time: on a slow line the usual 10 MB would take longer than the patience."""
MEGABYTE = 1_000_000


@dataclass(frozen=True)
class NeededRepository:
    """What is needed of one repository, by which keys of the config."""

    repository: str
    keys: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Fetched:
    """A repository that is there whole: its commit, its files, and how much was downloaded for it now."""

    repository: str
    commit: str
    files: int
    size_bytes: int
    downloaded: int
    mended: tuple[str, ...]
    """Files that were there and not as they had been fetched, so they were downloaded again."""


def fetch(
    needs: Sequence[Need],
    runs: Path,
    progress: Progress,
    *,
    update: bool = False,
    patience_s: float = PATIENCE_S,
) -> list[Fetched]:
    """Have all files of the hub that are needed, and read all that were fetched before.

    With `update` the newest commits are taken in the place of those pinned in `runs`. UsageError for a name
    that the hub does not have or does not give, DataError where it does not answer; both name the key.
    """
    wanted = _by_repository(needs)
    if not wanted:
        return []
    require_writable(runs, "runs")
    require_writable(hub.cache(), "HF_HUB_CACHE")
    heard, doing = time.monotonic(), "beginning"

    def on_progress(done: int, total: int, note: str) -> None:
        nonlocal heard, doing
        heard, doing = time.monotonic(), note
        progress(done, total, note)

    def on_idle() -> None:
        if time.monotonic() - heard > patience_s:
            raise _silent(_keys_of(wanted, doing), patience_s, doing)

    arguments = {"wanted": [asdict(one) for one in wanted], "runs": str(runs), "update": update}
    with Lease(hub.cache() / LEASE):
        found = call("tasks.models.fetch:download", arguments, on_progress, on_idle=on_idle)
    return [Fetched(**{**one, "mended": tuple(one["mended"])}) for one in found]


def _by_repository(needs: Sequence[Need]) -> list[NeededRepository]:
    found: dict[str, list[HubNeed]] = {}
    for need in needs:
        if isinstance(need, HubNeed):
            found.setdefault(need.repository, []).append(need)
    return [
        NeededRepository(
            repository,
            ", ".join(dict.fromkeys(need.key for need in its)),
            tuple(dict.fromkeys(part for need in its for part in need.parts)),
        )
        for repository, its in found.items()
    ]


def _keys_of(wanted: Sequence[NeededRepository], doing: str) -> str:
    return next((one.keys for one in wanted if one.repository in doing), wanted[0].keys)


def _silent(keys: str, patience_s: float, doing: str) -> DataError:
    return DataError(
        f"{keys}: nothing has come from {_endpoint()} for {patience_s:.0f} s ({doing}); mend the network or "
        "HF_ENDPOINT and fetch again: it goes on where it was"
    )


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT") or "https://huggingface.co"


def download(wanted: list[NeededRepository], runs: Path, update: bool, progress: Progress) -> list[Fetched]:
    """The child's side of `fetch`."""
    os.environ.setdefault("HF_HUB_DISABLE_XET", "1")  # whose own transfer knows no time limit
    from huggingface_hub import constants

    constants.DOWNLOAD_CHUNK_SIZE = PIECE  # what it keeps in memory until it is written, and reported
    lock = hub.read_lock(runs)
    return [_Repository(one, lock, runs, update, progress).fetch() for one in wanted]


def require_offered(needs: Sequence[Need], runs: Path, patience_s: float = OFFERED_S) -> None:
    """Ask the hub whether it gives what is needed of it, which downloads nothing. UsageError and DataError as
    of `fetch`."""
    wanted = _by_repository(needs)
    began = time.monotonic()

    def on_idle() -> None:
        if time.monotonic() - began > patience_s:
            raise _silent(wanted[0].keys, patience_s, "asking for what the training starts from")

    if wanted:
        arguments = {"wanted": [asdict(one) for one in wanted], "runs": str(runs)}
        call("tasks.models.fetch:ask_for_repositories", arguments, on_idle=on_idle)


def ask_for_repositories(wanted: list[NeededRepository], runs: Path) -> None:
    """The child's side of `require_offered`."""
    lock = hub.read_lock(runs)
    for one in wanted:
        _Repository(one, lock, runs, False, no_progress).offered()


class _Repository:
    """One repository on its way into the cache."""

    def __init__(
        self, wanted: NeededRepository, lock: Lock, runs: Path, update: bool, progress: Progress
    ) -> None:
        self._wanted, self._name, self._lock, self._runs = wanted, wanted.repository, lock, runs
        self._pinned = None if update else lock.repositories.get(self._name)
        self._progress = progress
        self._done = self._total = 0
        self._mended: list[str] = []

    def fetch(self) -> Fetched:
        files, downloaded = self._known(), 0
        if files is None:
            files, downloaded = self._from_hub()
        assert self._pinned is not None
        write_atomic(hub.folder_of(self._name) / "refs" / hub.MAIN, self._pinned.commit)
        sizes = [self._pinned.files[file].size_bytes for file in files]
        return Fetched(
            self._name, self._pinned.commit, len(files), sum(sizes), downloaded, tuple(self._mended)
        )

    def _known(self) -> list[str] | None:
        """The files, where all were fetched before and their content is the same still; else None, without
        those that have changed."""
        if self._pinned is None:
            return None
        need = HubNeed(self._wanted.keys, self._name, self._wanted.parts)
        files = hub.files_of(need, self._pinned.files)
        known = self._pinned.files if files is None else {file: self._pinned.files[file] for file in files}
        self._total, is_whole = sum(seal.size_bytes for seal in known.values()), files is not None
        for file, seal in known.items():
            path = hub.path_of(self._name, self._pinned.commit, file)
            if not path.is_file():
                is_whole = False
            elif hub.seal_of(path, self._read).sha256 != seal.sha256:
                self._discard(path, file)
                is_whole = False
        return files if is_whole else None

    def _from_hub(self) -> tuple[list[str], int]:
        """Download what is missing; the files, and how many bytes came."""
        listed, names, files = self.offered()
        if self._pinned is None or self._pinned.commit != listed.sha:
            self._pinned = self._lock.repositories[self._name] = Pinned(commit=listed.sha)
        self._done, self._total = 0, sum(names[file].size or 0 for file in files)
        came = sum(self._have(file, names[file]) for file in files)
        return files, came

    def offered(self) -> tuple[Any, dict[str, Any], list[str]]:
        """The repository as the hub lists it, its files by name, and those that are needed."""
        if hub.is_set(hub.OFFLINE):
            raise UsageError(
                f"{self._wanted.keys}: {self._name} has to be downloaded: unset {hub.OFFLINE} for it"
            )
        self._said("asking for")
        with self._errors():
            listed = self._listed()
        names = {one.rfilename: one for one in listed.siblings}
        lacking = [part.name for part in self._wanted.parts if part.chosen(names) is None]
        if lacking:
            raise UsageError(
                f"{self._wanted.keys}: {self._name} has no {' and no '.join(lacking)} that could be loaded; "
                "name another model"
            )
        files = sorted(frozenset().union(*(part.chosen(names) or () for part in self._wanted.parts)))
        return listed, names, files

    def _listed(self) -> Any:
        """The repository at its pinned commit, or the newest: `sha` and `siblings` with sizes and digests."""
        from huggingface_hub import HfApi, constants

        revision = None if self._pinned is None else self._pinned.commit
        timeout_s = constants.HF_HUB_ETAG_TIMEOUT
        return HfApi().model_info(self._name, revision=revision, files_metadata=True, timeout=timeout_s)

    def _have(self, file: str, listed: Any) -> int:
        """Have one file in the cache, as the hub lists it, and its seal in `fetched.json`; the bytes that
        came for it."""
        assert self._pinned is not None
        path = hub.path_of(self._name, self._pinned.commit, file)
        known, came = self._pinned.files.get(file), 0
        if path.is_file() and known is not None:
            self._read(path.stat().st_size)
            return 0
        if path.is_file() and not _is_as_listed(path, listed):
            self._discard(path, file)
        if not path.is_file():
            came = self._downloaded(file, path)
            if not _is_as_listed(path, listed):
                path.resolve().unlink()
                raise DataError(
                    f"{self._wanted.keys}: {file} of {self._name} came otherwise than the hub lists it; "
                    "fetch again"
                )
        self._pinned.files[file] = hub.seal_of(path)
        hub.write_lock(self._runs, self._lock)
        self._said("having")
        return came

    def _downloaded(self, file: str, path: Path) -> int:
        """Download a file into the cache, from the byte on that an earlier fetch came to.

        huggingface_hub begins anew in each process; its cache takes a blob that is there as it is.
        """
        from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url
        from huggingface_hub.file_download import http_get
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        assert self._pinned is not None
        self._said("asking for")
        url, headers = hf_hub_url(self._name, file, revision=self._pinned.commit), build_hf_headers()
        with self._errors(), disk_full_as_error(hub.cache()):
            listed = get_hf_file_metadata(url)
            if urlsplit(listed.location).netloc != urlsplit(url).netloc:
                headers.pop("authorization", None)  # the token is the hub's, and not its storage's
            blob = hub.folder_of(self._name) / "blobs" / str(listed.etag)
            part = blob.with_name(f"{blob.name}.part")
            blob.parent.mkdir(parents=True, exist_ok=True)
            with part.open("ab") as opened:
                if listed.size is not None and opened.tell() > listed.size:
                    opened.truncate(0)
                begun = opened.tell()
                counted = _counter(self._read)
                http_get(
                    listed.location,
                    opened,
                    resume_size=begun,
                    headers=headers,
                    expected_size=listed.size,
                    tqdm_class=counted,
                )
            fsync_path(part)
            part.rename(blob)
            hf_hub_download(self._name, file, revision=self._pinned.commit)
        return path.stat().st_size - begun

    def _read(self, size_bytes: int) -> None:
        self._done += size_bytes
        self._said("MB of")

    def _said(self, doing: str) -> None:
        note = f"{doing} {self._name}" if doing == "MB of" else f"MB, {doing} {self._name}"
        self._progress(min(self._done, self._total) // MEGABYTE, self._total // MEGABYTE, note)

    def _discard(self, path: Path, file: str) -> None:
        """Remove a file that is not as it should be, and what it links to."""
        path.resolve().unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        self._mended.append(file)
        if self._pinned is not None:
            self._pinned.files.pop(file, None)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """What huggingface_hub raises, as one line with the key and the fix."""
        from huggingface_hub import errors

        keys, name = self._wanted.keys, self._name
        network: tuple[Any, ...] = (OSError, *errors.HfHubHTTPError.__bases__)
        try:
            yield
        except errors.GatedRepoError:
            raise UsageError(
                f"{keys}: {name} is given to those alone who have accepted its terms: accept them at "
                f"{_endpoint()}/{name} and set HF_TOKEN"
            ) from None
        except errors.HFValidationError:
            raise UsageError(f"{keys}: {name!r} is neither a folder nor a repository's name") from None
        except errors.RepositoryNotFoundError:
            raise UsageError(
                f"{keys}: {_endpoint()} has no model {name}; mend the name, or set HF_TOKEN if it is private"
            ) from None
        except (errors.RevisionNotFoundError, errors.EntryNotFoundError) as error:
            if isinstance(error, errors.LocalEntryNotFoundError):
                raise self._unreachable(error.__cause__ or error) from None
            raise DataError(
                f"{keys}: {name} has lost what was pinned in {self._runs / hub.LOCK}; fetch with --update"
            ) from None
        except TarmacError:
            raise
        except network as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise self._unreachable(error) from None

    def _unreachable(self, error: BaseException) -> DataError:
        says = first_line(error)
        return DataError(
            f"{self._wanted.keys}: {_endpoint()} does not give {self._name} ({says}); fetch where there is a "
            "network, or set HF_ENDPOINT: what has come stays"
        )


def _is_as_listed(path: Path, listed: Any) -> bool:
    """Whether the file has the digest that the hub lists: SHA-256 of a large one, git's own of others."""
    if listed.lfs is not None:
        expected: str = listed.lfs["sha256"] if isinstance(listed.lfs, dict) else listed.lfs.sha256
        return bool(hub.seal_of(path).sha256 == expected)
    if not listed.blob_id:
        return True
    content = path.read_bytes()
    sealed: str = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    return bool(sealed == listed.blob_id)


def _counter(on_bytes: Callable[[int], None]) -> type:
    """A bar in the place of tqdm's, which reports bytes and prints nothing."""
    import huggingface_hub.utils

    bar: Any = huggingface_hub.utils.tqdm  # type: ignore[attr-defined]

    class Counter(bar):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "disable": True})
            on_bytes(int(kwargs.get("initial") or 0))

        def update(self, n: float | None = 1) -> None:
            on_bytes(int(n or 0))

    return Counter
