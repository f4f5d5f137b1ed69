"""Makes a version of tars that others wrote, which stay where they are: `tarmac index`.

Each tar is read once, from its first byte to its last. The version gets what loader and training ask for:
index, sizes, tables and manifest, and in FOREIGN where each tar lies. A tar that is torn is refused, since an
index of half of it would hide the rest. No sample is decoded: what is wrong within a member shows when it is
read.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import google_crc32c
import pyarrow as pa
from blake3 import blake3

from tasks.core.errors import DataError, UsageError
from tasks.core.files import disk_full_as_error, fsync_path, write_atomic, write_json
from tasks.core.patterns import expand
from tasks.core.remote.remote_shards import RemoteShard, cache, remote_shard
from tasks.core.stores import is_remote, redact
from tasks.dataset import versions
from tasks.dataset.build_info import write_build_info
from tasks.dataset.foreign import Foreign, ForeignSplit
from tasks.dataset.index import IndexWriter
from tasks.dataset.layout import (
    FOREIGN,
    MANIFEST,
    REJECTS,
    SHARDS,
    VERSIONS,
    index_name,
    samples_name,
    shard_name,
    sizes_name,
)
from tasks.dataset.manifest import (
    Manifest,
    SourceSummary,
    SplitSummary,
    content_digest,
    version_name,
)
from tasks.dataset.tables import (
    REJECTS_SCHEMA,
    SHARDS_SCHEMA,
    ShardRecord,
    TableWriter,
    samples_schema,
    write_table,
)
from tasks.dataset.tar.format import padding, parse_sample
from tasks.dataset.tar.reader import Cut, Gap, StoredSample, TarReader, group_samples

KEPT = 3
"""Versions of such a dataset; they hold no tars."""
KINDS = {
    "volume_report": ("volume.npy", "volume.b2nd"),
    "reinforced": ("paug.json",),
    "chat": ("000.jpg", "000.png", "000.webp"),
    "image_text": ("txt",),
}
"""What a sample's members show of its modality, by suffix; the first that fits."""


@dataclass(frozen=True)
class _Tar:
    """What one tar holds."""

    blake3: str
    bytes: int
    offsets: list[int]
    lengths: list[int]
    keys: list[str]
    checksums: list[int]
    is_plain: bool
    suffixes: frozenset[str]
    """Those of the first sample."""


def index_tars(splits: Mapping[str, str], dataset: Path, modality: str | None = None) -> Path:
    """Index the tars that each split's location stands for (a file, folder, address or pattern), and make
    that the current version of the folder `dataset`; the version's folder.

    UsageError for locations without tars, and where the modality has to be given; DataError for a tar that
    cannot be read, is torn, or has members of a kind that a loader cannot take.
    """
    found = {split: _locations(location) for split, location in splits.items()}
    with disk_full_as_error(dataset):
        (dataset / VERSIONS).mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=".index-", dir=dataset / VERSIONS))
        try:
            return _publish(dataset, _describe(draft, dataset.name, found, modality))
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def _locations(location: str) -> list[str]:
    files = expand(location, (".tar",), "SHARDS")
    signed = next((file for file in files if redact(file) != file), None)
    if signed is not None:
        raise UsageError(
            f"SHARDS: {redact(signed)} has a user, password or query, which an index would write down; "
            "give credentials by the environment"
        )
    if len({is_remote(file) for file in files}) > 1:
        raise UsageError("SHARDS: give either addresses or paths of this machine for a split")
    return files


def _describe(draft: Path, name: str, found: Mapping[str, Sequence[str]], modality: str | None) -> Path:
    draft.chmod(0o755)
    foreign: dict[str, ForeignSplit] = {}
    summaries: dict[str, SplitSummary] = {}
    records: list[ShardRecord] = []
    for split, files in found.items():
        for below in (draft / index_name(split)).parent, (draft / samples_name(split)).parent, draft / split:
            below.mkdir(exist_ok=True)
        tars: list[tuple[int, int, bool]] = []
        remote: list[RemoteShard] = []
        schema = samples_schema({})
        with (
            IndexWriter(draft / index_name(split)) as index,
            TableWriter(draft / samples_name(split), schema) as rows,
        ):
            for number, file in enumerate(files):
                tar = _read(file, remote)
                modality = modality or _modality(tar.suffixes, file)
                rows.write(_rows(schema, tar.keys, number, index.rows))
                index.write(number, tar.offsets, tar.lengths, tar.checksums)
                name_of = shard_name(split, number)
                records.append(ShardRecord(name_of, split, tar.blake3, tar.bytes, len(tar.offsets), ""))
                if not is_remote(file):
                    os.symlink(os.path.abspath(file), draft / shard_name(split, number))
                tars.append((tar.bytes, len(tar.offsets), tar.is_plain))
            samples = index.rows
        sizes = {Path(shard_name(split, number)).name: tar[1] for number, tar in enumerate(tars)}
        write_json(draft / sizes_name(split), sizes)
        summaries[split] = SplitSummary(
            shards=len(tars), samples=samples, bytes=sum(size for size, _, _ in tars)
        )
        paths = () if remote else tuple(map(os.path.abspath, files))
        foreign[split] = ForeignSplit(
            is_plain=all(plain for _, _, plain in tars), paths=paths, remote=tuple(remote)
        )
    write_atomic(draft / FOREIGN, Foreign(splits=foreign).model_dump_json(indent=1) + "\n")
    write_table(draft / SHARDS, pa.Table.from_pylist([asdict(one) for one in records], SHARDS_SCHEMA))
    write_table(draft / REJECTS, REJECTS_SCHEMA.empty_table())
    total = sum(summary.samples for summary in summaries.values())
    digest = content_digest((record.name, record.blake3) for record in records)
    manifest = Manifest(
        format="tarmac/1",
        name=name,
        modality=modality or "",
        digest=digest,
        splits=summaries,
        read=total,
        accepted=total,
        filtered=0,
        rejects={},
        source=SourceSummary(kind="foreign", digest=digest),
        config_digest="",
    )
    write_atomic(draft / MANIFEST, manifest.to_bytes())
    write_build_info(draft, _facts(name))
    return draft


