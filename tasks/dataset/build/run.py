"""Raw data to a version of the dataset: list, plan, convert what is not there yet, assemble.

The build asks the disk what is done: shards of any version and of a killed build are taken over when they
are made of the same samples by the same rules. It never switches `current`; `versions.publish` does, once
the version is verified.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tasks.core.engines.local import warm_up
from tasks.core.errors import DataError, UsageError
from tasks.core.files import FULL, disk_full_as_error
from tasks.core.lock import Held, Lease
from tasks.core.screen import Progress, no_progress
from tasks.core.schema import Config
from tasks.dataset import versions
from tasks.dataset.build import assemble
from tasks.dataset.build import changes
from tasks.dataset.build import pilot
from tasks.dataset.build import rejects
from tasks.dataset.build.catalogue import Catalogue
from tasks.dataset.build.check import check
from tasks.dataset.build.conversion import Exceeded, Tally, convert_all
from tasks.dataset.build.convert import sidecar_path, write_rules
from tasks.dataset.build.facts import facts
from tasks.dataset.build.flushing import flushed, trust
from tasks.dataset.build.leaves import plan_leaves
from tasks.dataset.build.listing import fingerprint, list_samples
from tasks.dataset.build.redo import leaf_of_shard
from tasks.dataset.build.rehash import changed_leaves
from tasks.dataset.build.release import release
from tasks.dataset.build.reuse import Known, known_leaves
from tasks.dataset.build.staging import converted_shards, note_rejects, require_own, sweep
from tasks.dataset.build.freshness import is_up_to_date, unchanged
from tasks.dataset.manifest import Manifest, read_manifest
from tasks.dataset.tables import give_memory_back

__all__ = ["BuildResult", "build", "is_up_to_date"]

logger = logging.getLogger(__name__)
PRELOAD = "tasks.dataset.build.preload"
"""Never imported here: it is for the process that workers are forked from."""


@dataclass(frozen=True)
class BuildResult:
    """What a build did. read = accepted + filtered + rejected; `previous` is the version current before, of
    which `lost` samples are gone, while `gained` are new. `released` samples left the quarantine."""

    version: Path
    digest: str
    read: int
    accepted: int
    filtered: int
    rejected: int
    rejects: Mapping[str, int]
    shards: int
    shards_rewritten: int
    previous: str | None
    gained: int
    lost: int
    released: int
    up_to_date: bool
    seconds: float


@dataclass(frozen=True)
class Asked:
    """What the caller wants beyond the config.

    `rehash` compares the content of all raw samples, not only size and time. `accept_loss` takes a version
    that has lost more samples than changes.ALLOWED. `shard` (`train/000007`) is converted again.
    """

    rehash: bool = False
    accept_loss: bool = False
    shard: str | None = None

    @property
    def wants_work(self) -> bool:
        return self.rehash or self.shard is not None


def build(
    config: Config,
    progress: Progress = no_progress,
    *,
    rehash: bool = False,
    accept_loss: bool = False,
    shard: str | None = None,
    waits: bool = True,
) -> BuildResult:
    """Build the dataset's next version; waits for whoever else builds it, unless `waits` is False.

    UsageError for a config that does not fit the source or the disk. DataError when the source holds nothing,
    the rejects are certain to pass the budget, too many samples are gone, the disk is full, or, with `waits`
    False, somebody else builds.
    """
    started = time.monotonic()
    give_memory_back()
    check(config.dataset)  # a wrong config is told before anything is written
    if config.dataset.mirror is not None:
        from tasks.dataset import mirror  # not above: workers would wait for its import before they start

        mirror.require_reachable(config.dataset.mirror)
    output = config.dataset.output
    with disk_full_as_error(output), _leased(output, waits, progress) as lease:
        asked = Asked(rehash, accept_loss, shard)
        return _Build(config, output / "staging", progress, asked, lease, started).run()


@contextmanager
def _leased(output: Path, waits: bool, progress: Progress) -> Iterator[Lease]:
    """Hold the dataset while the block runs."""
    lease = Lease(output / "lease.json")
    try:
        try:
            lease.acquire()
        except Held as held:
            if not waits:
                raise DataError(f"{held}; without --no-wait this build would wait for it") from None
            logger.warning("%s; waiting", held)
            progress(0, 0, f"{held}; waiting")
            lease.wait()
    except OSError as error:
        if error.errno in FULL:
            raise
        reason = error.strerror or error
        raise UsageError(f"dataset.output: {output} cannot be written ({reason}); choose another") from None
    try:
        yield lease
    finally:
        lease.release()


@dataclass
class _Build:
    """One build, from its lease on."""

    config: Config
    staging: Path
    progress: Progress
    asked: Asked
    lease: Lease
    started: float

    def run(self) -> BuildResult:
        dataset = self.config.dataset
        require_own(self.staging)
        before = versions.current(dataset.output)
        if before is not None and not self.asked.wants_work and self._is_unchanged(before):
            shutil.rmtree(self.staging, ignore_errors=True)  # of a build that was killed when all was done
            return self._result(before, read_manifest(before), 0, 0, before, changes.NONE)
        again = None if self.asked.shard is None else leaf_of_shard(before, self.asked.shard)
        if self.config.engine.build.kind == "local":
            warm_up(PRELOAD)
        self.staging.mkdir(exist_ok=True)
        rules = write_rules(self.staging, dataset)  # first, as they tell that the folder is a build's
        trust(self.staging)
        catalogue = list_samples(self.config, self.staging, self.progress, anew=self.asked.rehash)
        try:
            plan_leaves(catalogue, dataset)
            catalogue.forget_conversions()
            if self.config.engine.build.kind != "local":
                catalogue.flush()
            sweep(self.staging, lambda path: catalogue.ordinal(path.stem) is not None)
            known = self._known(catalogue, rules, again)
            draft = self._convert(catalogue, rules, known)
            changed = changes.since(before, catalogue)
            if not self.asked.accept_loss:
                changed.check(before)
            self.lease.require()
            told = facts(self.config, catalogue)
            version, manifest = assemble.complete(draft, self.config, catalogue, told, dataset.output)
        finally:
            catalogue.close()
        rewritten = sum(1 for _ in self.staging.glob("*.tar"))
        released = release(version, self.staging)
        shutil.rmtree(self.staging)
        return self._result(version, manifest, rewritten, released, before, changed)

    def _is_unchanged(self, before: Path) -> bool:
        return unchanged(before, fingerprint(self.config, self.progress), self.config.dataset)

    def _known(self, catalogue: Catalogue, rules: str, again: str | None) -> dict[int, Known]:
        """What need not be converted."""
        known = known_leaves(self.config.dataset.output, catalogue)
        if self.asked.rehash:
            sweep(self.staging, lambda path: False)
            for ordinal in changed_leaves(self.config, self.staging, rules, known, self.progress):
                del known[ordinal]
        if again is not None:
            sidecar_path(self.staging, again).unlink(missing_ok=True)
            known = {one: its for one, its in known.items() if one != catalogue.ordinal(again)}
        return known

    def _convert(self, catalogue: Catalogue, rules: str, known: Mapping[int, Known]) -> assemble.Draft:
        """Convert the rest into `staging` and draft the version; DataError once the budget is sure to be
        passed, or when nothing is left. Afterwards the catalogue knows all rejects."""
        budget = rejects.Budget(catalogue.read, self.config.dataset.reject_budget)
        budget.add(catalogue.reasons())
        tally = Tally(budget, catalogue.accepted)
        for ordinal, one in known.items():
            tally.add(ordinal, one.samples, one.rejects)
        try:
            draft = self._draft(catalogue, rules, known, tally)
        except Exceeded:
            note_rejects(catalogue, known, self.staging, range(catalogue.planned))
            path = self.staging / "rejects.parquet"
            rejects.write(path, catalogue.rejects())
            raise budget.error(catalogue, path, self.config.dataset.private) from None
        note_rejects(catalogue, known, self.staging, tally.rejecting)
        if catalogue.accepted == catalogue.rejected_entries:
            raise DataError(
                f"none of {catalogue.read:,} samples is left: {catalogue.filtered:,} filtered, "
                f"{sum(catalogue.reasons().values()):,} rejected; loosen dataset.filter or mend the source"
            )
        return draft

    def _draft(
        self, catalogue: Catalogue, rules: str, known: Mapping[int, Known], tally: Tally
    ) -> assemble.Draft:
        """Convert what is missing while its pilot runs and what is there is drafted; Exceeded."""
        if tally.budget.is_exceeded:
            raise Exceeded
        missing = [leaf for leaf in catalogue.leaves() if leaf.ordinal not in known]
        ordinals = [leaf.ordinal for leaf in missing]
        with (
            pilot.beside(self.config, self.staging, missing, tally.budget) as trial,
            closing(
                convert_all(self.config, self.staging, rules, ordinals, tally, trial, self.progress)
            ) as converted,
            closing(flushed(catalogue, self.staging, converted)) as on_disk,
            closing(converted_shards(catalogue, known, self.staging, on_disk)) as shards,
        ):
            return assemble.begin(self.config, shards, self.staging)

    def _result(
        self,
        version: Path,
        manifest: Manifest,
        rewritten: int,
        released: int,
        before: Path | None,
        changed: changes.Changes,
    ) -> BuildResult:
        return BuildResult(
            version=version,
            digest=manifest.digest,
            read=manifest.read,
            accepted=manifest.accepted,
            filtered=manifest.filtered,
            rejected=manifest.rejected,
            rejects=manifest.rejects,
            shards=manifest.shards,
            shards_rewritten=rewritten,
            previous=None if before is None else before.name,
            gained=changed.gained,
            lost=changed.lost,
            released=released,
            up_to_date=version == before and rewritten == 0,
            seconds=round(time.monotonic() - self.started, 3),
        )
