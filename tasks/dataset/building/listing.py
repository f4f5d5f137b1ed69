"""Lists every raw sample of every source in the catalogue, and digests everything that was listed.

There are two steps. The survey lists what is cheap to list: samples that have files of their own (one `stat`
per sample, none is opened) and the containers of sequential sources. Its digest shows whether there is
anything to build. The second step reads the samples from those containers and spills their bytes. Filtered
samples and items that cannot be samples are left out here; faults that only decoding can show are left to the
conversion.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import time
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path

from tasks.core.errors import DataError, UsageError
from tasks.core.files import digest
from tasks.core.schema import Config
from tasks.core.screen import Progress, no_progress
from tasks.dataset import filters, splits
from tasks.dataset.building.check import check_sources, measured_rules, scored_rules
from tasks.dataset.building.fingerprint import Fingerprint, members_digest, rules_digest, source_digests
from tasks.dataset.building.listed.catalogue import (
    NAME,
    SCHEMA,
    SOURCE_BITS,
    Catalogue,
    Listed,
    ListedSample,
    RejectedSample,
)
from tasks.dataset.building.listed.spill import FOLDER, Spill, is_whole
from tasks.dataset.keys import key_of, shard_hash
from tasks.dataset.sources import Container, RawSample, of_containers, of_files
from tasks.dataset.sources.protocol import is_by_row
from tasks.dataset.sources.shards import Shards
from tasks.dataset.tar.format import span_bytes
from tasks.dataset.version.manifest import passed_over_lines
from tasks.dataset.version.rejects import Reject, printable

AT_ONCE = 1000
"""Samples per write and per progress report."""
NOTE = "samples listed"
SAME_KEY = {
    "table": "suffixes do not count, and rows of one image need captions: all (side by side where they hold "
    "it) or key: [IMAGE, CAPTION]",
    "image_folder": "suffixes do not count",
    "shards": "tars that each begin to count anew need key: place",
}
"""Why samples of a kind of source may share a key, and what helps."""
STAMP = 16
"""The hexadecimal digits of a container's name and stamp in build.json."""
COMMIT_BYTES = 256_000_000
COMMIT_S = 5.0
"""A kill costs at most what was read within this much data or time, plus the current container."""