def _rows(schema: Any, keys: Sequence[str], shard: int, first: int) -> Any:
    """Of a shard's samples, as `samples/<split>.parquet` has them."""
    columns = {
        "key": keys,
        "original_key": keys,
        "shard": [shard] * len(keys),
        "row": range(first, first + len(keys)),
        "group": [None] * len(keys),
    }
    return pa.table(columns, schema=schema)


def _facts(name: str) -> dict[str, Any]:
    """What build.json says of a version that no config made."""
    nothing: dict[str, Any] = {"dataset": {}, "cut": [], "inputs_digest": "", "unread": 0, "filtered": 0}
    return {
        **nothing,
        "name": name,
        "private": False,
        "built": time.time(),
        "host": socket.gethostname(),
        "engine": {},
        "python": sys.version.split()[0],
        "versions": {},
        "converter": 0,
        "output": "",
    }


def _publish(dataset: Path, draft: Path) -> Path:
    """Give the draft its name and make it current; a version of the same tars, which may lie elsewhere now,
    makes way for it."""
    version = dataset / VERSIONS / version_name((draft / MANIFEST).read_bytes())
    fsync_path(draft)
    if version.exists():
        os.rename(version, draft.with_name(draft.name + ".old"))
    os.rename(draft, version)
    shutil.rmtree(draft.with_name(draft.name + ".old"), ignore_errors=True)
    versions.publish(dataset, version, KEPT)
    return version


def _modality(suffixes: frozenset[str], file: str) -> str:
    for modality, members in KINDS.items():
        if not suffixes.isdisjoint(members):
            return modality
    raise UsageError(
        f"--modality: the members of {redact(file)} ({', '.join(sorted(suffixes))}) do not show it; "
        f"give one of {', '.join(KINDS)}"
    )


def _read(file: str, remote: list[RemoteShard]) -> _Tar:
    """What a tar holds; one of a store is added to `remote`."""
    if not is_remote(file):
        try:
            with open(file, "rb") as opened:
                return _scan(file, opened)
        except OSError as error:
            raise DataError(f"{file}: cannot be read: {error.strerror}") from error
    shard = remote_shard(file)
    opening: AbstractContextManager[BinaryIO] = cache().stream(shard)
    with opening as opened:
        tar = _scan(file, opened)
    remote.append(replace(shard, size=tar.bytes, blake3=tar.blake3))
    return tar


def _scan(file: str, opened: BinaryIO) -> _Tar:
    passing = _Passing(opened)
    offsets: list[int] = []
    lengths: list[int] = []
    checksums: list[int] = []
    keys: list[str] = []
    is_plain, suffixes = True, frozenset[str]()
    for found in group_samples(TarReader(passing)):  # type: ignore[arg-type]
        if isinstance(found, Gap | Cut):
            raise DataError(f"{redact(file)}: {found}; have it written again, or take it off the list")
        odd = next((member for member in found.members if member.oddity), None)
        if odd is not None or len(found.suffixes) < len(found.members):
            problem = f"{odd.name} is {odd.oddity}" if odd else "a member comes twice"
            raise DataError(f"{redact(file)}: sample {found.key!r}: {problem}, which no loader takes")
        last = found.members[-1]
        span = passing.take(found.start, last.offset + last.size + padding(last.size))
        keys.append(found.key)
        offsets.append(found.start)
        lengths.append(len(span))
        checksums.append(google_crc32c.value(span))
        is_plain = is_plain and _is_plain(span, found)
        suffixes = suffixes or frozenset(found.suffixes)
    if not offsets:
        raise DataError(f"{redact(file)}: holds no samples; take it off the list of shards")
    passing.drain()
    return _Tar(passing.digest, passing.size, offsets, lengths, keys, checksums, is_plain, suffixes)


def _is_plain(span: bytes, sample: StoredSample) -> bool:
    """Whether the short parser for our own tars sees in it what the tolerant reader saw."""
    try:
        seen = parse_sample(span)
        sizes = {suffix: len(content) for suffix, content in seen.members.items()}
        return seen.key == sample.key and sizes == {one.suffix: one.size for one in sample.members}
    except (ValueError, IndexError):
        return False


class _Passing:
    """A file that hashes and holds what was read of it, until it is taken."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._held, self._base, self._hasher = file, bytearray(), 0, blake3()

    def readinto(self, buffer: Any) -> int:
        count: int = self._file.readinto(buffer)  # type: ignore[attr-defined]
        self._hasher.update(buffer[:count])
        self._held += buffer[:count]
        return count

    def take(self, start: int, end: int) -> bytes:
        """The bytes from `start` to `end` of the file, which have been read; all before `end` are let go."""
        content = bytes(memoryview(self._held)[start - self._base : end - self._base])
        del self._held[: end - self._base]
        self._base = end
        return content

    def drain(self) -> None:
        """Read to the end of the file."""
        buffer = memoryview(bytearray(1 << 20))
        while self.readinto(buffer):
            self._base, self._held = self.size, bytearray()

    @property
    def size(self) -> int:
        return self._base + len(self._held)

    @property
    def digest(self) -> str:
        return self._hasher.hexdigest()
