"""A version as its tables tell it: what there should be, split by split, shard by shard.

Every table is used as far as it can be read: without `shards.parquet` the index still tells where samples
lie, without an index the table of samples still tells their keys.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tasks.dataset.layout import shard_name
from tasks.dataset.manifest import content_digest, version_name
from tasks.dataset.modalities import MODALITIES
from tasks.dataset.verify.agreement import check_rejects, check_sizes, sizes_name
from tasks.dataset.verify.beside import Beside
from tasks.dataset.verify.files import Expected
from tasks.dataset.verify.index import IndexFile, Misfit, index_name
from tasks.dataset.verify.leaks import check_groups
from tasks.dataset.verify.ledger import Ledger
from tasks.dataset.verify.lost import is_version_name
from tasks.dataset.verify.parquet import Torn
from tasks.dataset.verify.recorded import MOST_JSON
from tasks.dataset.verify.records import Task
from tasks.dataset.verify.samples_table import Rows, samples_name
from tasks.dataset.verify.tables import (
    MANIFEST,
    SHARDS,
    SplitShards,
    every,
    read_manifest,
    read_shards,
)

Part = TypeVar("Part")


@dataclass(frozen=True)
class Split:
    """The tables of one split, None where they cannot be used; `counts` are the samples of each shard.

    `is_confirmed` when all of them are as they were built.
    """

    name: str
    shards: SplitShards | None
    index: IndexFile | None
    rows: Rows | None
    counts: NDArray[np.int64]
    is_confirmed: bool

    def index_parts(self) -> Iterator[NDArray[np.void]] | None:
        return None if self.index is None else self.index.parts(self.counts)

    def keys(self) -> Iterator[list[str]] | None:
        return None if self.rows is None else self.rows.keys(self.counts)


class Version:
    """Reads the tables and compares them with each other; what is wrong goes into the ledger, which knows of
    their checksums.

    `is_quick` takes those for sound that are as they were built, by their checksums.
    """

    def __init__(self, files: Beside, folder: str, ledger: Ledger, is_quick: bool) -> None:
        self._files, self.ledger, self._is_quick = files, ledger, is_quick
        self.folder = folder
        self.manifest = read_manifest(files, folder, ledger)
        self.shards = read_shards(files, self.manifest, ledger)
        self.modality = self._modality()
        self.splits: list[Split] = []
        if self._is_wanted("rejects.parquet"):
            check_rejects(files, self.manifest, ledger)

    def _modality(self) -> str | None:
        """The modality whose rules are known; not that of a manifest that belongs to another version."""
        if self.manifest is None or self.manifest.modality not in MODALITIES or self._is_of_another():
            return None
        return self.manifest.modality

    def _is_of_another(self) -> bool:
        """Whether folder or shards say that the manifest, as sound as it may be, is not this version's."""
        if is_version_name(self.folder):
            return self._digest_name() != PurePath(self.folder).name
        if MANIFEST in self.ledger.confirmed or self.shards is None or self.manifest is None:
            return False
        return content_digest((one.name, one.blake3) for one in every(self.shards)) != self.manifest.digest

    @property
    def true_name(self) -> str | None:
        """What the folder was called when it was built, where it has another name now; None too where its
        manifest may have been changed instead."""
        folder = PurePath(self.folder)
        if folder.parent.name != "versions" or is_version_name(self.folder):
            return None
        return self._digest_name() if MANIFEST in self.ledger.confirmed else None

    def _digest_name(self) -> str:
        return version_name(self._files.read(MANIFEST, MOST_JSON))

    @property
    def split_names(self) -> list[str]:
        named = self.shards if self.shards is not None else self.manifest.splits if self.manifest else ()
        return sorted(named)

    def read_splits(self, there: Iterable[str]) -> None:
        """Read the tables of the splits, those of the tars that are there where no table names any."""
        names = self.split_names or sorted({name.rpartition("/")[0] for name in there} - {""})
        self.splits = [self._read_split(name) for name in names]
        rows = {split.name: split.rows for split in self.splits if split.rows is not None}
        if not self._is_quick or not self.ledger.confirmed.issuperset(map(samples_name, rows)):
            check_groups(rows, self.ledger)

    def expected(self, there: Collection[str]) -> Expected:
        """The shards that should be there, as far as any table tells."""
        if self.shards is not None:
            return Expected(self.shards, {split: len(mine) for split, mine in self.shards.items()})
        if self.manifest is not None:
            return Expected(None, {split: one.shards for split, one in self.manifest.splits.items()})
        return Expected(None, {split.name: len(split.counts) for split in self.splits}, there)

    @property
    def stated(self) -> dict[str, int]:
        """The samples of each shard by the index or the table of samples; only without `shards.parquet`."""
        if self.shards is not None:
            return {}
        return {
            shard_name(split.name, number): int(count)
            for split in self.splits
            for number, count in enumerate(split.counts)
        }

    def _is_wanted(self, file: str) -> bool:
        return not (self._is_quick and file in self.ledger.confirmed)

    def _read_split(self, split: str) -> Split:
        shards = None if self.shards is None else self.shards.get(split)
        if shards is not None and self._is_wanted(sizes_name(split)):
            check_sizes(self._files, shards, self.ledger)
        index, index_counts = self._index(split, shards)
        rows, row_counts = self._rows(split, shards)
        counts = shards.samples if shards is not None else index_counts if index is not None else row_counts
        if index is not None and rows is not None and not np.array_equal(index_counts, row_counts):
            self.ledger.at_odds(samples_name(split), index_name(split), "its rows are not those of the index")
            rows = None
        files = (SHARDS, index_name(split), samples_name(split))
        is_confirmed = shards is not None and self.ledger.confirmed.issuperset(files)
        return Split(split, shards, index, rows, counts, is_confirmed)

    def _index(self, split: str, shards: SplitShards | None) -> tuple[IndexFile | None, NDArray[np.int64]]:
        name = index_name(split)
        try:
            index = IndexFile(self._files, split)
        except Misfit as misfit:
            self.ledger.add(name, str(misfit))
            return None, np.zeros(0, np.int64)
        try:
            if shards is None:
                return index, index.counts()
            if self._is_wanted(name):
                index.check(shards)
            return index, shards.samples
        except Misfit as misfit:
            self.ledger.at_odds(name, SHARDS, str(misfit))
            return None, np.zeros(0, np.int64)

    def _rows(self, split: str, shards: SplitShards | None) -> tuple[Rows | None, NDArray[np.int64]]:
        name = samples_name(split)
        is_sound = name in self.ledger.confirmed
        try:
            rows = Rows(self._files, split)
        except Torn as torn:
            self.ledger.add(name, str(torn))
            return None, np.zeros(0, np.int64)
        try:
            if shards is None or self._is_wanted(name):
                return rows, rows.check(shards, with_keys=not is_sound)
            return rows, shards.samples
        except Torn as torn:
            self.ledger.at_odds(name, SHARDS, str(torn))
            return None, np.zeros(0, np.int64)

    def tasks(self, there: Collection[str], decodes: bool) -> Iterator[Task]:
        """A look for each shard of the tables, in order, whether it is there or not; then, where there is no
        table of the shards, for the other tars."""
        for split in self.splits:
            index = self._parts(split.index_parts(), index_name(split.name))
            keys = self._parts(split.keys(), samples_name(split.name))
            for number in range(len(split.counts)):
                yield Task(
                    folder=self.folder,
                    name=shard_name(split.name, number),
                    expected=None if split.shards is None else split.shards.shard(number),
                    index=next(index),
                    keys=next(keys),
                    is_confirmed=split.is_confirmed,
                    modality=self.modality,
                    decodes=decodes,
                )
        if self.shards is None:
            known = Expected(None, {split.name: len(split.counts) for split in self.splits})
            for name in sorted(name for name in there if name not in known):
                yield Task(folder=self.folder, name=name, modality=self.modality, decodes=decodes)

    def _parts(self, parts: Iterator[Part] | None, file: str) -> Iterator[Part | None]:
        """The parts of a table; None for ever where it has none, or from where it is torn."""
        try:
            if parts is not None:
                yield from parts
        except (Torn, Misfit) as problem:
            self.ledger.add(file, str(problem))
        while True:
            yield None

    def keys_of(self, wanted: Mapping[str, Collection[int]]) -> Iterator[tuple[str, str]]:
        """The keys of these shards as the tables of samples have them."""
        for split in self.splits:
            if split.rows is None or not any(name.startswith(f"{split.name}/") for name in wanted):
                continue
            for number, keys in enumerate(self._parts(split.keys(), split.rows.name)):
                name = shard_name(split.name, number)
                if keys is None:
                    break
                if name in wanted:
                    yield from ((name, key) for key in keys)
