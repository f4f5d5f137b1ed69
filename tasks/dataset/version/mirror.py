"""Copy a published version to a bucket, for readers elsewhere.

s3://bucket/digits/ current    versions/9c41…/ manifest.json …  train/000000.tar …

A version is named by what its tars hold, so a tar that is there with the right size is right, and an upload
that was interrupted goes on where it ended. All other files are small and are sent each time, because a
version that is published again may have other tables of the same size. Shards that the mirror's current
version holds too are copied within the bucket. A version's `manifest.json` is sent after its other files, and
`current` (a text, the version's name) after that: a reader finds a whole version or none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.core.errors import DataError, UsageError
from tasks.core.files import write_json
from tasks.core.remote import clients, remote_stores
from tasks.core.screen import Progress, no_progress
from tasks.core.stores import StoreUnreachable
from tasks.dataset.version.layout import CURRENT, MANIFEST, MIRRORED, SHARDS, VERSION_NAME
from tasks.dataset.version.tables import read_shards

TOGETHER = 4
"""Transfers that run at the same time."""
SLOWEST = 100_000
"""Bytes per second; a slower transfer is cancelled and tried again."""
PART = 16 << 20
"""Bytes of one part of an upload; two parts are in memory at a time."""
NOTE = "bytes mirrored"


@dataclass(frozen=True)
class Mirrored:
    """How many objects were uploaded, copied within the bucket, and there already; and the versions that were
    pruned."""

    uploaded: int
    copied: int
    kept: int
    pruned: list[str]


@dataclass(frozen=True)
class Transfer:
    """One object of the version, and the object with the same content in the bucket, or ""."""

    name: str
    size: int
    copied_from: str


def check_mirror(mirror: str) -> None:
    """UsageError for an address that cannot be a mirror, or whose package is not installed."""
    if mirror.partition("://")[0] not in ("s3", "gs"):
        raise UsageError(f"dataset.mirror: {mirror} cannot be written; give an address in s3:// or gs://")
    clients.filesystem(mirror, "dataset.mirror")


def require_reachable(mirror: str) -> None:
    """DataError when the store refuses or does not answer, which is better known before the work than
    after."""
    with _store_errors(mirror), contextlib.suppress(FileNotFoundError):
        _Mirror(mirror.rstrip("/")).current()


@contextlib.contextmanager
def _store_errors(mirror: str) -> Iterator[None]:
    """Turn an error of the store or the connection into a DataError that names the config key."""
    try:
        yield
    except StoreUnreachable:
        raise
    except OSError as error:
        raise DataError(f"dataset.mirror: {error.filename or mirror}: {error.strerror or error}") from None


def publish(version: Path, mirror: str, keep: int, progress: Progress = no_progress) -> Mirrored:
    """Copy the version to the mirror, make it current there, and prune all but the newest `keep` versions.

    UsageError for an address that cannot be a mirror, DataError when the store refuses or does not answer;
    what was sent by then stays, and the next call goes on from there.
    """
    check_mirror(mirror)
    with _store_errors(mirror):
        return _Mirror(mirror.rstrip("/")).publish(version, keep, progress)


def plan_transfers(
    sizes: Mapping[str, int], seals: Mapping[str, str], there: Mapping[str, int], copies: Mapping[str, str]
) -> list[Transfer]:
    """The objects of a version that the mirror lacks or may lack, by their names in the version.

    `sizes` and `there` are the sizes in the version and in the mirror's copy, `seals` the BLAKE3 of objects
    by name, `copies` the addresses of objects elsewhere in the bucket by their BLAKE3.
    """
    return [
        Transfer(name, size, copies.get(seals.get(name, ""), ""))
        for name, size in sizes.items()
        if not name.endswith(".tar") or there.get(name) != size
    ]


class _Mirror:
    def __init__(self, address: str) -> None:
        self.address = address
        self._fs = clients.filesystem(address, "dataset.mirror")

    def current(self) -> str:
        """The name of the mirror's current version; FileNotFoundError where there is none."""
        content: bytes = self._call("_cat_file", CURRENT)
        return content.decode(errors="replace").strip()

    def publish(self, version: Path, keep: int, progress: Progress) -> Mirrored:
        files = (path for path in sorted(version.rglob("*")) if path.is_file())
        sizes = {path.relative_to(version).as_posix(): path.stat().st_size for path in files}
        seals = {shard.name: shard.blake3 for shard in read_shards(version)}
        plan = plan_transfers(sizes, seals, self._sizes(version.name), self._copies(version.name))
        whole, done = sum(one.size for one in plan), 0
        for is_last in (False, True):
            for size in self._transfer(version, [one for one in plan if (one.name == MANIFEST) is is_last]):
                done += size
                progress(done, whole, NOTE)
        there = self._sizes(version.name)
        wrong = next((name for name, size in sizes.items() if there.get(name) != size), None)
        if wrong is not None:
            where = f"{self.address}/versions/{version.name}/{wrong}"
            raise DataError(f"dataset.mirror: {where} is not as it was sent; publish again")
        self._call("_pipe_file", CURRENT, version.name.encode())
        copied = sum(bool(one.copied_from) for one in plan)
        write_json(version.parents[1] / MIRRORED, {"address": self.address, "version": version.name})
        pruned = self._prune(version.name, keep)
        return Mirrored(len(plan) - copied, copied, len(sizes) - len(plan), pruned)

    def _transfer(self, version: Path, plan: Sequence[Transfer]) -> Iterator[int]:
        """Transfer these objects, a few at a time, and yield the size of each as it is done; the first
        failure ends the transfers."""

        def one(transfer: Transfer) -> int:
            target, limit_s = f"versions/{version.name}/{transfer.name}", transfer.size / SLOWEST
            if transfer.copied_from:
                self._call("_cp_file", transfer.copied_from, f"{self.address}/{target}", limit_s=limit_s)
            else:
                parts = {"chunksize": PART, "max_concurrency": 2} if self.address.startswith("s3:") else {}
                source = str(version / transfer.name)
                self._call("_put_file", source, f"{self.address}/{target}", limit_s=limit_s, **parts)
            return transfer.size

        with ThreadPoolExecutor(TOGETHER) as pool:
            try:
                for future in as_completed([pool.submit(one, transfer) for transfer in plan]):
                    yield future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _sizes(self, version: str) -> dict[str, int]:
        """The objects of the mirror's copy of a version, with their sizes."""
        store = remote_stores.RemoteStore(f"{self.address}/versions/{version}", "dataset.mirror")
        try:
            return {file: store.stat(file).size for file in store.files()}
        except FileNotFoundError:
            return {}

    def _copies(self, version: str) -> dict[str, str]:
        """The addresses of the current version's shards by BLAKE3; none when this version is the current
        one."""
        try:
            other = self.current()
            if other == version:
                return {}
            base = f"{self.address}/versions/{other}"
            content = pa.BufferReader(self._call("_cat_file", f"versions/{other}/{SHARDS}"))
            # Without threads: Arrow's may release memory that Python has lent them while it exits.
            table = pq.ParquetFile(content).read(["name", "blake3"], use_threads=False)
        except (FileNotFoundError, pa.ArrowException):
            return {}  # nothing was mirrored, or it is damaged: all is uploaded
        names, seals = (table.column(name).to_pylist() for name in ("name", "blake3"))
        there = self._sizes(other)
        return {sha: f"{base}/{name}" for name, sha in zip(names, seals, strict=True) if name in there}

    def _prune(self, current: str, keep: int) -> list[str]:
        """Remove the oldest versions and return their names. The manifests go first, so that no reader takes
        a partial version for a whole one."""
        store = remote_stores.RemoteStore(f"{self.address}/versions", "dataset.mirror")
        versions = [name for name in store.entries()[0] if VERSION_NAME.fullmatch(name) and name != current]
        doomed = sorted(versions, key=self._published, reverse=True)[max(keep - 1, 0) :]
        for name in doomed:
            for file in (MANIFEST, ""):
                with contextlib.suppress(FileNotFoundError):
                    self._call("_rm", f"versions/{name}/{file}".rstrip("/"), recursive=not file)
        return doomed

    def _published(self, version: str) -> str:
        """The time of publication as a text that sorts; "" for a partial version, so that it is removed
        first."""
        try:
            info = self._call("_info", f"versions/{version}/{MANIFEST}")
        except FileNotFoundError:
            return ""
        return str(info.get("LastModified") or info.get("updated") or info.get("mtime"))

    def _call(self, function: str, path: str, *arguments: Any, limit_s: float = 0, **named: Any) -> Any:
        """Run a coroutine of fsspec on an object of the mirror; for copies and uploads, that is the
        target."""
        is_transfer = function in ("_cp_file", "_put_file")
        first = path if is_transfer else f"{self.address}/{path}"
        where = str(arguments[0]) if is_transfer else first
        limit_s = clients.REQUEST_S + limit_s
        return clients.call(
            self._fs, getattr(self._fs, function), first, *arguments, where=where, limit_s=limit_s, **named
        )
