"""Make a damaged version whole: its tables by their seals, its shards by a build of those that are damaged.

Verify finds what is damaged, and only that is touched. Each missing piece is looked for where it costs least
(the sound part of the damaged file, another version, the raw source), and nothing takes its place without the
right seal. Each file is renamed into place as soon as it is proven, so a repair that is killed loses only the
file it was working on, and the next one goes on.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tasks.core.errors import DataError, UsageError
from tasks.core.files import disk_full_as_error
from tasks.core.findings import Finding
from tasks.core.schema import Config
from tasks.core.screen import Progress, no_progress
from tasks.core.stores import StoreUnreachable
from tasks.dataset.foreign import addresses
from tasks.dataset.repair.result import MEND, REBUILD, Failed, QuarantineChange, Repaired
from tasks.dataset.repair.shards import ShardRepair
from tasks.dataset.repair.source import BuildOrigin, read_origin
from tasks.dataset.repair.tables import TableRepair
from tasks.dataset.repair.workplace import Seals, Workplace, find, read_seals
from tasks.dataset.splits import REST
from tasks.dataset.verify.tars import is_indexed
from tasks.dataset.verify.verifier import BadSample, Level, verify
from tasks.dataset.version import quarantine
from tasks.dataset.version.layout import samples_name, shard_name
from tasks.dataset.version.quarantine import Quarantined
from tasks.dataset.version.tables import read_pieces

__all__ = ["Repaired", "repair"]

CORRECT_BY_HAND = "correct quarantine.jsonl by hand and repair again"
AS_BUILT = "its bytes are as they were built, so its bad samples came from the source like this"
NOT_OURS = (
    "is an index of tars that others wrote, which Tarmac cannot make again: put those that were indexed "
    "back where they lay, or run `tarmac index` again; --quarantine alone leaves bad samples out"
)
_SHARD = re.compile(r"(?:([A-Za-z0-9][A-Za-z0-9_-]*)/)?(\d+)(?:\.tar)?")


def repair(
    path: str | Path,
    level: Level = "default",
    progress: Progress = no_progress,
    *,
    config: Config | None = None,
    quarantines: bool = False,
    shards: Sequence[str] = (),
) -> Repaired:
    """Repair what verify finds at this level in a dataset's current version, or in a version.

    `config` takes the place of the one that build.json keeps. With `quarantines`, samples that stay bad are
    set aside, unless this machine or a server is what keeps a file from being repaired. `shards`
    (`train/000007`, `val/3`, `7` of train) are converted again from their source even if they are sound.
    UsageError for tars that Tarmac did not build, a config of other rules, or a shard that the version lacks;
    DataError when somebody else works on the dataset, its disk is full, or this user may not read or write
    it.
    """
    place = find(path)
    try:
        with place.leased(), disk_full_as_error(place.work):
            place.require_readable()
            if is_indexed(str(place.version)):
                if config is not None or shards or not quarantines:
                    raise UsageError(f"DATASET: {path} {NOT_OURS}")
                return _leave_out(place.version, level, progress)
            seals = read_seals(place)
            origin = read_origin(place.version, place.others, seals, config)
            afresh = [_named(shard, seals, place.version) for shard in shards]
            return _Repair(place, level, progress, quarantines, afresh, seals, origin).run()
    except StoreUnreachable:
        raise
    except (OSError, sqlite3.OperationalError) as error:
        where = getattr(error, "filename", None) or place.version
        why = getattr(error, "strerror", None) or error
        raise DataError(f"{where}: {why}; check its permissions and disk, and repair again") from None


def _leave_out(version: Path, level: Level, progress: Progress) -> Repaired:
    """Set aside the bad samples of a version whose tars others wrote. Where the bytes of a remote tar
    changed, all its samples are set aside, since the loader refuses to copy such a tar."""
    bad: list[BadSample] = []
    report = verify(version, level, progress, on_bad=bad.append)
    changed = {one.shard: one.reason for one in bad if one.reason in quarantine.BY_BYTES}
    known = {(one.shard, one.key) for one in bad}
    remote = changed.keys() & addresses(version)
    for split in sorted({shard.rpartition("/")[0] for shard in remote}):
        for piece in read_pieces(version / samples_name(split), ("shard", "key")):
            for row in piece.to_pylist():
                shard, key = shard_name(split, row["shard"]), row["key"]
                if shard in remote and (shard, key) not in known:
                    bad.append(BadSample(split, shard, key, changed[shard]))
    findings, shards = list(report.findings), {one.shard for one in bad}
    has_all = all(one.where.get("shard") in shards for one in findings)
    aside = _set_aside(version, level, bad, (), adds=has_all)
    return Repaired(version, ok=has_all, findings=findings, not_seen=report.not_seen, aside=aside)


@dataclass
class _Repair:
    """The repair of one version; the shards of `afresh` are converted again even if they are sound."""

    place: Workplace
    level: Level
    progress: Progress
    quarantines: bool
    afresh: Sequence[str]
    seals: Seals
    origin: BuildOrigin
    bad: list[BadSample] = field(default_factory=list)
    """The bad samples that the last verification found; `not_seen` is what it did not examine."""
    not_seen: Sequence[str] = ()

    def run(self) -> Repaired:
        tables = TableRepair(self.place, self.seals, self.origin, self.progress)
        self.seals = tables.run()
        findings = self._verify()
        shards = self._repair_shards(findings)
        if shards.done or shards.cleared or self.place.moved:
            findings = self._remaining(findings, shards)
        as_built = shards.as_built & _shards_of(findings)
        failed = [
            *tables.failed,
            *shards.failed,
            *(Failed(name, AS_BUILT, MEND) for name in sorted(as_built)),
        ]
        adds = self.quarantines and not any(one.is_environment for one in failed)
        knows_keys = not any(one.file.startswith("samples/") for one in tables.failed)
        bad = {one.shard for one in self.bad}
        is_set_aside = adds and not tables.failed and all(one.where.get("shard") in bad for one in findings)
        try:
            repaired = {done.file for done in shards.done}
            aside = _set_aside(self.place.version, self.level, self.bad, repaired, adds and knows_keys)
        except DataError as error:
            failed.append(Failed(quarantine.NAME, str(error), CORRECT_BY_HAND))
            aside, is_set_aside = QuarantineChange(), False
        return Repaired(
            version=self.place.version,
            ok=is_set_aside or not (failed or findings),
            shards=shards.done,
            tables=tables.done,
            moved=self.place.moved,
            failed=failed,
            findings=findings,
            aside=aside,
            not_seen=self.not_seen,
        )

    def _verify(self) -> list[Finding]:
        """Verify the version; the bad samples are kept where the quarantine needs them."""
        self.bad = []
        has_quarantine = (quarantine.home(self.place.version) / quarantine.NAME).exists()
        keep = self.bad.append if self.quarantines or has_quarantine else None
        report = verify(self.place.version, self.level, self.progress, on_bad=keep)
        self.not_seen = report.not_seen
        return list(report.findings)

    def _repair_shards(self, findings: Sequence[Finding]) -> ShardRepair:
        named = _shards_of(findings)
        records = self.seals.shards
        work = ShardRepair(self.place, records or {}, self.origin, self.progress)
        if records is None:
            reason = "nothing proves shards.parquet, so nothing records what it was"
            work.failed += [Failed(name, reason, REBUILD) for name in sorted(named)]
            return work
        extras = sorted(_shards_of(one for one in findings if one.code == "shard.extra"))
        work.run(named, extras, self.afresh)
        return work

    def _remaining(self, before: Sequence[Finding], shards: ShardRepair) -> list[Finding]:
        """The findings that remain. Shards that are proven are not read again, unless the level looks for
        what does not follow from their bytes."""
        repaired = {done.file for done in shards.done} | shards.cleared
        left = [one for one in before if one.where.get("shard") not in repaired]
        is_unsure = any(one.code == "sample.duplicate_key" for one in left)
        if shards.done and (is_unsure or self.level == "full"):
            return self._verify()
        self.bad = [one for one in self.bad if one.shard not in repaired]
        now = verify(self.place.version, "quick").findings
        places = {(one.code, str(one.where)) for one in now}
        return [
            *now,
            *(one for one in left if one.where.get("shard") and (one.code, str(one.where)) not in places),
        ]


def _set_aside(
    version: Path, level: Level, bad: Iterable[BadSample], repaired: Collection[str], adds: bool
) -> QuarantineChange:
    """Bring the quarantine up to date with the samples that are `bad` now, as far as this level can tell.

    Entries whose reason the level does not look for stay, except those of shards that were `repaired`. With
    `adds`, the bad samples are added.
    """
    home = quarantine.home(version)
    listed = quarantine.of_version(version, quarantine.read_quarantine(home / quarantine.NAME))
    entries = [Quarantined(version.name, one.split, one.shard, one.key, one.reason) for one in bad]
    still = {(one.shard, one.key) for one in entries}
    by_level = quarantine.REASONS[level]
    sound = [
        one
        for one in listed
        if (one.shard, one.key) not in still
        and one.reason in (by_level | quarantine.BY_BYTES if one.shard in repaired else by_level)
    ]
    released = quarantine.remove(home, sound) if sound else 0
    added = quarantine.add(home, entries) if adds and still - {(one.shard, one.key) for one in listed} else 0
    return QuarantineChange(added, released, len(listed) - released + added)


def _named(shard: str, seals: Seals, version: Path) -> str:
    """The full name of `train/000007`, `val/3` or `7` (of train); UsageError when the version has no such
    shard."""
    match = _SHARD.fullmatch(shard)
    if match is None:
        raise UsageError(f"--shard: {shard!r} is no shard; give a number, or a name such as val/000003")
    name = shard_name(match[1] or REST, int(match[2]))
    if seals.shards is not None and name not in seals.shards:
        raise UsageError(f"--shard {shard}: version {version.name} has no {name}; see its shards.parquet")
    return name


def _shards_of(findings: Iterable[Finding]) -> set[str]:
    return {str(one.where["shard"]) for one in findings if one.where.get("shard")}
