"""What models say of a dataset's samples: one Parquet file per model and shard, beside the versions.

    DATASET/scores/<model>/<16 digits of the shard's BLAKE3>.parquet   key, content, crc32c, clip_score, …
                           duplicates.parquet                          key, content, duplicate_similarity, …

A sample is known by the digest of its raw content, which `inputs.arrow` records, so a score holds in every
version that has the sample, and also where a rule on the score has left it out. A file therefore stays as
long as any version knows one of its samples: without it, a sample that was left out would have no score any
more, and would come back.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash
from numpy.typing import NDArray

from tasks.core.errors import DataError, UsageError
from tasks.core.files import blake3_file, digest
from tasks.core.schema.dataset import Limits
from tasks.core.schema.score import ClipWeights
from tasks.dataset.version.index import read_index
from tasks.dataset.version.layout import INPUTS, SCORES, samples_name
from tasks.dataset.version.rejects import BY_SCORE, FILTERED
from tasks.dataset.version.tables import DAMAGED, ArrowBatches, ShardRecord, read_pieces, read_shards

CLIP_SCORE, AESTHETIC, SIMILARITY = "clip_score", "aesthetic_score", "duplicate_similarity"
OTHERS = "others_score"
"""The column with the mean score of a picture with the other captions of its shard."""
EMBEDDING = "embedding"
DUPLICATES = "duplicates.parquet"
READ = ("key", "content", "crc32c")
METADATA = b"tarmac"
DIGITS = 16
_FILE = re.compile(rf"[0-9a-f]{{{DIGITS}}}\.parquet")
_WEIGHTS = (".pt", ".pth", ".bin", ".safetensors")

Contents = NDArray[np.uint64]
"""[samples, 2]: digests of 128 bits."""


def model_id(model: ClipWeights) -> str:
    """Return the name of the model's folder: weights in a file count by their content.

    UsageError for a file that is not there.
    """
    path = Path(model.pretrained).expanduser()
    if path.is_file():
        weights = blake3_file(path)[:12]
    elif path.suffix in _WEIGHTS:
        raise UsageError(
            f"score.model.pretrained: there is no file {model.pretrained}, whose content names its scores"
        )
    else:
        weights = model.pretrained
    return re.sub(r"[^A-Za-z0-9._-]+", "-", f"{model.name}-{weights}")


def scores_folder(dataset: Path, model: ClipWeights) -> Path:
    return dataset / SCORES / model_id(model)


def score_file(folder: Path, shard: ShardRecord) -> Path:
    return folder / f"{shard.blake3[:DIGITS]}.parquet"


def state_digest(folder: Path) -> str:
    """Digest which scores there are, by the names, sizes and times of their files."""
    files = sorted(folder.glob("*.parquet")) if folder.is_dir() else []
    return digest([[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in files])


def contents_of(column: Any) -> Contents:
    """Return digests as numbers; 0 for those that are not known."""
    joined = b"".join(value or bytes(16) for value in column.to_pylist())
    return np.frombuffer(joined, np.uint64).reshape(-1, 2)


@dataclass(frozen=True)
class ShardSamples:
    """The samples of a shard in order: keys, contents, and the CRC32C of their stored bytes."""

    shard: ShardRecord
    keys: Sequence[str]
    contents: Contents
    checksums: NDArray[np.uint32]


class VersionSamples:
    """The samples of a version, shard by shard; DataError where its tables cannot be read."""

    def __init__(self, version: Path) -> None:
        self._version = version
        self.shards = read_shards(version)
        self._batches = self._tars = None
        if (version / INPUTS).exists():  # tars that others wrote have none
            try:
                names = ArrowBatches(version / INPUTS, ("tar",))
                self._tars = {table.column("tar")[0].as_py(): number for number, table in enumerate(names)}
                self._batches = ArrowBatches(version / INPUTS, (*READ, "reason", "detail"))
            except DAMAGED as error:
                raise self._damaged(error) from None

    def __iter__(self) -> Iterator[ShardSamples]:
        return self.of({shard.name for shard in self.shards})

    def of(self, names: Collection[str]) -> Iterator[ShardSamples]:
        """Yield the samples of the shards of these names, which may change while they are read."""
        if self._batches is None:
            yield from (one for one in self._of_others() if one.shard.name in names)
            return
        assert self._tars is not None
        for shard in [shard for shard in self.shards if shard.name in names]:
            try:
                table = self._batches[self._tars[shard.name]]
            except DAMAGED as error:
                raise self._damaged(error) from None
            table = table.filter(pc.is_null(table.column("reason")))
            yield self._samples(shard, table, contents_of(table.column("content")))

    def known_contents(self, *, by_score: bool = False) -> Iterator[Contents]:
        """Yield, in pieces, the contents of all samples that the version has or that a rule has left out,
        with `by_score` only one on scores."""
        if self._batches is None:
            yield from (samples.contents for samples in self)
            return
        for table in self._batches:
            reason = table.column("reason")
            is_out = pc.equal(reason, FILTERED)
            if by_score:
                is_out = pc.and_(is_out, pc.equal(table.column("detail"), BY_SCORE))
            is_known = pc.or_kleene(pc.is_null(reason), is_out)
            yield contents_of(table.filter(is_known).column("content"))

    def _samples(self, shard: ShardRecord, table: Any, contents: Contents) -> ShardSamples:
        checksums = table.column("crc32c").to_numpy()
        return ShardSamples(shard, table.column("key").to_pylist(), contents, checksums.astype(np.uint32))

    def _of_others(self) -> Iterator[ShardSamples]:
        """Yield the samples of tars that others wrote, whose content is a digest of key and stored bytes."""
        for split in dict.fromkeys(shard.split for shard in self.shards):
            index = read_index(self._version, split)
            pieces = read_pieces(self._version / samples_name(split), ("key",))
            keys = [key for piece in pieces for key in piece.column("key").to_pylist()]
            for number, shard in enumerate(one for one in self.shards if one.split == split):
                rows = np.flatnonzero(index["shard"] == number)
                mine, checksums = [keys[row] for row in rows.tolist()], index["crc32c"][rows]
                facts = zip(mine, checksums.tolist(), strict=True)
                joined = b"".join(xxhash.xxh3_128_digest(f"{key}\0{crc}".encode()) for key, crc in facts)
                yield ShardSamples(shard, mine, np.frombuffer(joined, np.uint64).reshape(-1, 2), checksums)

    def _damaged(self, error: BaseException) -> DataError:
        problem = str(error).partition("\n")[0][:160]
        return DataError(f"{self._version / INPUTS}: cannot be read ({problem}); see `tarmac verify`")


@dataclass(frozen=True)
class ContentIndex:
    """Finds contents: their halves, sorted by the first, and their `rows`. They are digests, so no two differ
    in their second half alone."""

    first: NDArray[np.uint64]
    second: NDArray[np.uint64]
    rows: NDArray[np.int64]

    @classmethod
    def of(cls, contents: Contents) -> ContentIndex:
        """Number the contents by their rows; of equal ones the first row counts."""
        if not len(contents):
            empty = np.empty(0, np.uint64)
            return cls(empty, empty, np.empty(0, np.int64))
        first, rows = np.unique(contents[:, 0], return_index=True)
        return cls(first, contents[rows, 1], rows)

    def __len__(self) -> int:
        return len(self.first)

    def find(self, contents: Contents) -> NDArray[np.int64]:
        """Return [samples]: the row of each content, -1 where there is none."""
        if not len(self):
            return np.full(len(contents), -1, np.int64)
        at = np.minimum(np.searchsorted(self.first, contents[:, 0]), len(self) - 1)
        is_there = (self.first[at] == contents[:, 0]) & (self.second[at] == contents[:, 1])
        return np.where(is_there, self.rows[at], -1)


@dataclass(frozen=True)
class ScoreTable:
    """All scores of a model for a dataset, a row per sample and file. `values` are float32 by name, NaN where
    there is none; `rows` number the rows of each file."""

    files: Sequence[Path]
    file: NDArray[np.int32]
    rows: NDArray[np.int64]
    checksums: NDArray[np.uint32]
    values: Mapping[str, NDArray[np.float32]]
    index: ContentIndex

    @classmethod
    def read(cls, folder: Path, shards: Collection[ShardRecord] = ()) -> ScoreTable:
        """Read the files of a folder. Where several score a sample, that of one of `shards` counts. DataError
        for a file that cannot be read."""
        preferred = {score_file(folder, shard) for shard in shards}
        found = (path for path in folder.glob("*.parquet") if _FILE.fullmatch(path.name))
        files = sorted(found, key=lambda path: (path not in preferred, path.name))
        names = (CLIP_SCORE, OTHERS, AESTHETIC)
        pieces = [_read(path, ("content", "crc32c", *names)) for path in files]
        contents = [contents_of(piece.column("content")) for piece in pieces]
        counts = [piece.num_rows for piece in pieces]
        index = ContentIndex.of(np.concatenate([np.empty((0, 2), np.uint64), *contents]))
        values = {name: _joined([_floats(piece, name) for piece in pieces], np.float32) for name in names}
        values[SIMILARITY] = np.full(sum(counts), np.nan, np.float32)
        if (folder / DUPLICATES).exists():
            table = _read(folder / DUPLICATES, ("content", SIMILARITY))
            at = index.find(contents_of(table.column("content")))
            values[SIMILARITY][at[at >= 0]] = _floats(table, SIMILARITY)[at >= 0]
        return cls(
            files,
            np.repeat(np.arange(len(files), dtype=np.int32), counts),
            _joined([np.arange(rows) for rows in counts], np.int64),
            _joined([piece.column("crc32c").to_numpy() for piece in pieces], np.uint32),
            values,
            index,
        )

    def failing(self, rules: Mapping[str, Any]) -> NDArray[np.bool_]:
        """Return [rows]: whether a score does not meet its rule, a minimum or limits; one that is not there
        does."""
        fails = np.zeros(len(self.rows), bool)
        for name, rule in rules.items():
            low, high = (rule.min, rule.max) if isinstance(rule, Limits) else (rule, np.inf)
            fails |= (self.values[name] < np.float32(low)) | (self.values[name] > np.float32(high))
        return fails

    def of(self, name: str, contents: Contents) -> NDArray[np.float32]:
        """Return the values of one name for these contents, NaN where there is none."""
        at = self.index.find(contents)
        found = np.full(len(contents), np.nan, np.float32)
        found[at >= 0] = self.values[name][at[at >= 0]]
        return found


def read_rows(path: Path, columns: Sequence[str] | None = None) -> Any:
    """Return the table of a file of scores; DataError where it cannot be read."""
    return _read(path, columns)


def scored_columns(path: Path) -> tuple[frozenset[str], bytes] | None:
    """Return the columns of a file of scores and its metadata; None where there is none, or it was cut."""
    try:
        schema = pq.read_schema(path)
    except DAMAGED:
        return None
    return frozenset(schema.names), (schema.metadata or {}).get(METADATA, b"")


def remove_unknown(folder: Path, versions: Sequence[Path]) -> int:
    """Remove the files of shards that no version holds and of whose samples no version knows any; return
    their number."""
    samples = [VersionSamples(version) for version in versions]
    held = {score_file(folder, shard) for one in samples for shard in one.shards}
    loose = [path for path in folder.glob("*.parquet") if _FILE.fullmatch(path.name) and path not in held]
    if not loose:
        return 0
    pieces = [contents_of(_read(path, ("content",)).column("content")) for path in loose]
    file = np.repeat(np.arange(len(loose)), [len(piece) for piece in pieces])
    contents = np.concatenate(pieces)
    is_known = np.zeros(len(loose), bool)
    for one in samples:
        for known in one.known_contents():
            is_known[file[ContentIndex.of(known).find(contents) >= 0]] = True
    for path in (path for path, stays in zip(loose, is_known.tolist(), strict=True) if not stays):
        path.unlink()
    return int((~is_known).sum())


def _read(path: Path, columns: Sequence[str] | None) -> Any:
    try:
        there = pq.read_schema(path).names
        wanted = None if columns is None else [name for name in columns if name in there]
        return pq.read_table(path, columns=wanted)
    except DAMAGED as error:
        problem = str(error).partition("\n")[0][:160]
        raise DataError(
            f"{path}: cannot be read ({problem}); remove the file, and `tarmac score` makes it again"
        ) from None


def _floats(table: Any, name: str) -> NDArray[np.float32]:
    if name not in table.column_names:
        return np.full(table.num_rows, np.nan, np.float32)
    column = table.column(name).cast(pa.float32()).fill_null(np.nan)
    return np.asarray(column.to_numpy(), np.float32)


def _joined(pieces: Sequence[Any], kind: Any) -> Any:
    return np.concatenate([np.empty(0, kind), *pieces]).astype(kind)
