"""Builds a version of the dataset from raw data: list, plan, convert what does not exist yet, assemble.

The build looks at the disk to see what is done: it reuses shards of any version, and of a killed build, that
hold the same samples converted by the same rules. It never switches `current`; `versions.publish` does, once
the version is verified.

Each step is a module: `listing` puts every raw sample into the `catalogue`, `shard_plan` cuts it into shards,
`staging` finds those that exist, `convert` makes the others, `assemble` makes a version of them, and
`changes` stops a build that has lost too much. A repair uses the same steps to make single shards again:
`list_named`.
"""

from __future__ import annotations

import logging
import shutil
import socket
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tasks.core.engines.local import warm_up
from tasks.core.errors import DataError, UsageError
from tasks.core.files import FULL, disk_full_as_error
from tasks.core.lock import Held, Lease
from tasks.core.schema import Config
from tasks.core.screen import Progress, no_progress
from tasks.dataset.building import changes
from tasks.dataset.building.content_groups import group_by_content
from tasks.dataset.building.conversion import assemble
from tasks.dataset.building.conversion.convert import convert_all
from tasks.dataset.building.conversion.result import BuildResult
from tasks.dataset.building.conversion.staging import (
    converted_shards,
    known_shards,
    note_rejects,
    redact_config,
    remove_staging,
    require_own,
    sweep,
    write_rules,
)
from tasks.dataset.building.conversion.tally import BudgetExceeded, BuildTally, counted
from tasks.dataset.building.fingerprint import CONVERTER, another_converter, packages
from tasks.dataset.building.freshness import is_up_to_date, sweep_surveys, unchanged
from tasks.dataset.building.listed.catalogue import Catalogue, RejectedSample
from tasks.dataset.building.listing import SourceListing
from tasks.dataset.building.score_rules import ScoreRules
from tasks.dataset.building.under_way import ProgressFile
from tasks.dataset.version import layout, quarantine
from tasks.dataset.version.build_info import read_build_info
from tasks.dataset.version.layout import INPUTS, LEASE, REJECTS, STAGING
from tasks.dataset.version.manifest import Manifest, read_manifest, version_name
from tasks.dataset.version.rejects import ACCEPTED
from tasks.dataset.version.tables import give_memory_back

__all__ = ["BuildResult", "build", "is_up_to_date"]

logger = logging.getLogger(__name__)
PRELOAD = "tasks.dataset.building.conversion.preload"
"""Imported only by the process that workers are forked from."""


def build(
    config: Config,
    progress: Progress = no_progress,
    *,
    rehash: bool = False,
    accept_loss: bool = False,
    survey: Path | None = None,
    waits: bool = True,
) -> BuildResult:
    """Build the dataset's next version. If somebody else is building it, wait for them, unless `waits` is
    False.

    `rehash` compares the content of all raw samples, not only size and time. `accept_loss` accepts a version
    that has lost or replaced more samples than changes.ALLOWED. `survey` is the folder of
    `freshness.kept_survey`: the build uses its listing, and removes the folder in any case. UsageError for a
    config that does not fit the source or the disk. DataError if the source holds nothing, the rejects are
    certain to exceed the budget, too many samples are gone or replaced, the disk is full, or, with `waits`
    False, somebody else is building.
    """
    started = time.monotonic()
    give_memory_back()
    try:
        output = config.dataset.output
        progress = kept = ProgressFile(output, progress)
        listing = SourceListing(config, output / STAGING, progress)  # reports a wrong config before any write
        if config.dataset.mirror is not None:
            from tasks.dataset.version import (
                mirror,  # not above, or workers would wait for this import as well
            )

            mirror.require_reachable(config.dataset.mirror)
        with (
            closing(listing),
            disk_full_as_error(output),
            _leased(output, waits, kept) as (lease, has_waited),
        ):
            work = _Build(config, listing, output / STAGING, progress, lease, rehash, accept_loss, started)
            return work.run(None if has_waited else survey)
    finally:
        if survey is not None:
            shutil.rmtree(survey, ignore_errors=True)


@contextmanager
def _leased(output: Path, waits: bool, progress: ProgressFile) -> Iterator[tuple[Lease, bool]]:
    """Hold the dataset while the block runs. Yields the lease, and whether somebody else held it before."""
    lease = Lease(output / LEASE)
    has_waited = False
    try:
        try:
            lease.acquire()
        except Held as held:
            if not waits:
                text = f"{held}; without --no-wait this build would wait for it"
                raise DataError(text, field="wait") from None
            has_waited = True
            logger.warning("%s; waiting", held)
            progress(0, 0, f"{held}; waiting")
            lease.wait()
    except OSError as error:
        if error.errno in FULL:
            raise
        reason = error.strerror or error
        raise UsageError(f"dataset.output: {output} cannot be written ({reason}); choose another") from None
    progress.begin()
    try:
        yield lease, has_waited
    finally:
        progress.end()
        lease.release()


@dataclass
class _Build:
    """One build that holds the lease."""

    config: Config
    listing: SourceListing
    staging: Path
    progress: Progress
    lease: Lease
    rehash: bool
    accept_loss: bool
    started: float

    def run(self, survey: Path | None) -> BuildResult:
        dataset = self.config.dataset
        require_own(self.staging)
        sweep_surveys(dataset.output)
        before = layout.linked(dataset.output)
        if self.config.engine.build.kind == "local":
            warm_up(PRELOAD)  # imports the workers' modules while the sources are listed
        self.staging.mkdir(exist_ok=True)
        write_rules(self.staging, dataset)  # first, because it marks the folder as a build's
        listing = self.listing
        listing.survey(surveyed=survey, anew=self.rehash)
        inputs, catalogue = listing.inputs_digest, listing.catalogue
        if before and not self.rehash and unchanged(before, inputs, dataset):
            self._clear()
            return self._result(before, read_manifest(before), [], before, changes.NONE)
        if before and (otherwise := another_converter(before)):
            logger.warning(otherwise)
        listing.read()
        if not listing.is_planned:
            origins = listing.origins
            moves = group_by_content(self.config, catalogue, origins, self.progress, anew=self.rehash)
            listing.plan(moves)
        catalogue.forget_conversions()
        sweep(self.staging, lambda shard: not self.rehash and catalogue.ordinal(shard) is not None)
        rules = ScoreRules(self.config, listing.scored)
        draft = self._convert(catalogue, rules)
        changed = changes.since(before, catalogue, dataset, draft.folder / INPUTS)
        if not self.accept_loss:
            changed.check(before, dataset.private)
        self.lease.require()
        filtered = catalogue.filtered
        manifest = assemble.describe(draft, self.config, filtered, catalogue.rejects(), listing.passed_over)
        facts = build_facts(self.config, inputs, catalogue.fact("unread"), filtered, listing.passed_over)
        facts["containers"] = listing.container_stamps
        facts["unscored"] = rules.count_unscored(draft.folder / INPUTS)
        facts["changes"] = _recorded_changes(before, manifest, changed)
        version = assemble.install(draft, manifest, facts, dataset.output)
        self._clear()
        return self._result(version, manifest, draft.written, before, changed)

    def _clear(self) -> None:
        self.listing.close()
        remove_staging(self.staging)

    def _convert(self, catalogue: Catalogue, rules: ScoreRules) -> assemble.Draft:
        """Convert what no version holds into `staging`, draft the version, and note all rejects in the
        catalogue.

        DataError once the rejects are certain to exceed the budget, or if no sample is left.
        """
        config, staging = self.config, self.staging
        decisions = rules.decide()
        known = known_shards(config.dataset.output, catalogue, decisions)
        tally = counted(config, catalogue)
        everything = convert_all(
            config, catalogue, known, tally, self.progress, rehash=self.rehash, decisions=decisions
        )
        shards = converted_shards(catalogue, known, staging, everything)
        try:
            with closing(everything), closing(shards):
                draft = assemble.draft_version(config, shards, staging)
        except BudgetExceeded:
            note_rejects(catalogue, known, staging, tally.rejecting)
            path = staging / REJECTS
            assemble.write_rejects(path, catalogue.rejects())
            usual_keys = catalogue.some_keys(ACCEPTED)
            raise tally.error(path, config.dataset.private, usual_keys) from None
        note_rejects(catalogue, known, staging, tally.rejecting)
        if tally.rejects.total() + catalogue.filtered == catalogue.read:
            raise DataError(tally.none_left(catalogue.filtered))
        return draft

    def _result(
        self,
        version: Path,
        manifest: Manifest,
        written: Collection[str],
        before: Path | None,
        changed: changes.Changes,
    ) -> BuildResult:
        numbers = ("digest", "read", "accepted", "filtered", "rejected", "rejects", "shards")
        return BuildResult(
            version=version,
            **{name: getattr(manifest, name) for name in numbers},
            **changed.counts,
            shards_rewritten=len(written),
            previous=None if before is None else before.name,
            released=_release(version, written),
            up_to_date=version == before and not written,
            seconds=round(time.monotonic() - self.started, 3),
        )


