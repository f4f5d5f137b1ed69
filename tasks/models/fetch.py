"""`tarmac fetch`: download the files of repositories on Hugging Face's hub into its cache, pinned and sealed.

huggingface_hub downloads in a child process, which is ended when nothing arrives for a while: a name service
or a proxy that hangs cannot hang the command. Each file is compared with the digest that the hub lists and
recorded in `fetched.json` before the next one starts. So a killed fetch goes on with the next file, and a
partly downloaded file with its next byte. `snapshot_download` would not: since version 2 of huggingface_hub a
new process starts each file anew.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tasks.core.child import call
from tasks.core.errors import DataError, TarmacError, UsageError, first_line
from tasks.core.files import disk_full_as_error, fsync_path, require_writable, write_atomic, write_json
from tasks.core.lock import Lease
from tasks.core.screen import Progress, no_progress
from tasks.models import hub
from tasks.models.hub import Lock, Pinned, Seal
from tasks.models.needs import HubNeed, Need

LEASE = ".locks/tarmac.lease"
"""The lease lies in the cache, because projects share it."""
PATIENCE_S = 60.0
"""A fetch ends after so long without a byte; the next one goes on where it was."""
OFFERED_S = 20.0
"""How long the hub may take to list what it has."""
PIECE = 1 << 18
"""Bytes per read: on a slow line the usual 10 MB would take longer than the patience."""
MEGABYTE = 1_000_000


@dataclass(frozen=True)
class Fetched:
    """A repository whose needed files are all in the cache, and how many bytes were downloaded this time.

    `mended` names files that were in the cache but had changed, so they were downloaded again.
    """

    repository: str
    commit: str
    files: int
    size_bytes: int
    downloaded: int
    mended: tuple[str, ...]


def fetch(needs: Sequence[Need], runs: Path, progress: Progress, *, update: bool = False) -> list[Fetched]:
    """Download all files that are needed from the hub, and verify those that were fetched before.

    With `update` the newest commits replace those pinned in `runs`. Raises UsageError for a repository that
    does not exist or may not be read, DataError where the hub does not answer; both name the config key.
    """
    wanted = _by_repository(needs)
    if not wanted:
        return []
    require_writable(runs, "runs")
    require_writable(hub.cache(), "HF_HUB_CACHE")
    with Lease(hub.cache() / LEASE):
        found = _call("download", wanted, runs, PATIENCE_S, "starting", progress, update=update)
    return [Fetched(**{**one, "mended": tuple(one["mended"])}) for one in found]


def require_offered(needs: Sequence[Need], runs: Path) -> None:
    """Ask the hub whether it offers what is needed, without downloading anything. Raises as `fetch` does."""
    if wanted := _by_repository(needs):
        _call("list_repositories", wanted, runs, OFFERED_S, "asking for what the training starts from")


def _by_repository(needs: Sequence[Need]) -> list[HubNeed]:
    """One need per repository, with the parts and the config keys of all."""
    grouped: dict[str, list[HubNeed]] = {}
    for need in needs:
        if isinstance(need, HubNeed):
            grouped.setdefault(need.repository, []).append(need)
    return [
        HubNeed(
            ", ".join(dict.fromkeys(need.key for need in group)),
            repository,
            tuple(dict.fromkeys(part for need in group for part in need.parts)),
        )
        for repository, group in grouped.items()
    ]


def _call(
    function: str,
    wanted: Sequence[HubNeed],
    runs: Path,
    patience_s: float,
    doing: str,
    progress: Progress = no_progress,
    **options: bool,
) -> Any:
    """Call a function of this module in a child process; DataError when it reports nothing for
    `patience_s`."""

    def silent(doing: str) -> DataError:
        key = next((need.key for need in wanted if need.repository in doing), wanted[0].key)
        return DataError(
            f"{key}: no data came from {endpoint()} for {patience_s:.0f} s ({doing}); check the "
            "network or HF_ENDPOINT and fetch again: the download resumes where it stopped"
        )

    arguments = {"wanted": [asdict(need) for need in wanted], "runs": str(runs), **options}
    return call_patiently(f"{__name__}:{function}", arguments, patience_s, doing, silent, progress)


def call_patiently(
    target: str,
    arguments: Mapping[str, Any],
    patience_s: float,
    doing: str,
    silent: Callable[[str], TarmacError],
    progress: Progress = no_progress,
) -> Any:
    """Call a function in a child process, which is ended when it reports no progress for `patience_s`: then
    raise what `silent` makes of its last report, `doing` before the first."""
    last = time.monotonic()

    def on_progress(done: int, total: int, note: str) -> None:
        nonlocal last, doing
        last, doing = time.monotonic(), note
        progress(done, total, note)

    def on_idle() -> None:
        if time.monotonic() - last > patience_s:
            raise silent(doing)

    return call(target, arguments, on_progress, on_idle=on_idle)


def endpoint() -> str:
    """Return the address of the hub."""
    return os.environ.get("HF_ENDPOINT") or "https://huggingface.co"


def download(wanted: list[HubNeed], runs: Path, update: bool, progress: Progress) -> list[Fetched]:
    """Run in the child process of `fetch`."""
    os.environ.setdefault("HF_HUB_DISABLE_XET", "1")  # its transfer has no time limit
    from huggingface_hub import constants

    constants.DOWNLOAD_CHUNK_SIZE = PIECE  # it holds that much in memory before it writes and reports it
    lock = hub.read_lock(runs)
    return [_RepositoryDownload(need, lock, runs, update, progress).run() for need in wanted]


def list_repositories(wanted: list[HubNeed], runs: Path) -> None:
    """Run in the child process of `require_offered`."""
    lock = hub.read_lock(runs)
    for need in wanted:
        _RepositoryDownload(need, lock, runs, False, no_progress).offered()


class _RepositoryDownload:
    """The download of one repository into the cache."""

    def __init__(self, need: HubNeed, lock: Lock, runs: Path, update: bool, progress: Progress) -> None:
        self._need, self._name, self._lock, self._runs = need, need.repository, lock, runs
        self._pinned = (None if update else lock.repositories.get(self._name)) or Pinned(commit="")
        self._progress = progress
        self._done = self._total = 0
        self._mended: list[str] = []

    def run(self) -> Fetched:
        files, downloaded = self._verified(), 0
        if files is None:
            listed, by_name, files = self.offered()
            if self._pinned.commit != listed.sha:
                self._pinned = self._lock.repositories[self._name] = Pinned(commit=listed.sha)
            self._done, self._total = 0, sum(by_name[file].size or 0 for file in files)
            downloaded = sum(self._ensure(file, by_name[file]) for file in files)
        write_atomic(hub.folder_of(self._name) / "refs" / hub.MAIN, self._pinned.commit)
        size_bytes = sum(self._pinned.files[file].size_bytes for file in files)
        mended = tuple(self._mended)
        return Fetched(self._name, self._pinned.commit, len(files), size_bytes, downloaded, mended)

    def _verified(self) -> list[str] | None:
        """Return the needed files where all were fetched before and are unchanged, else None; changed files
        are removed."""
        seals = self._pinned.files
        files = hub.files_of(self._need, seals)
        known = list(seals) if files is None else files
        self._total = sum(seals[file].size_bytes for file in known)
        is_complete = files is not None
        for file in known:
            path = hub.path_of(self._name, self._pinned.commit, file)
            if not path.is_file():
                is_complete = False
            elif hub.seal_of(path, self._count).sha256 != seals[file].sha256:
                self._discard(path, file)
                is_complete = False
        return files if is_complete else None

    def offered(self) -> tuple[Any, dict[str, Any], list[str]]:
        """The repository as the hub lists it, its files by name, and the names of those that are needed.

        It is listed at its pinned commit, or at the newest, with sizes and digests.
        """
        if hub.is_set(hub.OFFLINE):
            raise UsageError(f"{self._need.key}: {self._name} has to be downloaded: unset {hub.OFFLINE}")
        self._report("asking for")
        with self._errors():
            from huggingface_hub import HfApi, constants

            listed = HfApi().model_info(
                self._name,
                revision=self._pinned.commit or None,
                files_metadata=True,
                timeout=constants.HF_HUB_ETAG_TIMEOUT,
            )
        by_name = {one.rfilename: one for one in listed.siblings or ()}
        files = hub.files_of(self._need, by_name)
        if files is None:
            lacking = [part.name for part in self._need.parts if part.chosen(by_name) is None]
            raise UsageError(
                f"{self._need.key}: {self._name} has no {' and no '.join(lacking)} that could be loaded; "
                "name another model"
            )
        return listed, by_name, files

    def _ensure(self, file: str, listed: Any) -> int:
        """Bring one file into the cache and its seal into `fetched.json`; return the bytes
        downloaded for it."""
        path, downloaded = hub.path_of(self._name, self._pinned.commit, file), 0
        if path.is_file() and file in self._pinned.files:
            self._count(path.stat().st_size)
            return 0
        seal = seal_as_listed(path, listed) if path.is_file() else None
        if seal is None:
            if path.is_file():
                self._discard(path, file)
            downloaded = self._download(file, path)
            seal = seal_as_listed(path, listed)
        if seal is None:
            path.resolve().unlink()
            raise DataError(
                f"{self._need.key}: {file} of {self._name} arrived with another digest than the hub lists; "
                "fetch again"
            )
        self._pinned.files[file] = seal
        write_json(self._runs / hub.LOCK, self._lock.model_dump())
        self._report("recorded a file of")
        return downloaded

    def _download(self, file: str, path: Path) -> int:
        """Download a file into the cache, starting at the byte where an earlier fetch stopped.

        huggingface_hub starts each file anew in a new process, but it accepts a blob that is already in its
        cache.
        """
        from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url
        from huggingface_hub.file_download import http_get
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        self._report("asking for")
        url, headers = hf_hub_url(self._name, file, revision=self._pinned.commit), build_hf_headers()
        with self._errors(), disk_full_as_error(hub.cache()):
            listed = get_hf_file_metadata(url)
            if urlsplit(listed.location).netloc != urlsplit(url).netloc:
                headers.pop("authorization", None)  # the token is for the hub, not for its storage
            blob = hub.folder_of(self._name) / "blobs" / str(listed.etag)
            part = blob.with_name(f"{blob.name}.part")
            blob.parent.mkdir(parents=True, exist_ok=True)
            with part.open("ab") as opened:
                if listed.size is not None and opened.tell() > listed.size:
                    opened.truncate(0)
                start = opened.tell()
                http_get(
                    listed.location,
                    opened,
                    resume_size=start,
                    headers=headers,
                    expected_size=listed.size,
                    tqdm_class=_byte_counter(self._count),
                )
            fsync_path(part)
            part.rename(blob)
            hf_hub_download(self._name, file, revision=self._pinned.commit)
        return path.stat().st_size - start

    def _count(self, size_bytes: int) -> None:
        self._done += size_bytes
        self._report("MB of")

    def _report(self, doing: str) -> None:
        note = f"{doing} {self._name}" if doing == "MB of" else f"MB, {doing} {self._name}"
        self._progress(min(self._done, self._total) // MEGABYTE, self._total // MEGABYTE, note)

    def _discard(self, path: Path, file: str) -> None:
        """Remove a file that is not as it should be, and the blob that it links to."""
        path.resolve().unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        self._mended.append(file)
        self._pinned.files.pop(file, None)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn the errors of huggingface_hub into one line with the config key and the fix."""
        from huggingface_hub import errors

        key, name = self._need.key, self._name
        network: tuple[Any, ...] = (OSError, *errors.HfHubHTTPError.__bases__)
        try:
            yield
        except errors.GatedRepoError:
            raise UsageError(
                f"{key}: {name} is gated: accept its terms at {endpoint()}/{name} and set HF_TOKEN"
            ) from None
        except errors.HFValidationError:
            raise UsageError(f"{key}: {name!r} is neither a folder nor the name of a repository") from None
        except errors.RepositoryNotFoundError:
            raise UsageError(
                f"{key}: {endpoint()} has no model {name}; correct the name, or set HF_TOKEN if it is private"
            ) from None
        except errors.LocalEntryNotFoundError as error:
            raise self._unreachable(error.__cause__ or error) from None
        except (errors.RevisionNotFoundError, errors.EntryNotFoundError):
            raise DataError(
                f"{key}: {name} no longer has what is pinned in {self._runs / hub.LOCK}; fetch with --update"
            ) from None
        except TarmacError:
            raise
        except network as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise self._unreachable(error) from None

    def _unreachable(self, error: BaseException) -> DataError:
        return DataError(
            f"{self._need.key}: {endpoint()} does not serve {self._name} ({first_line(error)}); fetch where "
            "there is a network, or set HF_ENDPOINT: files that were downloaded are kept"
        )


def seal_as_listed(path: Path, listed: Any) -> Seal | None:
    """Return the file's seal, or None where its content is not what the hub lists: by the SHA-256 of a large
    file, by git's own digest of others."""
    seal = hub.seal_of(path)
    if listed.lfs is not None:
        return seal if seal.sha256 == listed.lfs.sha256 else None
    content = path.read_bytes()
    is_same = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest() == listed.blob_id
    return seal if is_same or not listed.blob_id else None


def _byte_counter(on_bytes: Callable[[int], None]) -> type:
    """A progress bar in place of tqdm's, which passes on the bytes and prints nothing."""
    import huggingface_hub.utils

    bar: Any = huggingface_hub.utils.tqdm  # type: ignore[attr-defined]

    class Counter(bar):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "disable": True})
            on_bytes(int(kwargs.get("initial") or 0))

        def update(self, n: float | None = 1) -> None:
            on_bytes(int(n or 0))

    return Counter
