"""What the files beside a version's tars record, as far as these files may be used.

A file whose seal is wrong is not used. A file that build.json does not seal, or that has lost its build.json,
is compared with the manifest and `shards.parquet`, and then, shard by shard, with the tars. The module `rows`
reads the tables; it imports numpy and Arrow, so it is imported only where the manifest does not prove all
tars.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tasks.dataset.verify.findings import Fix
from tasks.dataset.verify.seals import Misfit, VersionFiles, read_json_bytes
from tasks.dataset.verify.tars import is_indexed
from tasks.dataset.version.layout import (
    MANIFEST,
    MOST_SHARDS,
    REJECTS,
    SHARDS,
    VERSION_NAME,
    VERSIONS,
    index_name,
    is_split,
    samples_name,
    shard_name,
    sizes_name,
)
from tasks.dataset.version.manifest import Manifest, another_format, content_digest, version_name
from tasks.dataset.version.records import InvalidRecord, parse_record

if TYPE_CHECKING:
    from tasks.dataset.verify.scan import ShardTask
    from tasks.dataset.version.tables import ShardRecord

UPDATE = "update Tarmac if a newer one made this, else build the dataset again"
EMPTY: Mapping[str, str] = MappingProxyType({})


class VersionTables:
    """The content of the files that may be used.

    `there` are the version's tars, which show its splits where no table does.
    """

    def __init__(self, folder: str, files: VersionFiles, there: Collection[str]) -> None:
        self._folder, self._files, self._there = folder, files, there
        self._is_own = not is_indexed(folder)
        self._is_doubtful = False
        """Whether the manifest may be that of another dataset."""
        self.manifest = files.use(MANIFEST, self._read_manifest)
        of_splits = [of(split) for split in self.splits for of in (index_name, samples_name, sizes_name)]
        if any(map(files.is_unsealed, (MANIFEST, SHARDS, REJECTS, *of_splits))):
            self._compare()

    def is_compared(self, split: str) -> bool:
        """Whether index or samples of a split have no seal, so that they have to be compared with the
        tars."""
        return any(map(self._files.is_unsealed, (index_name(split), samples_name(split))))

    def _read_manifest(self, path: Path) -> Manifest | None:
        content = read_json_bytes(path)
        try:
            manifest = parse_record(Manifest, content)
        except InvalidRecord as error:
            another = another_format(error.given) if error.field == "format" else None
            fix = Fix.TABLE if another is None else UPDATE
            self._files.blame(MANIFEST, another or f"damaged: {error}", fix)
            return None
        if not all(map(is_split, manifest.splits)):
            raise Misfit("it names a split as none can be named")
        name, place = version_name(content), PurePath(self._folder)
        if place.parent.name == VERSIONS and place.name != name:
            if MANIFEST in self._files.sealed:
                remedy = f"rename the folder to {name}, which it was called when it was built"
                problem = f"its digest is {name}, not the folder's name"
                self._files.blame(MANIFEST, problem, remedy)
                return manifest
            raise Misfit(f"it was changed: its digest is {name}, not the folder's name")
        if VERSION_NAME.fullmatch(place.name) and place.name == name:
            self._files.sealed |= {MANIFEST}
        if manifest.read != manifest.accepted + manifest.filtered + manifest.rejected:
            raise Misfit("read is not accepted + filtered + rejected")
        return manifest

    @cached_property
    def shards(self) -> Mapping[str, Sequence[ShardRecord]] | None:
        """The shards by split, in order; None where `shards.parquet` cannot be used."""
        from tasks.dataset.verify import rows

        return self._files.use(SHARDS, lambda path: rows.by_split(path.parent))

    @cached_property
    def splits(self) -> list[str]:
        if self.manifest is not None:
            return sorted(self.manifest.splits)
        if self.shards is not None:
            return sorted(self.shards)
        return sorted({name.rpartition("/")[0] for name in self._there} - {""})

    @cached_property
    def counts(self) -> Mapping[str, Sequence[int]]:
        """The number of samples of each shard, by split: from `shards.parquet`, the index or the samples."""
        from tasks.dataset.verify import rows

        if self.shards is not None:
            return {split: [shard.samples for shard in mine] for split, mine in self.shards.items()}
        found = {}
        for split in self.splits:
            counts = self._files.use(index_name(split), rows.counts_by_index)
            if counts is None:
                counts = self._files.use(samples_name(split), rows.counts_by_samples)
            if counts is not None:
                found[split] = counts
        return found

    @cached_property
    def expected(self) -> Mapping[str, None]:
        """The names of the shards that should be there, in order."""
        if self.manifest is not None and (MANIFEST in self._files.sealed or self.shards is None):
            shards = {split: summary.shards for split, summary in self.manifest.splits.items()}
        else:
            shards = {split: len(counts) for split, counts in self.counts.items()}
        if not shards:
            return dict.fromkeys(self._there)
        return dict.fromkeys(
            shard_name(split, number)
            for split in sorted(shards)
            for number in range(min(shards[split], MOST_SHARDS))
        )

    @property
    def is_guess(self) -> bool:
        """Whether no table lists which shards there should be."""
        return self.manifest is None and not self.counts

    @cached_property
    def _records(self) -> Mapping[str, ShardRecord]:
        return {shard.name: shard for split in (self.shards or {}).values() for shard in split}

    def record(self, name: str) -> ShardRecord | None:
        """The row of a shard in `shards.parquet`; None where that table cannot be used."""
        return self._records.get(name)

    @cached_property
    def _names_by_blake3(self) -> Mapping[str, str]:
        return {shard.blake3: name for name, shard in reversed(list(self._records.items()))}

    def copied_by(self, name: str, blake3: str | None) -> str | None:
        """The other shard whose content a tar holds instead of its own."""
        record = self.record(name)
        is_own = record is not None and record.blake3 == blake3
        return None if blake3 is None or is_own else self._names_by_blake3.get(blake3)

    @property
    def samples(self) -> int:
        if self.manifest is not None:
            return self.manifest.accepted
        return sum(sum(counts) for counts in self.counts.values())

    def proven(self, digests: Mapping[str, str]) -> Collection[str]:
        """The shards that are as they were built, by the BLAKE3 of each tar that could be read.

        The manifest's digest proves all of them at once, without `shards.parquet`.
        """
        if self.manifest is not None and content_digest(digests.items()) == self.manifest.digest:
            return digests.keys()
        recorded = ((name, self.record(name)) for name in digests)
        return {name for name, record in recorded if record and record.blake3 == digests[name]}

    def _compare(self) -> None:
        """Compare manifest, tables and index with each other, as far as they have no seal."""
        from tasks.dataset.verify import rows

        manifest = self.manifest
        if manifest is not None:
            if self.shards is not None:
                self._compare_shards(self.shards, manifest)
            self._compare_file(REJECTS, rows.counts_by_reason, manifest.rejects, MANIFEST)
        for split, mine in (self.shards or {}).items():
            counts = [shard.samples for shard in mine]
            sizes = {PurePath(shard.name).name: shard.samples for shard in mine}
            self._compare_file(index_name(split), rows.counts_by_index, counts)
            self._compare_file(samples_name(split), rows.counts_by_samples, counts)
            self._compare_file(sizes_name(split), lambda path: json.loads(read_json_bytes(path)), sizes)

    def _compare_file(
        self, name: str, read: Callable[[Path], Any], expected: Any, other: str = SHARDS
    ) -> None:
        if name not in self._files.sealed and self._files.use(name, read) not in (None, expected):
            self._files.blame(name, f"it differs from {other}")

    def _compare_shards(self, shards: Mapping[str, Sequence[ShardRecord]], manifest: Manifest) -> None:
        from tasks.dataset.verify import rows

        problem = rows.difference(shards, manifest)
        if problem is None or {MANIFEST, SHARDS} <= self._files.sealed:
            return
        if SHARDS in self._files.sealed:
            self._files.blame(MANIFEST, problem)
            self.manifest = None
            return
        self._files.blame(SHARDS, problem)
        if MANIFEST in self._files.sealed:
            self.shards = None
        else:
            self._is_doubtful = True

    def tasks(
        self, names: Collection[str], proven: Mapping[str, str] = EMPTY, *, decodes: bool = False
    ) -> Iterator[ShardTask]:
        """A task for each of these shards, in order, with what the tables record of it; `proven` holds the
        BLAKE3 of those that the manifest proves."""
        from tasks.dataset.verify.scan import ShardTask
        from tasks.dataset.version.index import open_index

        left = dict.fromkeys(names)
        task = partial(ShardTask, self._folder, is_own=self._is_own, modality=self.modality, decodes=decodes)
        for split, counts in self.counts.items():
            stops = list(accumulate(counts))
            numbers = [number for number in range(len(counts)) if shard_name(split, number) in left]
            ranges = [(stops[number] - counts[number], stops[number]) for number in numbers]
            index = self._files.use(index_name(split), open_index) if numbers else None
            if index is not None and len(index) != sum(counts):
                index = None
            for number, (start, stop), keys in zip(numbers, ranges, self._keys(split, ranges), strict=True):
                name = shard_name(split, number)
                del left[name]
                record = self.record(name)
                yield task(
                    name,
                    blake3=proven.get(name) if record is None else record.blake3,
                    samples=counts[number],
                    index=None if index is None else index[start:stop].copy(),
                    keys=keys,
                    compares=self.is_compared(split),
                )
        yield from map(task, left)

    @cached_property
    def modality(self) -> str | None:
        """The manifest's modality, or None where it cannot be trusted or this program has no rules for it."""
        from tasks.dataset.modalities import MODALITIES

        if self.manifest is None or self._is_doubtful:
            return None
        if self.manifest.modality in MODALITIES:
            return self.manifest.modality
        known = ", ".join(MODALITIES)
        self._files.blame(MANIFEST, f"modality {self.manifest.modality!r} is none of {known}", UPDATE)
        return None

    def _keys(self, split: str, ranges: Sequence[tuple[int, int]]) -> Iterator[list[str] | None]:
        """The keys of each of these ascending ranges of rows; None where the table cannot be read."""
        from tasks.dataset.verify import rows

        name = samples_name(split)
        found = self._files.use(name, lambda path: rows.key_ranges(path, ranges)) if ranges else None
        for _ in ranges:
            yield None if found is None else self._files.use(name, lambda _: next(found))

    def where_else(self, keys: Collection[str], but: Collection[str]) -> Iterator[tuple[str, str]]:
        """The other shards that have one of these keys by the tables of samples, each with the key."""
        from tasks.dataset.verify import rows

        for split in self.splits:
            found = self._files.use(samples_name(split), lambda path: list(rows.holders(path, keys)))
            named = ((shard_name(split, number), key) for number, key in found or ())
            yield from ((name, key) for name, key in named if name not in but)