class SourceListing:
    """One listing of a config's sources into a catalogue in a folder, such as the staging folder.

    Call `survey`, then `read`, `plan` and `close`. The constructor writes nothing; it raises UsageError for a
    config that does not fit its sources. A repair lists only some samples: with `wanted`, those with the keys
    of named shards, and with `containers`, those in the containers of sequential sources that have these
    names.
    """

    def __init__(
        self,
        config: Config,
        folder: Path,
        progress: Progress = no_progress,
        wanted: Mapping[str, Sequence[str]] | None = None,
        containers: Collection[str] | None = None,
    ) -> None:
        self._config = config
        self._dataset = config.dataset
        self._sources = check_sources(config.dataset)
        self.scored = scored_rules(config.dataset, self._sources)
        """The rules on scores, which the conversion applies."""
        later = {*measured_rules(config.dataset, self._sources), *self.scored}
        self._filter = {name: rule for name, rule in config.dataset.filter.items() if name not in later}
        self._folder = folder
        self._progress = progress
        self._wanted = wanted
        self._keys = None if wanted is None else {key for keys in wanted.values() for key in keys}
        self._containers = containers
        self._listed = 0
        self.origins = source_digests(config.dataset, self._sources)
        """For each source what shapes its samples' raw members."""
        self._scores = ""
        if self.scored and wanted is None:  # a repair makes again what was not left out
            from tasks.dataset.building.score_rules import digest_of_scores, require_score_block

            require_score_block(config, self.scored)
            self._scores = digest_of_scores(config)
        self._rules = "".join([digest(SCHEMA), Fingerprint(config).hexdigest(), *self.origins])
        self._is_kept = all(source.is_sequential for source in self._sources)
        self.catalogue: Catalogue
        self.missing: list[str] = []
        """The wanted keys that no sample has; filled by `plan`."""

    def close(self) -> None:
        if hasattr(self, "catalogue"):  # the survey may have failed before there is one
            self.catalogue.close()

    @property
    def has_containers(self) -> bool:
        """Whether the survey leaves containers to be read."""
        return any(source.is_sequential for source in self._sources)

    def doubts(self) -> list[str]:
        """Return what looks like a mistake in the config, as far as a quick look at the sources shows."""
        return [doubt for source in self._sources if isinstance(source, Shards) for doubt in source.doubts()]

    @property
    def passed_over(self) -> dict[str, int]:
        """The number of files in the sources' folders that hold no samples, by kind."""
        return dict(self.catalogue.fact("passed_over") or {})

    @property
    def inputs_digest(self) -> str:
        """The digest of everything that the survey listed."""
        return str(self.catalogue.fact("inputs"))

    @property
    def container_stamps(self) -> dict[str, str]:
        """What shows whether a container of the sequential sources has changed, by a digest of its name,
        which may be an address that holds a password."""
        found = self.catalogue.containers(are_read=True) + self.catalogue.containers(are_read=False)
        return {
            digest([index, printable(one.name)])[:STAMP]: digest([one.stat.size, one.stat.stamp])[:STAMP]
            for index, one in found
            if self._sources[index].is_sequential
        }

    def survey(self, *, surveyed: Path | None = None, anew: bool = False) -> None:
        """List everything except the content of sequential sources' containers.

        `surveyed` is the folder of a survey of the same config that was just made, whose catalogue is moved
        here. What a killed build has read of sequential sources is kept, unless `anew`. DataError for a
        source that cannot be listed or holds nothing; UsageError for a config that does not fit its source.
        """
        if surveyed is not None and self._take_over(surveyed):
            return
        containers: dict[int, list[Container]] = {}
        for index, source in enumerate(self._sources):
            if source.is_sequential:
                containers[index] = [
                    one
                    for one in source.containers()
                    if self._containers is None or printable(one.name) in self._containers
                ]
                self._require_some(index, bool(containers[index]))
        self.catalogue = self._opened(containers, anew)
        running = Fingerprint(self._config)
        running.add_scores(self._scores)
        with self.catalogue.transaction():
            for index, source in enumerate(self._sources):
                if source.is_sequential:
                    running.add_containers(index, containers[index])
                    continue
                holds_some = False
                for container in source.containers():
                    self.catalogue.add_containers(index, [container])
                    holds_some |= self._list(index, container, running, None)
                self._require_some(index, holds_some)
            passed_over = sum((Counter(source.passed_over) for source in self._sources), Counter[str]())
            running.add_passed_over(passed_over)
            self.catalogue.note("passed_over", passed_over)
            self.catalogue.note("inputs", running.hexdigest())

    def read(self) -> None:
        """Read the containers that are left, unless a killed build has done so. DataError as in `survey`."""
        if self.has_containers and not self.is_planned:
            self._read_containers()

    @property
    def is_planned(self) -> bool:
        """Whether the shards are planned, as a killed build may have left them."""
        return bool(self.catalogue.fact("planned"))

    def plan(self, moves: Iterable[tuple[int, str, str]] = ()) -> None:
        """Change group and split of samples, given as number, group and split, and plan the shards, in one
        step, unless a killed build has done so."""
        if self.is_planned:
            return
        rules = self._dataset
        kinds = (source.kind for source in rules.all_sources)
        advice = {index: f"; {SAME_KEY[kind]}" for index, kind in enumerate(kinds) if kind in SAME_KEY}
        with self.catalogue.transaction():
            self.catalogue.regroup(moves)
            if self._wanted is None:
                self.catalogue.plan(rules.shard, rules_digest(rules), self.origins, advice)
            else:
                self.missing = self.catalogue.select(self._wanted, advice)
            self.catalogue.note("planned", True)

    def read_some(self, most: int) -> bool:
        """Read the first `most` samples of each sequential source and plan shards of what is listed then, as
        a forecast needs it. Return False where a first sample takes an index of further files. DataError as
        in `survey`."""
        if any(isinstance(source, Shards) and source.is_joined for source in self._sources):
            return False
        read = Counter[int]()
        with contextlib.closing(Spill(self._folder / FOLDER, {})) as spill, self.catalogue.transaction():
            for index, container in self.catalogue.containers(are_read=False):
                if read[index] < most:
                    before = self._listed
                    self._list(index, container, None, spill, most - read[index])
                    read[index] += self._listed - before
        self.plan()
        return True

    def stated(self, most: int) -> dict[int, int]:
        """Return how many samples the first `most` unread containers state to hold, by their place among
        those; one that states nothing is left out."""
        unread = self.catalogue.containers(are_read=False)[:most]
        found = (of_containers(self._sources[index]).stated(container) for index, container in unread)
        return {place: samples for place, samples in enumerate(found) if samples is not None}

    def interrupted(self, staging: Path, folder: Path) -> Catalogue | None:
        """Return a copy, in a new `folder`, of the catalogue in the folder of an interrupted build, if a
        build would go on with it; nothing there is changed."""
        if not self._is_kept or not (staging / NAME).exists():
            return None
        folder.mkdir()
        (folder / FOLDER).symlink_to((staging / FOLDER).absolute())
        with contextlib.suppress(sqlite3.DatabaseError, OSError):
            for path in staging.glob(f"{NAME}*"):
                shutil.copyfile(path, folder / path.name)
            catalogue = Catalogue(folder / NAME)
            now = self.catalogue.containers(are_read=False)
            if catalogue.fact("rules") == self._rules and self._holds(catalogue, now, folder):
                return catalogue
            catalogue.close()
        return None

    def _take_over(self, surveyed: Path) -> bool:
        """Move the catalogue of another survey here. Return False if that is gone or lists something else."""
        path = self._folder / NAME
        try:
            self._remove()
            os.rename(surveyed / NAME, path)
        except OSError:
            return False
        self.catalogue = Catalogue(path)
        if self.catalogue.fact("rules") == self._rules and self.catalogue.fact("inputs") is not None:
            return True
        self.catalogue.close()
        return False

    def _opened(self, containers: dict[int, list[Container]], anew: bool) -> Catalogue:
        """Return the catalogue that a killed build has left, if everything in it still holds, or else a new
        one; the containers are noted in it."""
        path = self._folder / NAME
        if self._is_kept and path.exists() and not anew:
            with contextlib.suppress(sqlite3.DatabaseError):  # torn by a crash of the machine
                catalogue = Catalogue(path, is_kept=True)
                if catalogue.fact("rules") == self._rules and self._continue(catalogue, containers):
                    return catalogue
                catalogue.close()
        self._remove()
        catalogue = Catalogue(path, is_kept=self._is_kept)
        with catalogue.transaction():
            catalogue.note("rules", self._rules)
            for index, found in containers.items():
                catalogue.add_containers(index, found)
        return catalogue

    def _remove(self) -> None:
        for left in self._folder.glob(f"{NAME}*"):
            left.unlink()

    def _continue(self, catalogue: Catalogue, containers: dict[int, list[Container]]) -> bool:
        """Bring a killed build's catalogue up to date, and return False if that is impossible."""
        now = [(index, container) for index, found in containers.items() for container in found]
        if not self._holds(catalogue, now, self._folder):
            return False
        self._listed = catalogue.fact("seen") or 0
        with catalogue.transaction():
            catalogue.forget_unread()
            for index, container in now[len(catalogue.containers(are_read=True)) :]:
                catalogue.add_containers(index, [container])
        return True

    @staticmethod
    def _holds(catalogue: Catalogue, now: list[tuple[int, Container]], folder: Path) -> bool:
        """Whether the containers that were read are unchanged, the first of those that exist now, and were
        read without trouble, and their samples are still in the spill of the folder."""
        if catalogue.fact("unread_containers"):
            return False
        known = catalogue.containers(are_read=True)
        is_same = known == (now if catalogue.fact("planned") else now[: len(known)])
        return is_same and is_whole(folder / FOLDER, _spilled(catalogue))

    def _read_containers(self) -> None:
        """Read the containers, and commit often enough (COMMIT_S, COMMIT_BYTES) that a kill costs little."""
        holding = {index for index, _ in self.catalogue.containers(are_read=True)}
        left = deque(self.catalogue.containers(are_read=False))
        with contextlib.closing(Spill(self._folder / FOLDER, _spilled(self.catalogue))) as spill:
            while left:
                ends, full = time.monotonic() + COMMIT_S, spill.size_bytes + COMMIT_BYTES
                with self.catalogue.transaction():
                    while left and time.monotonic() < ends and spill.size_bytes <= full:
                        index, container = left.popleft()
                        if self._list(index, container, None, spill):
                            holding.add(index)
                    spill.flush()
                    self.catalogue.note("spill", spill.sizes)
        for index, source in enumerate(self._sources):
            if source.is_sequential:
                self._require_some(index, index in holding)

    def _require_some(self, index: int, holds_some: bool) -> None:
        if not holds_some and self._keys is None:
            key = "dataset.source" if self._dataset.source is not None else f"dataset.sources[{index}]"
            none = f"{key}.path: {self._dataset.all_sources[index].path}: holds no samples"
            besides = passed_over_lines(self._sources[index].passed_over, self._dataset.private)
            raise DataError("; ".join([none, *besides]))

    def _list(
        self,
        index: int,
        container: Container,
        running: Fingerprint | None,
        spill: Spill | None,
        most: int | None = None,
    ) -> bool:
        """Note the samples of a container, or the first `most`, and that it is done; return whether there
        were any."""
        source = self._sources[index]
        listed: list[Listed] = []
        rejected: list[RejectedSample] = []
        filtered = unread = addresses = 0
        is_cut_short = False
        first = number = (index << SOURCE_BITS) + self._listed
        for number, item in enumerate(islice(source.items(container), most), first + 1):
            if running is not None:
                running.add_item(source, item)
            try:
                if item.fault is not None:
                    unread += item.may_pass
                    is_cut_short |= item.more_lost
                    raise Reject(*item.fault)
                if filters.passes(self._filter, item.fields):
                    addresses += is_by_row(item.stat.stamp)
                    listed += self._entries(index, number, item, spill)
                else:
                    filtered += 1
            except Reject as reject:
                key, name = key_of(item.original_key), item.original_key
                why = reject.reason, reject.detail
                rejected.append(RejectedSample(number, key, name, *why, item.place, item.file))
            if (number - first) % AT_ONCE == 0:
                self._write(listed, rejected)
                self._progress(self._listed + number - first, 0, NOTE)
        self._write(listed, rejected)
        self._listed += number - first
        self.catalogue.close_container(index, container.name, filtered)
        self.catalogue.note("seen", self._listed)
        self._count("unread_containers", unread)
        self._count("cut_short", is_cut_short)
        self._count("addresses", addresses)
        return number > first

    def _count(self, fact: str, more: int) -> None:
        if more:
            self.catalogue.note(fact, (self.catalogue.fact(fact) or 0) + more)

    def _write(self, listed: list[Listed], rejected: list[RejectedSample]) -> None:
        self.catalogue.add(listed)
        self.catalogue.reject(rejected)
        listed.clear()
        rejected.clear()

    def _entries(self, index: int, number: int, item: RawSample, spill: Spill | None) -> Sequence[Listed]:
        """Return the sample, or nothing if it is not wanted."""
        name = item.original_key
        key = key_of(name)
        if self._keys is not None and key not in self._keys:
            return ()
        rules = self._dataset
        group = splits.group_of(rules.splits, item.fields)
        split = splits.split_of(rules.splits, key, group, item.fields)
        place = shard_hash(key)
        size, stamp = item.stat
        spilled: tuple[int | None, int | None, int | None] = (None, None, None)
        weight = 1
        if item.members is not None:
            assert spill is not None
            sizes = [len(content) for content in item.members.values()]
            size, stamp = sum(sizes), members_digest(item.members).hexdigest()
            spilled = spill.write(place, item.members)
            if rules.shard.bytes is not None:
                weight = span_bytes(sizes)
        elif rules.shard.bytes is not None:
            if is_by_row(stamp):
                raise UsageError(
                    "dataset.shard.bytes: a maximum cannot be kept, because the sizes of images at addresses "
                    "are not known before they are fetched; use dataset.shard.samples instead"
                )
            weight = of_files(self._sources[index]).stored_bytes(item.file, size, item.content)
        entry = ListedSample(
            number, key, name, item.place, index, item.file, size, stamp, item.content, group, *spilled
        )
        return (Listed(entry, split, place, weight),)


def _spilled(catalogue: Catalogue) -> dict[int, int]:
    """Return the sizes of the spill's parts when the last container was done."""
    return {int(part): size for part, size in (catalogue.fact("spill") or {}).items()}
