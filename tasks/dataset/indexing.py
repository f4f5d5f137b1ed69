"""Make a version of tars that others wrote, which stay where they are: `tarmac index`.

Each tar is read once, from its first byte to its last. The version gets what loader and training need: index,
sizes, tables and manifest, and FOREIGN, which records where each tar lies. A torn tar is an error, since an
index of half a tar would hide the rest. No sample is decoded: damage within a member shows when it is read.
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
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import google_crc32c
import pyarrow as pa

from tasks.core.errors import DataError, UsageError
from tasks.core.files import disk_full_as_error, fsync_path, write_atomic, write_json
from tasks.core.patterns import expand
from tasks.core.remote.remote_shards import RemoteShard, cache, remote_shard
from tasks.core.stores import is_remote, redact
from tasks.dataset.foreign import Foreign, ForeignSplit
from tasks.dataset.tar.format import padding, parse_sample
from tasks.dataset.tar.reader import Cut, Gap, StoredSample, TarReader, group_samples
from tasks.dataset.verify.tars import HashedReads
from tasks.dataset.version import layout, versions
from tasks.dataset.version.build_info import write_build_info
from tasks.dataset.version.index import IndexWriter
from tasks.dataset.version.layout import MANIFEST, VERSIONS, shard_name
from tasks.dataset.version.manifest import Manifest, SourceSummary, SplitSummary, content_digest, version_name
from tasks.dataset.version.tables import (
    REJECTS_SCHEMA,
    SHARDS_SCHEMA,
    ShardRecord,
    TableWriter,
    samples_schema,
    write_table,
)

KEPT = 3
"""How many versions of such a dataset are kept; they hold no tars."""
KINDS = {
    "volume_report": ("volume.npy", "volume.b2nd"),
    "reinforced": ("paug.json",),
    "chat": ("000.jpg", "000.png", "000.webp"),
    "image_text": ("txt",),
}
"""The suffixes of members that show the modality of a sample; the first that fits counts."""


@dataclass
class _Tar:
    """What one tar holds, one value per sample in each list; `suffixes` are those of the first sample."""

    offsets: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    checksums: list[int] = field(default_factory=list)
    suffixes: frozenset[str] = frozenset()
    is_plain: bool = True
    blake3: str = ""
    bytes: int = 0


def index_tars(splits: Mapping[str, str], dataset: Path, modality: str | None = None) -> Path:
    """Index the tars at each split's location (a file, folder, address or pattern), make the result the
    current version of the folder `dataset`, and return the version's folder.

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
        index_file, samples_file = draft / layout.index_name(split), draft / layout.samples_name(split)
        for below in index_file.parent, samples_file.parent, draft / split:
            below.mkdir(exist_ok=True)
        mine: list[ShardRecord] = []
        remote: list[RemoteShard] = []
        is_plain = True
        schema = samples_schema({})
        with IndexWriter(index_file) as index, TableWriter(samples_file, schema) as rows:
            for number, file in enumerate(files):
                tar = _read(file, remote)
                modality = modality or _modality(tar.suffixes, file)
                columns = {
                    "key": tar.keys,
                    "original_key": tar.keys,
                    "shard": [number] * len(tar.keys),
                    "row": range(index.rows, index.rows + len(tar.keys)),
                    "group": [None] * len(tar.keys),
                    "source": [None] * len(tar.keys),
                }
                rows.write(pa.table(columns, schema=schema))
                index.write(number, tar.offsets, tar.lengths, tar.checksums)
                shard = shard_name(split, number)
                mine.append(ShardRecord(shard, split, tar.blake3, tar.bytes, len(tar.keys), ""))
                is_plain = is_plain and tar.is_plain
                if not is_remote(file):
                    os.symlink(os.path.abspath(file), draft / shard)
        write_json(draft / layout.sizes_name(split), {Path(one.name).name: one.samples for one in mine})
        size_bytes = sum(one.bytes for one in mine)
        summaries[split] = SplitSummary(shards=len(mine), samples=index.rows, bytes=size_bytes)
        paths = () if remote else tuple(map(os.path.abspath, files))
        foreign[split] = ForeignSplit(is_plain=is_plain, paths=paths, remote=tuple(remote))
        records += mine
    write_atomic(draft / layout.FOREIGN, Foreign(splits=foreign).model_dump_json(indent=1) + "\n")
    write_table(draft / layout.SHARDS, pa.Table.from_pylist(list(map(asdict, records)), SHARDS_SCHEMA))
    write_table(draft / layout.REJECTS, REJECTS_SCHEMA.empty_table())
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
    no_build: dict[str, Any] = {"dataset": {}, "cut": [], "engine": {}, "versions": {}, "inputs_digest": ""}
    facts = {
        "name": name,
        "built": time.time(),
        "host": socket.gethostname(),
        "python": sys.version.split()[0],
    }
    counts = {"unread": 0, "filtered": 0, "converter": 0}
    write_build_info(draft, {**no_build, **facts, **counts, "private": False, "output": ""})
    return draft


def _publish(dataset: Path, draft: Path) -> Path:
    """Give the draft its name and make it current. It replaces a version of the same tars, which may have
    been indexed at another place."""
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
    """Read a tar; a remote one is added to `remote`."""
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
    tar, reads = _Tar(), _HeldReads(opened)
    for found in group_samples(TarReader(reads)):  # type: ignore[arg-type]
        if isinstance(found, Gap | Cut):
            raise DataError(f"{redact(file)}: {found}; have it written again, or take it off the list")
        odd = next((member for member in found.members if member.oddity), None)
        if odd is not None or len(found.suffixes) < len(found.members):
            problem = f"{odd.name} is {odd.oddity}" if odd else "a member comes twice"
            raise DataError(f"{redact(file)}: sample {found.key!r}: {problem}, which no loader takes")
        last = found.members[-1]
        span = reads.take(found.start, last.offset + last.size + padding(last.size))
        tar.keys.append(found.key)
        tar.offsets.append(found.start)
        tar.lengths.append(len(span))
        tar.checksums.append(google_crc32c.value(span))
        tar.is_plain = tar.is_plain and _is_plain(span, found)
        tar.suffixes = tar.suffixes or frozenset(found.suffixes)
    if not tar.offsets:
        raise DataError(f"{redact(file)}: holds no samples; take it off the list of shards")
    tar.blake3, tar.bytes = reads.finish()
    return tar


def _is_plain(span: bytes, sample: StoredSample) -> bool:
    """Whether the short parser for our own tars finds the same sample as the tolerant reader."""
    try:
        parsed = parse_sample(span)
        sizes = {suffix: len(content) for suffix, content in parsed.members.items()}
        return parsed.key == sample.key and sizes == {one.suffix: one.size for one in sample.members}
    except (ValueError, IndexError):
        return False


class _HeldReads(HashedReads):
    """A file that takes the BLAKE3 of what is read, and holds it until it is taken."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        self._held, self._base = bytearray(), 0

    def readinto(self, buffer: memoryview) -> int:
        count = super().readinto(buffer)
        self._held += buffer[:count]
        return count

    def take(self, start: int, end: int) -> bytes:
        """The bytes from `start` to `end` of the file, which have been read; all before `end` are
        released."""
        content = bytes(memoryview(self._held)[start - self._base : end - self._base])
        del self._held[: end - self._base]
        self._base = end
        return content
