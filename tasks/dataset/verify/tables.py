"""The manifest and the table of shards: readable, and at one with each other.

Of every shard a few numbers are held, in arrays. Tables with a row a sample are read elsewhere, in pieces.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import ValidationError

from tasks.core.stores import Unreachable
from tasks.dataset.layout import shard_name
from tasks.dataset.manifest import Manifest, content_digest, version_name
from tasks.dataset.modalities import MODALITIES
from tasks.dataset.splits import FOLDERS
from tasks.dataset.verify.beside import Beside
from tasks.dataset.verify.faults import REBUILD, UPDATE
from tasks.dataset.verify.ledger import Ledger
from tasks.dataset.verify.parquet import Torn, open_parquet
from tasks.dataset.verify.recorded import MOST_JSON, told

MANIFEST, SHARDS = "manifest.json", "shards.parquet"
_SPLIT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_BLAKE3 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Shard:
    """A row of `shards.parquet`."""

    name: str
    split: str
    blake3: str
    bytes: int
    samples: int


@dataclass(frozen=True)
class SplitShards:
    """The shards of a split in order: `blake3` as ASCII, `bytes` and `samples` as int64."""

    split: str
    blake3: NDArray[np.bytes_]
    bytes: NDArray[np.int64]
    samples: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.bytes)

    def __iter__(self) -> Iterator[Shard]:
        return map(self.shard, range(len(self)))

    def shard(self, number: int) -> Shard:
        return Shard(
            shard_name(self.split, number),
            self.split,
            self.blake3[number].decode(),
            int(self.bytes[number]),
            int(self.samples[number]),
        )

    def number_of(self, blake3: str) -> int | None:
        """The first shard of this checksum."""
        found = np.flatnonzero(self.blake3 == blake3.encode())
        return int(found[0]) if len(found) else None

    @property
    def summary(self) -> tuple[int, int, int]:
        """Shards, samples and bytes, as the manifest counts them."""
        return len(self), int(self.samples.sum()), int(self.bytes.sum())


Shards = Mapping[str, SplitShards]


def every(shards: Shards) -> Iterator[Shard]:
    return (shard for split in shards.values() for shard in split)


def read_manifest(files: Beside, folder: str, ledger: Ledger) -> Manifest | None:
    """The manifest, None when it cannot be read; what is wrong with it goes into the ledger."""
    try:
        content = files.read(MANIFEST, MOST_JSON)
        manifest = Manifest.model_validate_json(content)
    except Unreachable:
        raise
    except OSError as error:
        ledger.add(MANIFEST, told(error))
        return None
    except ValidationError as error:
        problem, is_newer = _worded(error)
        ledger.add(MANIFEST, problem, UPDATE if is_newer else REBUILD)
        return None
    for split in manifest.splits:
        if not is_split(split):
            ledger.add(MANIFEST, f"{split!r} is no name of a split")
            return None
    name, place = version_name(content), PurePath(folder)
    if place.name == name:
        ledger.confirmed |= {MANIFEST}
    elif place.parent.name == "versions":
        ledger.add(MANIFEST, f"it was changed: its digest is {name}, not the folder's name")
    if manifest.modality not in MODALITIES:
        known = ", ".join(MODALITIES)
        ledger.add(MANIFEST, f"modality {manifest.modality!r} is none of {known}", UPDATE)
    if manifest.read != manifest.accepted + manifest.filtered + manifest.rejected:
        ledger.add(MANIFEST, "read is not accepted + filtered + rejected")
    return manifest


def is_split(name: str) -> bool:
    """Whether a split may have this name; other names could lead out of the version's folder."""
    return bool(_SPLIT.fullmatch(name)) and name not in FOLDERS


def _worded(error: ValidationError) -> tuple[str, bool]:
    """What is wrong with a manifest, and whether it is one of another Tarmac."""
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"]))
    if place == "format" and str(first["input"]).startswith("tarmac/"):
        return f"it is of format {first['input']!r}, which this program does not know", True
    return f"damaged: {place}: {first['msg']}" if place else f"damaged: {first['msg']}", False


def read_shards(files: Beside, manifest: Manifest | None, ledger: Ledger) -> Shards | None:
    """The shards by split, in order; None, with the reason in the ledger, when they cannot be known.

    A table that was changed and is not the manifest's would accuse shards that are sound.
    """
    columns = ("name", "split", "blake3", "bytes", "samples")
    try:
        table = open_parquet(files, SHARDS, columns)
        shards = _by_split(pa.concat_tables(table.batches(*columns)))
    except Torn as torn:
        ledger.add(SHARDS, str(torn))
        return None
    if manifest is not None and not _compare(shards, manifest, ledger):
        is_wrong = MANIFEST in ledger.confirmed and SHARDS not in ledger.confirmed
        return None if is_wrong else shards
    return shards


def _by_split(table: Any) -> Shards:
    """Torn unless the shards of every split are numbered from 0 without gaps, in order."""
    shards = {}
    splits = table.column("split")
    for split in splits.unique().to_pylist():
        if not is_split(split):
            raise Torn(f"{split!r} is no name of a split")
        mine = table.filter(pa.compute.equal(splits, split))
        for number, name in enumerate(mine.column("name").to_pylist()):
            if name != shard_name(split, number):
                raise Torn(f"{name} where {shard_name(split, number)} belongs")
        blake3 = mine.column("blake3").to_pylist()
        if not all(map(_BLAKE3.fullmatch, blake3)):
            raise Torn(f"what it gives for a BLAKE3 in {split} is none")
        sizes, samples = (_counts(mine, name) for name in ("bytes", "samples"))
        shards[split] = SplitShards(split, np.array(blake3, "S64"), sizes, samples)
    return shards


def _counts(table: Any, column: str) -> NDArray[np.int64]:
    try:
        values: NDArray[np.int64] = table.column(column).cast(pa.int64()).to_numpy()
    except pa.ArrowInvalid:
        raise Torn(f"{column} holds numbers beyond all measure") from None
    if (values < 0).any() or (values > 1 << 50).any():
        raise Torn(f"{column} holds numbers beyond all measure")
    return values


def _compare(shards: Shards, manifest: Manifest, ledger: Ledger) -> bool:
    """Whether these are the manifest's shards, as far as its digest tells."""
    is_same = content_digest((shard.name, shard.blake3) for shard in every(shards)) == manifest.digest
    if not is_same:
        ledger.at_odds(SHARDS, MANIFEST, "the checksums of the shards are not those of the manifest's digest")
    if manifest.accepted != sum(int(split.samples.sum()) for split in shards.values()):
        ledger.at_odds(SHARDS, MANIFEST, "its samples are not as many as the manifest's accepted")
    for split in sorted(manifest.splits.keys() | shards.keys()):
        counted = shards[split].summary if split in shards else (0, 0, 0)
        summary = manifest.splits.get(split)
        stated = (summary.shards, summary.samples, summary.bytes) if summary else (0, 0, 0)
        if counted != stated:
            problem = f"{split}: shards, samples, bytes are {counted}, in the manifest {stated}"
            ledger.at_odds(SHARDS, MANIFEST, problem)
            is_same = False
    return is_same
