"""What a new version has gained, lost and replaced against the one before: half a source must not pass
unnoticed, nor a sync that writes over it.

The guard holds as long as anything says what the current version had: its manifest, its tables of samples, or
the sidecars of its shards. Where nothing does, a person has to say that a loss is fine. Only the sidecars say
what a sample was made of; where they are lost, nobody can tell which samples were replaced.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import ValidationError

from tasks.core.errors import DataError, NeedsApproval
from tasks.core.schema import Dataset
from tasks.core.units import shorten
from tasks.dataset.build_info import read_build_info
from tasks.dataset.building.catalogue import Catalogue
from tasks.dataset.building.fingerprint import CONVERTER, reading_digest
from tasks.dataset.building.sidecar import accepted, first
from tasks.dataset.keys import key_of
from tasks.dataset.layout import INPUTS
from tasks.dataset.manifest import read_manifest
from tasks.dataset.tables import ArrowBatches, read_pieces, read_shards

ALLOWED = 0.05
"""Share of the samples that may go, or be written over, from one version to the next without a word from the
user."""
LISTED = 20
"""Samples that are shown to who is asked."""
MOST_FOLDERS = 1000
"""Folders by which samples are counted."""
FOLDERS = 3
"""Folders in a message."""
MADE_OF = ("key", "original_key", "content", "length", "crc32c")
"""Columns of a sidecar that tell whether a sample is what it was."""


@dataclass
class Affected:
    """Samples that something happened to: the first of them, and how many lay in which folder."""

    count: int = 0
    first: list[str] = field(default_factory=list)
    folders: Counter[str] = field(default_factory=Counter)

    def add(self, original_key: str) -> None:
        self.count += 1
        if len(self.first) < LISTED:
            self.first.append(original_key)
        folder = _folder(original_key)
        if folder in self.folders or len(self.folders) < MOST_FOLDERS:
            self.folders[folder] += 1

    def rows(self, what: str) -> Iterator[dict[str, Any]]:
        """A row per listed sample, folder by folder."""
        for name in sorted(self.first, key=lambda name: (_folder(name), name)):
            folder = _folder(name)
            in_all = self.folders.get(folder, 1)
            yield {"what": what, "folder": folder or "–", "in this folder": in_all, "sample": shorten(name)}

    def lines(self, what: str) -> Iterator[str]:
        """The folders that held most of them, on a line each."""
        for folder, count in self.folders.most_common(FOLDERS):
            example = next((name for name in self.first if _folder(name) == folder), None)
            where = f" under {shorten(folder)}" if folder else ""
            yield f"  {count:,} {what}{where}{'' if example is None else f', such as {shorten(example)}'}"


@dataclass(frozen=True)
class Changes:
    """Samples, told apart by their keys, of which `had` were there before (None: nothing says how many).

    The keys of `unread` of them cannot be read, so those count as lost. `replaced` have other bytes, because
    the source or the rules have changed; `overwritten` have other content in the source, read by the same
    rules (`is_read_alike`). `rekeyed` had other keys, as an earlier Tarmac made them of the same names.
    """

    gained: int
    lost: int
    had: int | None
    unread: int = 0
    replaced: int = 0
    rekeyed: int = 0
    overwritten: Affected = field(default_factory=Affected)
    gone: Affected = field(default_factory=Affected)
    is_read_alike: bool = True

    def check(self, before: Path | None, is_private: bool) -> None:
        """NeedsApproval when more than ALLOWED of the samples are gone or overwritten, or that cannot be
        known."""
        if before is None:
            return
        if self.had is None:
            raise NeedsApproval(
                f"neither manifest nor tables of the current version {before.name} can be read, so nobody "
                "knows which samples it had; `tarmac repair DATASET` mends them, or accept a loss"
            )
        if self.lost + self.overwritten.count <= ALLOWED * self.had:
            return
        if self.unread > ALLOWED * self.had:
            raise NeedsApproval(
                f"the keys of {self.unread:,} of the {self.had:,} samples of version {before.name} cannot be "
                "read, so nobody can tell whether they are still there; `tarmac repair DATASET` mends its "
                "tables, or accept a loss"
            )
        kinds = {"gone": self.gone, "overwritten": self.overwritten}
        lines = [line for what, some in kinds.items() for line in some.lines(what)]
        rows = [row for what, some in kinds.items() for row in some.rows(what)]
        raise NeedsApproval(
            "\n".join([self._question(before), *([] if is_private else lines)]),
            samples=[] if is_private else rows,
        )

    def _question(self, before: Path) -> str:
        overwritten = self.overwritten.count
        counts = [f"{self.lost:,} of the {self.had:,} samples of version {before.name} are gone"]
        if overwritten and self.lost:
            counts.append(f"{overwritten:,} are overwritten with other content")
        elif overwritten:
            counts = [
                f"{overwritten:,} of the {self.had:,} samples of version {before.name} are overwritten with "
                "other content in the source"
            ]
        share = (self.lost + overwritten) / (self.had or 1)
        cause = (
            "" if self.is_read_alike else ", and the source is read by other rules than then, such as its key"
        )
        return (
            f"{' and '.join(counts)} ({share:.1%}){cause}; the current version stays. Mend the source and "
            "run again, or accept the loss"
        )


NONE = Changes(0, 0, 0)


def since(before: Path | None, catalogue: Catalogue, dataset: Dataset, made: Path | None = None) -> Changes:
    """What the catalogue, which knows all rejects, has of the samples of an earlier version, and beyond.

    `made` is the new version's `inputs.arrow`; before there is one, nobody knows which samples are replaced.
    """
    now = catalogue.accepted - catalogue.rejected_entries
    if before is None:
        return Changes(now, 0, 0)
    untouched = set() if made is None else _note_converted(before, made, catalogue)
    seen = _Comparison(catalogue)
    seen.compare_sidecars(before, untouched)
    recorded = _recorded(before)
    if recorded is None or seen.read < recorded:
        others = _Comparison(catalogue)
        others.compare_tables(before)
        seen = max((seen, others), key=lambda one: one.read)
    if recorded is None and not seen.read:
        return Changes(now, 0, None)
    had = max(recorded or 0, seen.read)
    kept = seen.read - seen.gone.count
    is_read_alike = _is_read_alike(before, dataset)
    return Changes(
        gained=now - kept,
        lost=had - kept,
        had=had,
        unread=had - seen.read,
        replaced=seen.replaced,
        rekeyed=seen.rekeyed,
        overwritten=seen.overwritten if is_read_alike else Affected(),
        gone=seen.gone,
        is_read_alike=is_read_alike,
    )


class _Comparison:
    """Samples of an earlier version, looked up one after another."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self.read = self.replaced = self.rekeyed = 0
        self.gone, self.overwritten = Affected(), Affected()

    def compare_sidecars(self, version: Path, untouched: set[tuple[str, str | None]]) -> None:
        """Of a shard that is untouched every sample is there, as it was."""
        with contextlib.suppress(OSError, ValueError, pa.ArrowException):  # verify is who reports damage
            batches = ArrowBatches(version / INPUTS, ("planned", "blake3", "reason", *MADE_OF))
            for number in range(len(batches)):
                table = accepted(batches[number])
                if table.num_rows and _name(table) in untouched:
                    self.read += table.num_rows
                else:
                    self._compare(*(table.column(name).to_pylist() for name in MADE_OF))

    def compare_tables(self, version: Path) -> None:
        """The same samples in another file of the version, without what they were made of."""
        for path in sorted((version / "samples").glob("*.parquet")):
            with contextlib.suppress(DataError):
                for piece in read_pieces(path, MADE_OF[:2]):
                    self._compare(*(piece.column(name).to_pylist() for name in MADE_OF[:2]))

    def _compare(self, keys: Sequence[str], names: Sequence[str], *made_of: Sequence[Any]) -> None:
        facts = list(zip(*made_of, strict=True)) if made_of else [None] * len(keys)
        for key, name, was in zip(keys, names, facts, strict=True):
            self.read += 1
            found = self._catalogue.find(key)
            if found is None:
                renamed = key_of(name)
                if renamed != key and self._catalogue.find(renamed) is not None:
                    self.rekeyed += 1
                else:
                    self.gone.add(name)
            elif was is not None and found[0] is not None and found[1:] != was[1:]:
                self.replaced += 1
                if found[0] != was[0]:
                    self.overwritten.add(name)


def _note_converted(before: Path, made: Path, catalogue: Catalogue) -> set[tuple[str, str | None]]:
    """Note in the catalogue what the samples are made of whose shards the version before has not; the shards
    that it has."""
    had: set[tuple[str, str | None]] = set()
    with contextlib.suppress(OSError, ValueError, pa.ArrowException):
        batches = ArrowBatches(before / INPUTS, ("planned", "blake3"))
        had = {_name(batches[number]) for number in range(len(batches))}
    batches = ArrowBatches(made, ("planned", "blake3", "reason", *MADE_OF))
    found = set()
    for number in range(len(batches)):
        table = batches[number]
        if _name(table) in had:
            found.add(_name(table))
            continue
        columns = (accepted(table).column(name).to_pylist() for name in MADE_OF if name != "original_key")
        catalogue.note_converted(zip(*columns, strict=True))
    return found


def _name(sidecar: Any) -> tuple[str, str | None]:
    """What a shard was planned to hold, and the seal of what it holds: a --rehash converts by the same plan
    what has changed."""
    return first(sidecar, "planned"), first(sidecar, "blake3")


def _is_read_alike(before: Path, dataset: Dataset) -> bool:
    """Whether the version's sources were read by the rules of today. Where nothing says it, they count as
    that, as rules seldom change."""
    try:
        info = read_build_info(before)
        return info.converter == CONVERTER and (
            reading_digest(Dataset.model_validate(info.dataset)) == reading_digest(dataset)
        )
    except DataError:
        return True
    except ValidationError:
        return False  # the block of another Tarmac


def _recorded(version: Path) -> int | None:
    """How many samples the version had, by its manifest or its table of shards; None when neither can be
    read."""
    with contextlib.suppress(DataError):  # verify is who reports damage
        return read_manifest(version).accepted
    with contextlib.suppress(DataError):
        return sum(shard.samples for shard in read_shards(version))
    return None


def _folder(original_key: str) -> str:
    return original_key.rpartition("/")[0]
