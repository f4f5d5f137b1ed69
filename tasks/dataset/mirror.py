"""A published version's copy in a bucket, for readers elsewhere.

    s3://bucket/digits/ current    versions/9c41…/ manifest.json …  train/000000.tar …

A version is named by what its tars hold, so a tar that is there with the right size is right, and an upload
that was interrupted goes on where it ended. All else is small and is sent each time, because a version that
is published again may have other tables of the same size. Shards that the mirror's current version holds too
are copied within the bucket. A version's `manifest.json` comes after all else of it, and `current` (a text,
the version's name) after that: a reader finds a whole version or none.
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
from tasks.core.remote import remote_stores
from tasks.core.screen import Progress, no_progress
from tasks.core.stores import StoreUnreachable
from tasks.dataset.layout import CURRENT, MANIFEST, MIRRORED, SHARDS, VERSION_NAME
from tasks.dataset.tables import read_shards

TOGETHER = 4
"""Transfers at the same time."""
SLOWEST = 100_000
"""Bytes a second; a slower transfer is given up and tried again."""
PART = 16 << 20
"""Bytes of an upload's part, of which two are in memory."""
NOTE = "bytes mirrored"


@dataclass(frozen=True)
class Mirrored:
    """What publishing took: objects that were uploaded, copied within the bucket, and there already."""

    uploaded: int
    copied: int
    kept: int
    pruned: list[str]


@dataclass(frozen=True)
class Transfer:
    """One object of the version, and the object of the same content that the bucket has (else "")."""

    name: str
    size: int
    copied_from: str


def check_mirror(mirror: str) -> None:
    """UsageError for a mirror that cannot be written, or whose package is not installed."""
    if mirror.partition("://")[0] not in ("s3", "gs"):
        raise UsageError(f"dataset.mirror: {mirror} cannot be written; give an address in s3:// or gs://")
    remote_stores.filesystem(mirror, "dataset.mirror")


def require_reachable(mirror: str) -> None:
    """DataError when the store refuses or does not answer: better before the work than after it."""
    with _store_errors(mirror):
        _Mirror(mirror.rstrip("/")).current()


@contextlib.contextmanager
def _store_errors(mirror: str) -> Iterator[None]:
    """DataError that names the key for what goes wrong between here and the store."""
    try:
        yield
    except StoreUnreachable:
        raise
    except OSError as error:
        raise DataError(f"dataset.mirror: {error.filename or mirror}: {error.strerror or error}") from None


def publish(version: Path, mirror: str, keep: int, progress: Progress = no_progress) -> Mirrored:
    """Bring the version to the mirror, make it current there, and prune all but the newest `keep`.

    UsageError for a mirror that cannot be written, DataError when the store refuses or does not answer; what
    is there by then stays, and the next call goes on from it.
    """
    check_mirror(mirror)
    with _store_errors(mirror):
        return _Mirror(mirror.rstrip("/")).publish(version, keep, progress)


def plan_transfers(
    sizes: Mapping[str, int], seals: Mapping[str, str], there: Mapping[str, int], copies: Mapping[str, str]
) -> list[Transfer]:
    """What the mirror lacks or may lack of a version, by the objects' names within it.

    `sizes` and `there` are those of the version and of the mirror's copy of it, `seals` the known BLAKE3 of
    its objects, `copies` objects elsewhere in the bucket by their BLAKE3.
    """
    return [
        Transfer(name, size, copies.get(seals.get(name, ""), ""))
        for name, size in sizes.items()
        if not name.endswith(".tar") or there.get(name) != size
    ]


class _Mirror:
    def __init__(self, address: str) -> None:
        self.address = address
        self._fs = remote_stores.filesystem(address, "dataset.mirror")

    def current(self) -> str | None:
        """The name of the mirror's current version."""
        try:
            content: bytes = self._call("_cat_file", CURRENT)
        except FileNotFoundError:
            return None
        return content.decode(errors="replace").strip()

    def publish(self, version: Path, keep: int, progress: Progress) -> Mirrored:
        sizes = {path.relative_to(version).as_posix(): path.stat().st_size for path in _files(version)}
        there = self._sizes(version.name)
        plan = plan_transfers(
            sizes,
            {shard.name: shard.blake3 for shard in read_shards(version)},
            there,
            self._copies(version.name),
        )
        whole, done = sum(one.size for one in plan), 0
        for group in (
            [one for one in plan if one.name != MANIFEST],
            [one for one in plan if one.name == MANIFEST],
        ):
            for size in self._transfer(version, group):
                done += size
                progress(done, whole, NOTE)
        self._require(version.name, sizes)
        self._call("_pipe_file", CURRENT, version.name.encode())
        copied = sum(bool(one.copied_from) for one in plan)
        write_json(version.parents[1] / MIRRORED, {"address": self.address, "version": version.name})
        pruned = self._prune(version.name, keep)
        return Mirrored(len(plan) - copied, copied, len(sizes) - len(plan), pruned)

    def _transfer(self, version: Path, plan: Sequence[Transfer]) -> Iterator[int]:
        """Do it, a few at a time; the size of each when it is done. The first failure ends it."""

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

    def _require(self, version: str, sizes: Mapping[str, int]) -> None:
        """DataError unless all that was sent is there."""
        there = self._sizes(version)
        for name, size in sizes.items():
            if there.get(name) != size:
                raise DataError(
                    f"dataset.mirror: {self.address}/versions/{version}/{name} is not as it was sent; "
                    "publish again"
                )

    def _copies(self, version: str) -> dict[str, str]:
        """Addresses of the current version's shards by BLAKE3; none when they are this version's own."""
        try:
            other = self._call("_cat_file", CURRENT).decode().strip()
            if other == version:
                return {}
            base = f"{self.address}/versions/{other}"
            content = pa.BufferReader(self._call("_cat_file", f"versions/{other}/{SHARDS}"))
            # Arrow's threads may let go of what Python lent them when the interpreter is ending.
            table = pq.ParquetFile(content).read(["name", "blake3"], use_threads=False)
        except (FileNotFoundError, UnicodeDecodeError, pa.ArrowException):
            return {}  # nothing was mirrored, or what was is damaged: all is uploaded
        names, seals = (table.column(name).to_pylist() for name in ("name", "blake3"))
        there = self._sizes(other)
        return {sha: f"{base}/{name}" for name, sha in zip(names, seals, strict=True) if name in there}

    def _prune(self, current: str, keep: int) -> list[str]:
        """Remove the oldest versions, their manifests first, so that none is there by half."""
        store = remote_stores.RemoteStore(f"{self.address}/versions", "dataset.mirror")
        versions = [name for name in store.entries()[0] if VERSION_NAME.fullmatch(name) and name != current]
        by_age = sorted(versions, key=lambda name: self._published(name), reverse=True)
        doomed = by_age[max(keep - 1, 0) :]
        for name in doomed:
            for file in (MANIFEST, ""):
                with contextlib.suppress(FileNotFoundError):
                    self._call("_rm", f"versions/{name}/{file}".rstrip("/"), recursive=not file)
        return doomed

    def _published(self, version: str) -> str:
        """When, as a text that sorts; "" for a version that is there by half, so that it goes first."""
        try:
            info = self._call("_info", f"versions/{version}/{MANIFEST}")
        except FileNotFoundError:
            return ""
        return str(info.get("LastModified") or info.get("updated") or info.get("mtime"))

    def _call(self, function: str, path: str, *arguments: Any, limit_s: float = 0, **named: Any) -> Any:
        """fsspec's coroutine on an object of the mirror; copies and uploads name theirs as the target."""
        is_transfer = function in ("_cp_file", "_put_file")
        first = path if is_transfer else f"{self.address}/{path}"
        where = str(arguments[0]) if is_transfer else first
        limit_s = remote_stores.REQUEST_S + limit_s
        return remote_stores.call(
            self._fs, getattr(self._fs, function), first, *arguments, where=where, limit_s=limit_s, **named
        )


def _files(version: Path) -> Iterator[Path]:
    return (path for path in sorted(version.rglob("*")) if path.is_file())
