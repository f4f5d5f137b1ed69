"""A damaged version made whole again, from what is left of it, from its neighbours, from its source.

Verify says what is damaged; only that is touched, and nothing takes its place that is not proven to be the
same bytes: a tar by its BLAKE3 in shards.parquet, tables by the manifest and build.json's record, the
manifest by the version's name. Each file is renamed into place when it is proven, so a repair that is killed
loses what it had in hand, and the next one goes on.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from tasks.core.errors import DataError
from tasks.core.files import disk_full_as_error
from tasks.core.findings import Finding
from tasks.core.schema import Config
from tasks.core.screen import Progress, no_progress
from tasks.dataset import quarantine
from tasks.dataset.layout import BUILD
from tasks.dataset.repair.aside import Aside, set_aside
from tasks.dataset.repair.beside import Tables
from tasks.dataset.repair.identity import read_proven_manifest, read_record
from tasks.dataset.repair.origin import read_build, read_origin
from tasks.dataset.repair.outcome import MEND, REBUILD, Done, Failed
from tasks.dataset.repair.place import Place, find, require_readable
from tasks.dataset.repair.recipes import read_recipes
from tasks.dataset.repair.shards import ShardRepair, repair_shards
from tasks.dataset.verify.outcome import BadSample
from tasks.dataset.verify.run import Level, verify

__all__ = ["Repaired", "repair"]

UNTANGLE = "mend quarantine.jsonl by hand and repair again"
AS_BUILT = "its bytes are as they were built, so what is bad came so from the source"


@dataclass(frozen=True)
class Repaired:
    """What a repair did. `findings` are what remains; it is `ok` when nothing does, or when all that remains
    is bad samples that are set aside. `moved` lies where it says now, `not_seen` is what the level did not
    look at."""

    version: Path
    ok: bool
    shards: Sequence[Done] = ()
    tables: Sequence[Done] = ()
    moved: Mapping[str, Path] = field(default_factory=dict)
    failed: Sequence[Failed] = ()
    findings: Sequence[Finding] = ()
    aside: Aside = field(default_factory=lambda: Aside(0, 0, 0))
    not_seen: Sequence[str] = ()


def repair(
    path: str | Path,
    level: Level = "default",
    progress: Progress = no_progress,
    *,
    config: Config | None = None,
    quarantines: bool = False,
) -> Repaired:
    """Repair what verify finds at this level in a dataset's current version, or in a version.

    `config` takes the place of the one that build.json keeps. With `quarantines` samples that stay bad are
    set aside, unless it is this host that keeps something from being repaired. UsageError for tars that
    Tarmac did not build, and for a config of other rules; DataError when somebody else works on the dataset,
    its disk is full, or this user may not read or write it.
    """
    place = find(path)
    try:
        with place.leased(), disk_full_as_error(place.work):
            require_readable(place)
            return _Repair(place, level, progress, config, quarantines).run()
    except (OSError, sqlite3.OperationalError) as error:
        where = getattr(error, "filename", None) or place.version
        why = getattr(error, "strerror", None) or error
        raise DataError(f"{where}: {why}; mind its rights and disk, and repair again") from None


class _Repair:
    def __init__(
        self, place: Place, level: Level, progress: Progress, config: Config | None, quarantines: bool
    ) -> None:
        self._place = place
        self._level: Level = level
        self._progress = progress
        self._quarantines = quarantines
        self._bad: list[BadSample] = []
        self._not_seen: Sequence[str] = ()
        self._has_quarantine = (quarantine.home(place.version) / quarantine.NAME).exists()
        self._origin = read_origin(place, config)

    def run(self) -> Repaired:
        tables = Tables(self._place, self._origin, self._progress)
        tables.run()
        if tables.record is None and self._level == "quick":
            self._level = "default"  # only the tars tell whether the tables are sound
        findings = self._verify()
        if tables.run_again(_tables_of(findings)):
            findings = self._verify()
        shards = self._shards(findings)
        if not _tables_of(findings) - {BUILD}:
            tables.remember()
        if tables.done or shards.done or shards.moved:
            findings = self._remaining(findings, shards)
        repaired = {done.file for done in shards.done}
        as_built = [Failed(name, AS_BUILT, MEND) for name in sorted(shards.as_built & _shards_of(findings))]
        failed = [*tables.failed, *shards.failed, *as_built]
        quarantines = self._quarantines and not any(one.is_of_host for one in failed)
        is_set_aside = quarantines and not tables.failed and all(map(self._is_covered, findings))
        try:
            knows_keys = not any(one.file.startswith("samples/") for one in tables.failed)
            adds = quarantines and knows_keys
            aside = set_aside(self._place.version, self._level, self._bad, repaired, adds)
        except DataError as error:
            failed.append(Failed(quarantine.NAME, str(error), UNTANGLE))
            aside, is_set_aside = Aside(0, 0, 0), False
        return Repaired(
            self._place.version,
            is_set_aside or not (failed or findings),
            shards.done,
            tables.done,
            self._place.moved,
            failed,
            findings,
            aside,
            self._not_seen,
        )

    def _verify(self) -> list[Finding]:
        """What verify finds; the bad samples are kept where the quarantine needs them."""
        self._bad = []
        keep = self._bad.append if self._quarantines or self._has_quarantine else None
        report = verify(self._place.version, self._level, self._progress, on_bad=keep)
        self._not_seen = report.not_seen
        return list(report.findings)

    def _shards(self, findings: Iterable[Finding]) -> ShardRepair:
        """Repair what the findings name."""
        manifest = read_proven_manifest(
            self._place, read_record(self._place, read_build(self._place.version).facts)
        )
        named = _shards_of(findings)
        extras = sorted(_shards_of(one for one in findings if one.code == "shard.extra"))
        try:
            recipes = read_recipes(self._place.version, manifest)
        except DataError as error:
            return ShardRepair(failed=[Failed(name, str(error), REBUILD) for name in sorted(named)])
        extras = list(filter(_is_inside, extras))
        return repair_shards(self._place, self._origin, recipes, named, extras, self._progress)

    def _remaining(self, before: Sequence[Finding], shards: ShardRepair) -> list[Finding]:
        """What a look at the version would find now. Shards that are proven need no second reading, unless
        what was asked for is not told by their bytes."""
        repaired = {done.file for done in shards.done} | shards.moved.keys()
        left = [one for one in before if one.where.get("shard") not in repaired]
        is_unsure = any(one.code == "sample.duplicate_key" for one in left)
        if shards.done and (is_unsure or self._level == "full"):
            return self._verify()
        self._bad = [one for one in self._bad if one.shard not in repaired]
        now = verify(self._place.version, "quick").findings
        places = {(one.code, str(one.where)) for one in now}
        return [
            *now,
            *(one for one in left if one.where.get("shard") and (one.code, str(one.where)) not in places),
        ]

    def _is_covered(self, finding: Finding) -> bool:
        return finding.where.get("shard") in {one.shard for one in self._bad}


def _shards_of(findings: Iterable[Finding]) -> set[str]:
    return {str(one.where["shard"]) for one in findings if one.where.get("shard")}


def _tables_of(findings: Iterable[Finding]) -> set[str]:
    """Files beside the tars that are wrong. A key twice that no shard has is in the table of samples."""
    named = {str(one.where["file"]) for one in findings if one.where.get("file")}
    twice = (one.where for one in findings if one.code == "sample.duplicate_key")
    splits = {where["split"] for where in twice if where.get("split") and not where.get("shard")}
    return named | {f"samples/{split}.parquet" for split in splits}


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts
