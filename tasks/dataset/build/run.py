"""Raw data to a version of the dataset: list, plan, convert what is not there yet, assemble.

The build asks the disk what is done: shards of any version and of a killed build are taken over when they
are made of the same samples by the same rules. It never switches `current`; `versions.publish` does, once
the version is verified.

The steps, each a module: `listing` brings every raw sample into the `catalogue`, `shard_plan` cuts it into
shards, `reuse` finds those that are there, `convert` makes the others in `staging`, `assemble` makes a
version of them, `budget` and `changes` refuse one that has lost too much. `named` uses the same steps to make
single shards of a version again, for a repair.
"""

from __future__ import annotations

import logging
import shutil
import socket
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.core.engines.local import warm_up
from tasks.core.errors import DataError, UsageError
from tasks.core.files import FULL, disk_full_as_error
from tasks.core.lock import Held, Lease
from tasks.core.schema import Config
from tasks.core.screen import Progress, no_progress
from tasks.dataset import layout, quarantine
from tasks.dataset.build import assemble, changes
from tasks.dataset.build.budget import Budget
from tasks.dataset.build.catalogue import Catalogue
from tasks.dataset.build.check import check
from tasks.dataset.build.convert import Exceeded, Tally, convert_all
from tasks.dataset.build.fingerprint import CONVERTER, packages, rules_digest, source_digests
from tasks.dataset.build.freshness import SURVEY, is_up_to_date, unchanged
from tasks.dataset.build.listing import Listing
from tasks.dataset.build.rehash import changed_shards
from tasks.dataset.build.reuse import KnownShard, known_shards
from tasks.dataset.build.staging import (
    converted_shards,
    note_rejects,
    redact_config,
    require_own,
    sweep,
    write_rules,
)
from tasks.dataset.layout import LEASE, REJECTS, STAGING
from tasks.dataset.manifest import Manifest, read_manifest
from tasks.dataset.sources import Source
from tasks.dataset.tables import give_memory_back

__all__ = ["BuildResult", "build", "is_up_to_date"]

logger = logging.getLogger(__name__)
PRELOAD = "tasks.dataset.build.preload"
"""Never imported here: it is for the process that workers are forked from."""
ABANDONED_S = 3600.0
"""A survey this old is of a command that was killed."""


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


def build(
    config: Config,
    progress: Progress = no_progress,
    *,
    rehash: bool = False,
    accept_loss: bool = False,
    survey: Path | None = None,
    waits: bool = True,
) -> BuildResult:
    """Build the dataset's next version; waits for whoever else builds it, unless `waits` is False.

    `rehash` compares the content of all raw samples, not only size and time. `accept_loss` takes a version
    that has lost more samples than changes.ALLOWED. `survey` is the folder that `freshness.take_survey` gave:
    its listing is taken over, and removed in any case. UsageError for a config that does not fit the source
    or the disk. DataError when the source holds nothing, the rejects are certain to pass the budget, too many
    samples are gone, the disk is full, or, with `waits` False, somebody else builds.
    """
    started = time.monotonic()
    give_memory_back()
    try:
        sources = check(config.dataset)  # a wrong config is reported before anything is written
        if config.dataset.mirror is not None:
            from tasks.dataset import mirror  # not above: workers would wait for its import before they start

            mirror.require_reachable(config.dataset.mirror)
        output = config.dataset.output
        with disk_full_as_error(output), _leased(output, waits, progress) as (lease, has_waited):
            work = _Build(config, sources, output / STAGING, progress, lease, rehash, accept_loss, started)
            return work.run(None if has_waited else survey)
    finally:
        if survey is not None:
            shutil.rmtree(survey, ignore_errors=True)


@contextmanager
def _leased(output: Path, waits: bool, progress: Progress) -> Iterator[tuple[Lease, bool]]:
    """Hold the dataset while the block runs; the lease, and whether somebody else held it before."""
    lease = Lease(output / LEASE)
    has_waited = False
    try:
        try:
            lease.acquire()
        except Held as held:
            if not waits:
                raise DataError(f"{held}; without --no-wait this build would wait for it") from None
            has_waited = True
            logger.warning("%s; waiting", held)
            progress(0, 0, f"{held}; waiting")
            lease.wait()
    except OSError as error:
        if error.errno in FULL:
            raise
        reason = error.strerror or error
        raise UsageError(f"dataset.output: {output} cannot be written ({reason}); choose another") from None
    try:
        yield lease, has_waited
    finally:
        lease.release()


@dataclass
class _Build:
    """One build, from its lease on."""

    config: Config
    sources: list[Source]
    staging: Path
    progress: Progress
    lease: Lease
    rehash: bool
    accept_loss: bool
    started: float

    def run(self, survey: Path | None) -> BuildResult:
        dataset = self.config.dataset
        require_own(self.staging)
        _sweep_surveys(dataset.output)
        before = layout.linked(dataset.output)
        may_stay = None if self.rehash else before
        if may_stay is None or survey is not None:
            self._warm_up()  # workers will be wanted: their modules are imported while the sources are listed
        self.staging.mkdir(exist_ok=True)
        rules = write_rules(self.staging, dataset)  # first, as they show that the folder is a build's
        listing = Listing(self.config, self.sources, self.staging, self.progress)
        listing.survey(surveyed=survey, anew=self.rehash)
        catalogue = listing.catalogue
        try:
            if may_stay is not None and unchanged(may_stay, listing.inputs_digest, dataset):
                shutil.rmtree(self.staging)
                return self._result(may_stay, read_manifest(may_stay), [], before, changes.NONE)
            self._warm_up()
            listing.read()
            self._plan(catalogue)
            known = self._known(catalogue, rules)
            draft = self._convert(catalogue, rules, known)
            changed = changes.since(before, catalogue)
            if not self.accept_loss:
                changed.check(before)
            self.lease.require()
            account = assemble.Account(catalogue.read, catalogue.filtered, catalogue.reasons())
            manifest = assemble.describe(draft, self.config, account, catalogue.rejects())
            facts = build_facts(
                self.config, listing.inputs_digest, catalogue.fact("unread"), catalogue.filtered
            )
            version = assemble.install(draft, manifest, facts, dataset.output)
        finally:
            catalogue.close()
        shutil.rmtree(self.staging)
        return self._result(version, manifest, draft.written, before, changed)

    def _warm_up(self) -> None:
        if self.config.engine.build.kind == "local":
            warm_up(PRELOAD)

    def _plan(self, catalogue: Catalogue) -> None:
        """Plan the shards, unless a killed build has, and remove what is staged for others."""
        dataset = self.config.dataset
        if not catalogue.fact("planned"):
            with catalogue.transaction():
                catalogue.plan(dataset.shard, rules_digest(dataset), source_digests(dataset, self.sources))
                catalogue.note("planned", True)
        catalogue.forget_conversions()
        if self.config.engine.build.kind != "local":
            catalogue.flush()
        sweep(self.staging, lambda shard: not self.rehash and catalogue.ordinal(shard) is not None)

    def _known(self, catalogue: Catalogue, rules: str) -> dict[int, KnownShard]:
        """What need not be converted."""
        known = known_shards(self.config.dataset.output, catalogue)
        if self.rehash:
            for ordinal in changed_shards(self.config, self.staging, rules, known, self.progress):
                del known[ordinal]
        return known

    def _convert(self, catalogue: Catalogue, rules: str, known: Mapping[int, KnownShard]) -> assemble.Draft:
        """Convert the rest into `staging` and draft the version; DataError once the budget is sure to be
        passed, or when nothing is left. Afterwards the catalogue knows all rejects."""
        share, cut_short = self.config.dataset.reject_budget, catalogue.fact("cut_short") or 0
        budget = Budget(catalogue.read, share, catalogue.container_count, cut_short)
        budget.add(catalogue.reasons())
        tally = Tally(budget, catalogue.accepted)
        for ordinal, one in known.items():
            tally.add(ordinal, one.samples, one.rejects)
        missing = [shard.ordinal for shard in catalogue.shards() if shard.ordinal not in known]
        try:
            with (
                closing(
                    convert_all(self.config, catalogue, rules, missing, tally, self.progress)
                ) as converted,
                closing(converted_shards(catalogue, known, self.staging, converted)) as shards,
            ):
                draft = assemble.draft_version(self.config, shards, self.staging)
        except Exceeded:
            looked_at = note_rejects(catalogue, known, self.staging, range(catalogue.planned))
            looked_at += catalogue.refused + catalogue.filtered
            path = self.staging / REJECTS
            assemble.write_rejects(path, catalogue.rejects())
            is_private = self.config.dataset.private
            raise budget.error(catalogue.reasons(), looked_at, path, is_private) from None
        note_rejects(catalogue, known, self.staging, tally.rejecting)
        if catalogue.accepted == catalogue.rejected_entries:
            raise DataError(
                f"none of {catalogue.read:,} samples is left: {catalogue.filtered:,} filtered, "
                f"{sum(catalogue.reasons().values()):,} rejected; loosen dataset.filter or mend the source"
            )
        return draft

    def _result(
        self,
        version: Path,
        manifest: Manifest,
        written: Collection[str],
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
            shards_rewritten=len(written),
            previous=None if before is None else before.name,
            gained=changed.gained,
            lost=changed.lost,
            released=_release(version, written),
            up_to_date=version == before and not written,
            seconds=round(time.monotonic() - self.started, 3),
        )


def build_facts(config: Config, inputs_digest: str, unread: int, filtered: int) -> dict[str, Any]:
    """What build.json holds beside the seals (see BuildInfo): what depends on time and place."""
    dataset, cut = redact_config(config.dataset)
    return {
        "name": config.name,
        "dataset": dataset,
        "cut": cut,
        "inputs_digest": inputs_digest,
        "unread": unread,
        "filtered": filtered,
        "private": config.dataset.private,
        "built": time.time(),
        "host": socket.gethostname(),
        "engine": config.engine.build.model_dump(mode="json"),
        "python": sys.version.split()[0],
        "versions": packages(config.dataset.modality),
        "converter": CONVERTER,
        "output": str(config.dataset.output),
    }


def _sweep_surveys(dataset: Path) -> None:
    """Remove the listings that killed commands have left."""
    for folder in dataset.glob(f"{SURVEY}*"):
        try:
            is_abandoned = time.time() - folder.stat().st_mtime > ABANDONED_S
        except OSError:
            continue
        if is_abandoned:
            shutil.rmtree(folder, ignore_errors=True)


def _release(version: Path, written: Collection[str]) -> int:
    """Take the samples of the shards that were written out of the quarantine, because they are as they were
    built; how many that were.

    The version's other shards were not looked into, so their samples stay. So do those whose reason says
    nothing of the shard's bytes: they were bad when it was built.
    """
    if not written:
        return 0
    home = layout.home(version)
    listed = quarantine.of_version(version, quarantine.read(home / quarantine.NAME))
    sound = [one for one in listed if one.shard in written and one.reason in quarantine.BY_BYTES]
    return quarantine.remove(home, sound) if sound else 0