@dataclass(frozen=True)
class NamedShards:
    """A listing of the samples that named shards need.

    `missing` are the keys that no sample of the source has, or that dataset.filter leaves out now. `rejects`
    are the samples, by key, that were rejected before conversion.
    """

    config: Config
    listing: SourceListing
    missing: Sequence[str]
    rejects: Mapping[str, RejectedSample]

    def convert(self, progress: Progress = no_progress) -> Iterator[assemble.DraftShard]:
        """Convert the samples that were found, shard by shard. Here a shard's `split` is its name; its
        sidecar has one row per sample, in the order of the keys."""
        with closing(self.listing):
            catalogue = self.listing.catalogue
            tally = BuildTally(catalogue.accepted, share=1.0, total=catalogue.accepted)
            with closing(convert_all(self.config, catalogue, {}, tally, progress)) as converted:
                yield from converted_shards(catalogue, {}, catalogue.path.parent, converted)


def list_named(
    config: Config,
    wanted: Mapping[str, Sequence[str]],
    staging: Path,
    progress: Progress = no_progress,
    containers: Collection[str] | None = None,
) -> NamedShards:
    """List the samples of shards once, given as keys by shard name (`train/000007.tar`), into the folder
    `staging`, which the caller makes and removes.

    If `containers` is given, only those are read of sequential sources. The caller has to prove that a shard
    comes out as it was. Raises UsageError and DataError like a build's listing.
    """
    listing = SourceListing(config, staging, progress, wanted, containers)
    listing.survey(anew=True)
    listing.read()
    listing.plan()
    keys = {key for some in wanted.values() for key in some}
    rejects = {one.key: one for one in listing.catalogue.rejects() if one.key in keys}
    return NamedShards(config, listing, listing.missing, rejects)


def build_facts(
    config: Config, inputs_digest: str, unread: int, filtered: int, passed_over: Mapping[str, int]
) -> dict[str, Any]:
    """Return what build.json holds besides the seals (see BuildInfo): whatever depends on time and place."""
    dataset, cut = redact_config(config.dataset)
    return {
        "name": config.name,
        "dataset": dataset,
        "cut": cut,
        "inputs_digest": inputs_digest,
        "unread": unread,
        "filtered": filtered,
        "passed_over": passed_over,
        "private": config.dataset.private,
        "built": time.time(),
        "host": socket.gethostname(),
        "engine": config.engine.build.model_dump(mode="json"),
        "python": sys.version.split()[0],
        "versions": packages(config.dataset),
        "converter": CONVERTER,
        "output": str(config.dataset.output),
    }


def _recorded_changes(
    before: Path | None, manifest: Manifest, changed: changes.Changes
) -> dict[str, Any] | None:
    """Return how the new version differs from the previous one, for `tarmac versions`. A version that is made
    again keeps what was recorded for it."""
    if before is None:
        return None
    if before.name == version_name(manifest.to_bytes()):
        with suppress(DataError):
            recorded = read_build_info(before).changes
            return None if recorded is None else asdict(recorded)
        return None
    return {"since": before.name, **changed.counts}


def _release(version: Path, written: Collection[str]) -> int:
    """Remove the samples of newly written shards from the quarantine, and return how many.

    Their bytes are as built again. Samples of other shards stay, because this build did not read those, and
    so do samples whose reason is not about the shard's bytes: they were already bad when it was built.
    """
    if not written:
        return 0
    home = quarantine.home(version)
    listed = quarantine.of_version(version, quarantine.read_quarantine(home / quarantine.NAME))
    sound = [one for one in listed if one.shard in written and one.reason in quarantine.BY_BYTES]
    return quarantine.remove(home, sound) if sound else 0
