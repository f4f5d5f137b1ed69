"""The files beside a version's tars: which have their seal, and what those that may be used say.

build.json seals them all. A file whose seal is wrong is at fault and is not used. Where build.json is lost,
or does not name a file, what it says is compared with the manifest and `shards.parquet`, and then, shard by
shard, with the tars.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from tasks.core.files import blake3_file
from tasks.core.process import available_cores
from tasks.core.stores import Unreachable
from tasks.dataset.build_info import FileSeal, parse_build_info
from tasks.dataset.layout import (
    BUILD,
    MANIFEST,
    REJECTS,
    SHARDS,
    VERSION_NAME,
    VERSIONS,
    index_name,
    samples_name,
    shard_name,
    sizes_name,
)
from tasks.dataset.manifest import Manifest, content_digest, first_problem, version_name
from tasks.dataset.verify.report import Fault, Fix, file_fault
from tasks.dataset.verify.tars import VersionFiles

if TYPE_CHECKING:
    from tasks.dataset.tables import ShardRecord
    from tasks.dataset.verify.shard import ShardTask

MOST_JSON = 64_000_000
"""Bytes of a JSON file: sizes.json takes 25 for each shard."""
MOST_NAMED = 1_000_000
"""Shards of a split that a damaged table can make anybody look for."""
DIGITS = 12
"""Of a checksum, for a message."""
UPDATE = "update Tarmac if a newer one made this, else build the dataset again"
_SPLIT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
Read = TypeVar("Read")


def rows() -> Any:
    """The module that reads rows, which brings numpy and Arrow: a sound version is proven without them."""
    from tasks.dataset.verify import rows as module

    return module


class Misfit(ValueError):
    """A table that is none, or one of other shards; the text says why."""


class Tables:
    """What the files say that may be used; what is wrong with the others is in `faults`.

    `there` are the version's tars, which tell what splits there are where no table does.
    """

    def __init__(self, folder: str, files: VersionFiles, there: Collection[str]) -> None:
        self._folder, self._files, self._there = folder, files, there
        self.faults: dict[str, Fault] = {}
        self._is_doubtful = False
        """Whether the manifest may be that of another dataset."""
        self.sealed = self._check_seals()
        self.manifest = self._use(MANIFEST, self._read_manifest)
        if not self._is_all_sealed:
            self._compare()

    # Seals.

    def _check_seals(self) -> frozenset[str]:
        """The files whose BLAKE3 is the one in build.json, which seals itself."""
        seals = self._use(BUILD, self._read_seals) or {}
        with ThreadPoolExecutor(available_cores()) as pool:
            problems = dict(zip(seals, pool.map(self._difference, seals, seals.values()), strict=True))
        for name, problem in problems.items():
            if problem is not None:
                self._blame(name, problem)
        return frozenset(name for name in seals if name not in self.faults)

    def _read_seals(self, path: Path) -> Mapping[str, FileSeal]:
        content = read_json_bytes(path)
        try:
            return parse_build_info(content).files
        except (ValueError, RecursionError) as error:
            fix = Fix.TABLE if _has_config(content) else Fix.SEAL
            self._blame(BUILD, f"it {str(error)[:100]}", fix)
            return {}

    def _difference(self, name: str, seal: FileSeal) -> str | OSError | None:
        try:
            path = self._files.require(name)
            size = path.stat().st_size
            if size != seal.bytes:
                return f"{size:,} bytes, {seal.bytes:,} when it was built"
            found = blake3_file(path)
        except Unreachable:
            raise
        except OSError as error:
            return error
        if found == seal.blake3:
            return None
        return f"its bytes are not those that were built: BLAKE3 {found[:DIGITS]}, not {seal.blake3[:DIGITS]}"

    @property
    def _is_all_sealed(self) -> bool:
        """Whether every file that a version must have has its seal or is at fault already."""
        return all(name in self.sealed or name in self.faults for name in self._needed())

    def _needed(self) -> Iterator[str]:
        yield from (MANIFEST, SHARDS, REJECTS)
        for split in self.splits:
            yield from (index_name(split), samples_name(split), sizes_name(split))

    def is_compared(self, split: str) -> bool:
        """Whether index or samples of a split have no seal, so that they are to be compared with the tars."""
        names = (index_name(split), samples_name(split))
        return any(name not in self.sealed and name not in self.faults for name in names)

    def _blame(self, name: str, problem: str | OSError, fix: Fix | str = Fix.TABLE) -> None:
        if isinstance(problem, PermissionError):
            fix = Fix.RIGHTS
        elif isinstance(problem, FileNotFoundError) and name == BUILD:
            fix = Fix.SEAL
        self.faults.setdefault(name, file_fault(name, _worded(problem), fix))

    def note(self, name: str, **evidence: str) -> None:
        """Add to what is said of a file that is at fault."""
        known = self.faults.get(name)
        if known is not None:
            self.faults[name] = replace(known, evidence={**known.evidence, **evidence})

    def _use(self, name: str, read: Callable[[Path], Read]) -> Read | None:
        """What `read` makes of a file; None where it is at fault."""
        if name in self.faults:
            return None
        try:
            return read(self._files.require(name))
        except Unreachable:
            raise
        except (OSError, Misfit) as error:
            self._blame(name, error if isinstance(error, OSError) else str(error))
        except Exception as error:  # noqa: BLE001 - libraries raise whatever torn files lead them to
            self._blame(name, f"torn: it cannot be read ({type(error).__name__})")
        return None

    # Manifest and shards.

    def _read_manifest(self, path: Path) -> Manifest | None:
        content = read_json_bytes(path)
        try:
            manifest = Manifest.model_validate_json(content)
        except ValidationError as error:
            first = error.errors()[0]
            is_newer = first["loc"] == ("format",) and str(first["input"]).startswith("tarmac/")
            self._blame(MANIFEST, f"damaged: {first_problem(error)}", UPDATE if is_newer else Fix.TABLE)
            return None
        if not all(map(is_split, manifest.splits)):
            raise Misfit("it names a split as none can be named")
        name, place = version_name(content), PurePath(self._folder)
        if place.parent.name == VERSIONS and place.name != name:
            if MANIFEST in self.sealed:
                remedy = f"rename the folder to {name}, which it was called when it was built"
                problem = f"its digest is {name}, not the folder's name"
                self.faults[MANIFEST] = file_fault(MANIFEST, problem, remedy)
                return manifest
            raise Misfit(f"it was changed: its digest is {name}, not the folder's name")
        if VERSION_NAME.fullmatch(place.name) and place.name == name:
            self.sealed |= {MANIFEST}
        if manifest.read != manifest.accepted + manifest.filtered + manifest.rejected:
            raise Misfit("read is not accepted + filtered + rejected")
        return manifest

    @cached_property
    def shards(self) -> Mapping[str, Sequence[ShardRecord]] | None:
        """The shards by split, in order; None where `shards.parquet` cannot be used."""
        return self._use(SHARDS, lambda path: rows().by_split(path.parent))

    @cached_property
    def splits(self) -> list[str]:
        if self.manifest is not None:
            return sorted(self.manifest.splits)
        if self.shards is not None:
            return sorted(self.shards)
        return sorted({name.rpartition("/")[0] for name in self._there} - {""})

    @cached_property
    def counts(self) -> Mapping[str, Sequence[int]]:
        """The samples of each shard, split by split, by `shards.parquet`, the index or the samples."""
        if self.shards is not None:
            return {split: [shard.samples for shard in mine] for split, mine in self.shards.items()}
        found = {}
        for split in self.splits:
            counts = self._use(index_name(split), rows().counts_by_index)
            if counts is None:
                counts = self._use(samples_name(split), rows().counts_by_samples)
            if counts is not None:
                found[split] = counts
        return found

    @cached_property
    def expected(self) -> Mapping[str, None]:
        """The names of the shards that should be there, in order."""
        if self.manifest is not None and (MANIFEST in self.sealed or self.shards is None):
            shards = {split: summary.shards for split, summary in self.manifest.splits.items()}
        else:
            shards = {split: len(counts) for split, counts in self.counts.items()}
        if not shards:
            return dict.fromkeys(self._there)
        return dict.fromkeys(
            shard_name(split, number)
            for split in sorted(shards)
            for number in range(min(shards[split], MOST_NAMED))
        )

    @property
    def is_guess(self) -> bool:
        """Whether no table says which shards there should be."""
        return self.manifest is None and not self.counts

    @cached_property
    def _records(self) -> Mapping[str, ShardRecord]:
        return {shard.name: shard for split in (self.shards or {}).values() for shard in split}

    def record(self, name: str) -> ShardRecord | None:
        """What `shards.parquet` says of a shard; None where it cannot be used."""
        return self._records.get(name)

    @cached_property
    def _names_by_blake3(self) -> Mapping[str, str]:
        return {shard.blake3: name for name, shard in reversed(list(self._records.items()))}

    def named_by(self, blake3: str) -> str | None:
        """The first shard that has this content."""
        return self._names_by_blake3.get(blake3)

    @property
    def samples(self) -> int:
        if self.manifest is not None:
            return self.manifest.accepted
        return sum(sum(counts) for counts in self.counts.values())

    def proven(self, digests: Mapping[str, str]) -> frozenset[str]:
        """The shards that are as they were built, by the BLAKE3 of each tar that could be read.

        The manifest's digest proves all of them at once, without `shards.parquet`.
        """
        if self.manifest is not None and content_digest(digests.items()) == self.manifest.digest:
            return frozenset(digests)
        found = ((name, self.record(name)) for name in digests)
        return frozenset(
            name for name, record in found if record is not None and record.blake3 == digests[name]
        )

    # What no seal proves is compared.

    def _compare(self) -> None:
        """Manifest, tables and index with each other, as far as they have no seal."""
        shards, manifest = self.shards, self.manifest
        if shards is not None and manifest is not None:
            self._compare_shards(shards, manifest)
        if manifest is not None and REJECTS not in self.sealed:
            self._use(REJECTS, lambda path: rows().require_rejects(path, manifest))
        for split, mine in (shards or {}).items():
            for name, require in (
                (index_name(split), rows().require_index),
                (samples_name(split), rows().require_samples),
                (sizes_name(split), rows().require_sizes),
            ):
                if name not in self.sealed:
                    self._use(name, partial(require, shards=mine))

    def _compare_shards(self, shards: Mapping[str, Sequence[ShardRecord]], manifest: Manifest) -> None:
        if MANIFEST in self.sealed and SHARDS in self.sealed:
            return
        problem = None
        if (
            content_digest((shard.name, shard.blake3) for mine in shards.values() for shard in mine)
            != manifest.digest
        ):
            problem = "the checksums of the shards are not those of the manifest's digest"
        elif manifest.accepted != sum(shard.samples for mine in shards.values() for shard in mine):
            problem = "its samples are not as many as the manifest's accepted"
        else:
            for split in sorted(manifest.splits.keys() | shards.keys()):
                mine, summary = shards.get(split, ()), manifest.splits.get(split)
                counted = (len(mine), sum(one.samples for one in mine), sum(one.bytes for one in mine))
                stated = (summary.shards, summary.samples, summary.bytes) if summary else (0, 0, 0)
                if counted != stated:
                    problem = f"{split}: shards, samples, bytes are {counted}, in the manifest {stated}"
        if problem is not None:
            wrong, right = (MANIFEST, SHARDS) if SHARDS in self.sealed else (SHARDS, MANIFEST)
            self._blame(wrong, problem)
            if wrong == MANIFEST:
                self.manifest = None
            elif right in self.sealed:
                self.__dict__["shards"] = None
            else:
                self._is_doubtful = True

    # Shards to examine.

    def tasks(self, names: Collection[str], *, decodes: bool = False) -> Iterator[ShardTask]:
        """A task for each of these shards, in order, with what the tables say of it."""
        from tasks.dataset.verify.shard import ShardTask

        modality = self.modality() if names else None
        told = set()
        for split, counts in self.counts.items():
            stops = list(accumulate(counts))
            numbers = [number for number in range(len(counts)) if shard_name(split, number) in names]
            ranges = [(stops[number] - counts[number], stops[number]) for number in numbers]
            index = self._use(index_name(split), rows().open_index)
            if index is not None and len(index) != sum(counts):
                index = None
            keys = self._keys(split, ranges)
            for number, (start, stop) in zip(numbers, ranges, strict=True):
                name = shard_name(split, number)
                record = self.record(name)
                told.add(name)
                yield ShardTask(
                    self._folder,
                    name,
                    blake3=None if record is None else record.blake3,
                    samples=counts[number],
                    index=None if index is None else index[start:stop].copy(),
                    keys=next(keys),
                    compares=self.is_compared(split),
                    is_own=True,
                    modality=modality,
                    decodes=decodes,
                )
        for name in names:
            if name not in told:
                yield ShardTask(self._folder, name, is_own=True, modality=modality, decodes=decodes)

    def modality(self) -> str | None:
        """The modality whose rules are known."""
        from tasks.dataset.modalities import MODALITIES

        if self.manifest is None or self._is_doubtful:
            return None
        if self.manifest.modality in MODALITIES:
            return self.manifest.modality
        known = ", ".join(MODALITIES)
        self._blame(MANIFEST, f"modality {self.manifest.modality!r} is none of {known}", UPDATE)
        return None

    def _keys(self, split: str, ranges: Sequence[tuple[int, int]]) -> Iterator[list[str] | None]:
        """The keys of each of these ranges of rows, which ascend; None where the table cannot be read."""
        name = samples_name(split)
        found = self._use(name, lambda path: rows().key_ranges(path, ranges)) if ranges else None
        for _ in ranges:
            yield None if found is None else self._use(name, partial(_next, found))

    def can_tell_keys(self, split: str) -> bool:
        """Whether the keys of a split's shards are known without reading them."""
        return samples_name(split) not in self.faults

    def where_else(self, keys: Collection[str], but: Collection[str]) -> Iterator[tuple[str, str]]:
        """Other shards that have one of these keys by the tables of samples, and the key."""
        for split in self.splits:
            found = self._use(samples_name(split), lambda path: list(rows().holders(path, keys)))
            for number, key in found or ():
                name = shard_name(split, number)
                if name not in but:
                    yield name, key


def _next(parts: Iterator[Read], _: Path) -> Read:
    return next(parts)


def is_split(name: str) -> bool:
    """Whether a split may have this name; other names could lead out of the version's folder."""
    return bool(_SPLIT.fullmatch(name))


def _worded(problem: str | OSError) -> str:
    if isinstance(problem, FileNotFoundError | NotADirectoryError):
        return "missing"
    return problem if isinstance(problem, str) else f"unreadable: {problem.strerror or problem}"


def read_json_bytes(path: Path) -> bytes:
    if path.stat().st_size > MOST_JSON:
        raise Misfit(f"it has more than {MOST_JSON:,} bytes")
    return path.read_bytes()


def _has_config(content: bytes) -> bool:
    """Whether a damaged build.json still says what a repair needs."""
    try:
        return isinstance(json.loads(content)["dataset"], dict)
    except (ValueError, TypeError, KeyError, RecursionError):
        return False
