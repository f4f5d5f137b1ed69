"""The judgement of a version: what its seals prove, and what is wrong with the rest.

The manifest's digest and `shards.parquet` prove the tars. Only tars that they do not prove are examined, and
all of them at the level full.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from itertools import groupby
from operator import itemgetter

from tasks.core.stores import is_web
from tasks.core.units import counted
from tasks.dataset.tar.format import END
from tasks.dataset.verify.examination import ShardExamination
from tasks.dataset.verify.findings import Coverage, Fault, Fix, fault, shard_place
from tasks.dataset.verify.seals import VersionFiles
from tasks.dataset.verify.tars import ends, hole_faults, missing, shut_splits, sizes_of, tars_in, unread
from tasks.dataset.verify.version_tables import VersionTables
from tasks.dataset.version.layout import samples_name

UNLISTED = "tars that no table names: a web server gives no list"


def examine_version(folder: str, outcome: ShardExamination) -> Coverage:
    """Find everything that is wrong with the version in a folder, and return what was examined."""
    with closing(VersionFiles(folder)) as files:
        return _Judgement(folder, files, outcome).run()


class _Judgement:
    """Judges one version: its tables first, then its tars from outside, their bytes and their members."""

    def __init__(self, folder: str, files: VersionFiles, outcome: ShardExamination) -> None:
        self._folder, self._files, self._outcome = folder, files, outcome
        there = {} if is_web(folder) else tars_in(folder, hidden=True, lenient=True)
        self._tables = VersionTables(folder, files, there)
        self._expected = self._tables.expected
        self._there = sizes_of(folder, list(self._expected)) if is_web(folder) else there
        self._shut = shut_splits(folder, self._expected)
        names = [name for name in self._expected if not self._is_shut(name)]
        self._absent = {name for name in names if name not in self._there}
        self._tars = {name: self._there[name] for name in names if name not in self._absent}
        """The sizes of the tars that are there."""
        records = {name: self._tables.record(name) for name in self._tars if name in outcome.known}
        self._known = {name: record.blake3 for name, record in records.items() if record is not None}
        """The BLAKE3 of the tars that were found sound before, as the tables record it."""

    def _is_shut(self, name: str) -> bool:
        return name.rpartition("/")[0] in self._shut

    def run(self) -> Coverage:
        tables, outcome = self._tables, self._outcome
        outcome.faults += [*self._shut.values(), *self._extra()]
        outcome.blake3 |= self._known
        if outcome.level == "default":
            unknown = {name: size for name, size in self._tars.items() if name not in self._known}
            outcome.hash_all(self._folder, unknown)
        proven = tables.proven(outcome.blake3)
        readable = self._look_from_outside(proven)
        if outcome.level == "quick":
            cut = {one.where["shard"] for one in outcome.faults if one.code == "shard.truncated"}
            self._report_bad("shard.truncated", cut)
        else:
            self._examine(readable, proven)
            outcome.finish()
            proven = tables.proven(outcome.blake3)
        self._report_bad("shard.missing", self._absent)
        is_proven = bool(proven) and len(proven) == len(self._expected)
        faults = sorted(self._files.faults.items())
        outcome.faults[:0] = [found for name, found in faults if not self._is_shut(name)]
        return Coverage(
            outcome.level,
            shards=len(self._expected),
            samples=sum(outcome.counts.values()) if outcome.level == "full" else tables.samples,
            sealed=len(self._files.sealed),
            splits=len(tables.splits),
            has_sizes=is_proven or tables.shards is not None,
            has_digests=is_proven,
            undecoded=outcome.undecoded,
            unseen=[
                *([UNLISTED] if is_web(self._folder) else []),
                *([f"{counted(len(self._known), 'shard')} found sound before"] if self._known else []),
            ],
        )

    def _extra(self) -> Iterator[Fault]:
        remedy = "move it away: it is in no table of this version"
        for name, size in self._there.items():
            if name not in self._expected and not self._is_shut(name):
                yield fault("shard.extra", shard_place(name), remedy, bytes=size)

    def _look_from_outside(self, proven: Collection[str]) -> dict[str, int]:
        """Report which tars are missing, and what size and end blocks show of tars that no digest proves;
        return the sizes of the tars that can be opened."""
        readable = dict(self._tars)
        faults = self._outcome.faults
        doubtful = [name for name in self._tars if name not in proven]
        for name, end in ends(self._folder, doubtful, len(END)):
            record = self._tables.record(name)
            size = self._tars[name]
            if isinstance(end, OSError):
                faults.append(unread(self._folder, name, end, Fix.SHARD, **self._samples(name)))
                del readable[name]
                if faults[-1].code == "shard.missing":
                    self._absent.add(name)
            elif record is not None and size not in (record.bytes, -1):
                code = "shard.truncated" if size < record.bytes else "shard.checksum"
                faults.append(fault(code, shard_place(name), bytes=size, expected=record.bytes))
            elif end != END:
                problem = "it does not end in two zero blocks"
                faults.append(fault("shard.truncated", shard_place(name), problem=problem))
        faults += [
            missing(self._folder, name, Fix.SHARD, **self._samples(name))
            for name in self._expected
            if name in self._absent and name not in self._tars
        ]
        if self._tables.is_guess:
            faults += hole_faults(self._expected, Fix.SHARD)
        return readable

    def _samples(self, name: str) -> dict[str, int]:
        record = self._tables.record(name)
        return {} if record is None else {"samples": record.samples}

    def _report_bad(self, code: str, names: Collection[str]) -> None:
        """Report the samples of these tars as bad: all of a missing tar, and those behind the end of a short
        one, as more is not known without reading it."""
        if not names or not self._outcome.wants_bad_samples:
            return
        from tasks.dataset.verify.scan import Spans

        for task in self._tables.tasks(names):
            has_none = task.name in self._absent or task.index is None
            lost = Spans.of(task.index).lost(self._tars.get(task.name))
            for row, key in enumerate(task.keys or ()):
                if has_none or row in lost:
                    self._outcome.bad(task.name, key, code)

    def _examine(self, readable: Mapping[str, int], proven: Collection[str]) -> None:
        """Follow every tar that is in doubt, and at the level full every tar."""
        tables, outcome = self._tables, self._outcome
        is_full = outcome.level == "full"
        settled = self._known if is_full else proven
        wanted = {name: size for name, size in readable.items() if name not in settled}
        again = {split for split in tables.splits if tables.is_compared(split)}
        if wanted:  # their keys may stand in other shards too, whose keys no table shows then
            again |= {split for split in tables.splits if samples_name(split) in self._files.faults}
        wanted |= {name: size for name, size in readable.items() if name.rpartition("/")[0] in again}
        if not wanted:
            return
        from tasks.dataset.verify.shard import ShardResult

        strangers: set[str] = set()
        digests = {name: outcome.blake3[name] for name in proven}
        for result in outcome.examine(tables.tasks(wanted, digests, decodes=is_full), wanted):
            other = tables.copied_by(result.name, result.blake3)
            if other is not None:  # shards were swapped or copied: that is all that is wrong
                problem = f"holds the content of {other}"
                copied = fault("shard.checksum", shard_place(result.name), problem=problem)
                bad = dict.fromkeys(result.bad, copied.code)
                result = ShardResult(result.name, result.blake3, is_read=False, faults=[copied], bad=bad)
            outcome.take(result)
            if len(wanted) < len(readable):
                strangers |= result.strangers
        found = tables.where_else(strangers, but=wanted) if strangers else ()
        for name, group in groupby(found, key=itemgetter(0)):
            outcome.keys.add(name, dict.fromkeys(key for _, key in group), ())
