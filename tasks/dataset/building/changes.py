"""Compares a new version with the previous one: gained, lost and replaced samples. The loss of half a source,
or a sync that overwrites it, must not pass unnoticed.

The guard works as long as anything records what the current version had: its manifest, its tables of samples,
or the sidecars of its shards. Otherwise the user has to accept a loss. Only the sidecars record what a sample
was made of, so without them replaced samples cannot be recognised.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ValidationError

from tasks.core.errors import DataError, NeedsApproval
from tasks.core.schema import Dataset
from tasks.core.units import shorten
from tasks.dataset.building.conversion.sidecar import accepted, first
from tasks.dataset.building.fingerprint import CONVERTER, reading_digest
from tasks.dataset.building.listed.catalogue import Catalogue
from tasks.dataset.keys import key_of
from tasks.dataset.version.build_info import read_build_info
from tasks.dataset.version.layout import INPUTS
from tasks.dataset.version.manifest import read_manifest
from tasks.dataset.version.rejects import FILTERED
from tasks.dataset.version.tables import ArrowBatches, read_pieces, read_shards

ALLOWED = 0.05
"""The share of samples that may disappear or be overwritten from one version to the next without approval."""
LISTED = 20
"""Samples that the request for approval shows."""
MOST_FOLDERS = 1000
"""Folders for which samples are counted."""
FOLDERS = 3
"""Folders in a message."""
MADE_OF = ("key", "original_key", "content", "length", "crc32c")
"""Columns of a sidecar that show whether a sample has changed."""


@dataclass
class Affected:
    """Samples that are gone or overwritten: their count, the first of them, and counts by folder."""

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
        """Yield one row per listed sample, folder by folder."""
        for name in sorted(self.first, key=lambda name: (_folder(name), name)):
            folder = _folder(name)
            in_all = self.folders.get(folder, 1)
            yield {"what": what, "folder": folder or "–", "in this folder": in_all, "sample": shorten(name)}

    def lines(self, what: str) -> Iterator[str]:
        """Yield one line for each of the folders that held most of them."""
        for folder, count in self.folders.most_common(FOLDERS):
            example = next((name for name in self.first if _folder(name) == folder), None)
            where = f" under {shorten(folder)}" if folder else ""
            yield f"  {count:,} {what}{where}{'' if example is None else f', such as {shorten(example)}'}"


@dataclass(frozen=True)
class Changes:
    """Changes from the previous version, which had `had` samples (None if that is not recorded), by key.

    The keys of `unread` samples cannot be read, so those count as lost. `replaced` ones have other bytes,
    because the source or the rules have changed. `overwritten` ones have other content in the source, read by
    the same rules (`is_read_alike`). `rekeyed` ones had other keys, which an earlier Tarmac made from the
    same names.
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
    filtered: int = 0
    """How many of the lost ones a rule on their statistics leaves out now, which is no loss of the source."""

    @property
    def counts(self) -> dict[str, Any]:
        """The counts that build.json and the result of a build show."""
        return {name: getattr(self, name) for name in ("gained", "lost", "replaced", "rekeyed")}

    def check(self, before: Path | None, is_private: bool) -> None:
        """NeedsApproval if more than ALLOWED of the samples are gone or overwritten, or if that is
        unknown."""
        if before is None:
            return
        if self.had is None:
            raise NeedsApproval(
                f"neither manifest nor tables of the current version {before.name} can be read, so it is "
                "unknown which samples it had; `tarmac repair DATASET` repairs them, or accept a loss"
            )
        if self.lost - self.filtered + self.overwritten.count <= ALLOWED * self.had:
            return
        if self.unread > ALLOWED * self.had:
            raise NeedsApproval(
                f"the keys of {self.unread:,} of the {self.had:,} samples of version {before.name} cannot be "
                "read, so it is unknown whether they are still there; `tarmac repair DATASET` repairs its "
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
        gone, overwritten = self.lost - self.filtered, self.overwritten.count
        had = f"of the {self.had:,} samples of version {before.name} are"
        if not overwritten:
            changed = f"{gone:,} {had} gone"
        elif gone:
            changed = f"{gone:,} {had} gone and {overwritten:,} are overwritten with other content"
        else:
            changed = f"{overwritten:,} {had} overwritten with other content in the source"
        share = (gone + overwritten) / (self.had or 1)
        stays = "the current version stays"
        if self.is_read_alike:
            return f"{changed} ({share:.1%}); {stays}. Mend the source and run again, or accept the loss"
        return (
            f"{changed} ({share:.1%}), because the source is now read by other rules, such as another key; "
            f"{stays}. Take that change back, or accept that samples have other names"
        )


NONE = Changes(0, 0, 0)


def since(before: Path | None, catalogue: Catalogue, dataset: Dataset, made: Path | None = None) -> Changes:
    """Compare the catalogue, in which all rejects are noted, with the samples of the version before.

    `made` is the new version's `inputs.arrow`; without it, replaced samples cannot be recognised.
    """
    now = catalogue.accepted - catalogue.left_out_in_conversion
    if before is None:
        return Changes(now, 0, 0)
    untouched = set() if made is None else _note_converted(before, made, catalogue)
    found = _Comparison(catalogue)
    found.compare_sidecars(before, untouched)
    recorded = _recorded(before)
    if recorded is None or found.read < recorded:
        by_tables = _Comparison(catalogue)
        by_tables.compare_tables(before)
        found = max((found, by_tables), key=lambda one: one.read)
    if recorded is None and not found.read:
        return Changes(now, 0, None)
    had = max(recorded or 0, found.read)
    kept = found.read - found.gone.count - found.filtered
    is_read_alike = _is_read_alike(before, dataset)
    return Changes(
        gained=now - kept,
        lost=had - kept,
        had=had,
        unread=had - found.read,
        replaced=found.replaced,
        rekeyed=found.rekeyed,
        overwritten=found.overwritten if is_read_alike else Affected(),
        gone=found.gone,
        filtered=found.filtered,
        is_read_alike=is_read_alike,
    )


class _Comparison:
    """Looks up the samples of an earlier version in the catalogue, one after another."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self.read = self.replaced = self.rekeyed = self.filtered = 0
        self.gone, self.overwritten = Affected(), Affected()

    def compare_sidecars(self, version: Path, untouched: set[tuple[str, str | None]]) -> None:
        """Compare by the version's sidecars. All samples of an untouched shard still exist unchanged."""
        with contextlib.suppress(OSError, ValueError, pa.ArrowException):  # verify reports damage
            for batch in ArrowBatches(version / INPUTS, ("planned", "blake3", "reason", *MADE_OF)):
                table = accepted(batch)
                if table.num_rows and _name(table) in untouched:
                    self.read += table.num_rows
                else:
                    self._compare(*(table.column(name).to_pylist() for name in MADE_OF))

    def compare_tables(self, version: Path) -> None:
        """Compare by the version's tables of samples, which do not record what samples were made of."""
        for path in sorted((version / "samples").glob("*.parquet")):
            with contextlib.suppress(DataError):
                for piece in read_pieces(path, MADE_OF[:2]):
                    self._compare(*(piece.column(name).to_pylist() for name in MADE_OF[:2]))

    def _compare(self, keys: Sequence[str], names: Sequence[str], *made_of: Sequence[Any]) -> None:
        facts = list(zip(*made_of, strict=True)) if made_of else [None] * len(keys)
        for key, name, was in zip(keys, names, facts, strict=True):
            self.read += 1
            found = self._catalogue.find(key)
            if found is None and (left_out := self._catalogue.find_filtered(key)):
                self.filtered += 1
                if was is not None and left_out[0] not in (None, was[0]):
                    self.overwritten.add(name)
            elif found is None:
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
    """Note in the catalogue what the samples of new shards are made of, and return the shards that the
    version before has already."""
    had: set[tuple[str, str | None]] = set()
    with contextlib.suppress(OSError, ValueError, pa.ArrowException):
        had = {_name(table) for table in ArrowBatches(before / INPUTS, ("planned", "blake3"))}
    found = set()
    for table in ArrowBatches(made, ("planned", "blake3", "reason", *MADE_OF)):
        if _name(table) in had:
            found.add(_name(table))
            continue
        reasons = table.column("reason")
        converted = table.filter(pc.or_kleene(reasons.is_null(), pc.equal(reasons, FILTERED)))
        columns = (converted.column(name).to_pylist() for name in MADE_OF if name != "original_key")
        catalogue.note_converted(zip(*columns, strict=True))
    return found


def _name(sidecar: Any) -> tuple[str, str | None]:
    """Return what a shard was planned to hold, and the seal of what it holds: --rehash converts changed
    samples again by the same plan."""
    return first(sidecar, "planned"), first(sidecar, "blake3")


def _is_read_alike(before: Path, dataset: Dataset) -> bool:
    """Whether the version's sources were read by today's rules. If that is not recorded, the answer is yes,
    because rules seldom change."""
    try:
        info = read_build_info(before)
        return info.converter == CONVERTER and (
            reading_digest(Dataset.model_validate(info.dataset)) == reading_digest(dataset)
        )
    except DataError:
        return True
    except ValidationError:
        return False  # another Tarmac wrote the block


def _recorded(version: Path) -> int | None:
    """Return the version's number of samples by its manifest or its table of shards; None if neither can be
    read."""
    with contextlib.suppress(DataError):  # verify reports damage
        return read_manifest(version).accepted
    with contextlib.suppress(DataError):
        return sum(shard.samples for shard in read_shards(version))
    return None


def _folder(original_key: str) -> str:
    return original_key.rpartition("/")[0]
