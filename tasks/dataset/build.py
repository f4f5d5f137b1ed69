"""Raw data to a version of the dataset: list, plan, convert what is not there yet, assemble.

The build asks the disk what is done: shards of any version and of a killed build are taken over when they
are made of the same samples by the same rules. It never switches `current`; `versions.publish` does, once
the version is verified.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tasks.core.errors import DataError
from tasks.core.files import told_of_a_full_disk, write_json
from tasks.core.lease import Held, Lease
from tasks.core.progress import Progress, silent
from tasks.core.schema import Config
from tasks.dataset import versions
from tasks.dataset.building import changes, pilot, rejects
from tasks.dataset.building.assemble import Shard, assemble
from tasks.dataset.building.catalogue import Catalogue
from tasks.dataset.building.conversion import convert_all, rehashed
from tasks.dataset.building.convert import RULES, staged, tar_path
from tasks.dataset.building.facts import facts
from tasks.dataset.building.leaves import plan_leaves
from tasks.dataset.building.listing import fingerprint, list_samples
from tasks.dataset.building.redo import leaf_of_shard
from tasks.dataset.building.reuse import Known, KnownSidecars, known_leaves
from tasks.dataset.building.rules import rules_of
from tasks.dataset.building.sidecar import first
from tasks.dataset.freshness import is_up_to_date, unchanged
from tasks.dataset.manifest import Manifest, read_manifest

__all__ = ["BuildResult", "build", "is_up_to_date"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class BuildResult:
    """What a build did. read = accepted + filtered + rejected; `previous` is the version current before, of
    which `lost` samples are gone, while `gained` are new."""

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
    progress: Progress = silent,
    *,
    rehash: bool = False,
    accept_loss: bool = False,
    shard: str | None = None,
    waits: bool = True,
) -> BuildResult:
    """Build the dataset's next version; waits for whoever else builds it, unless `waits` is False (Held).

    UsageError for a config that does not fit the source, DataError when the source holds nothing, the rejects
    are certain to pass the budget, too many samples are gone, or the disk is full.
    """
    started = time.monotonic()
    inputs = fingerprint(config, progress)  # a wrong config is told before anything is written
    output = config.dataset.output
    with told_of_a_full_disk(output):
        lease = Lease(output / "lease.json")
        try:
            lease.acquire()
        except Held as held:
            if not waits:
                raise
            logger.warning("%s; waiting", held)
            progress(0, 0, f"{held}; waiting")
            lease.wait()
            inputs = fingerprint(config, progress)
        try:
            asked = Asked(rehash, accept_loss, shard)
            return _Build(config, output / "staging", progress, asked, started).run(inputs)
        finally:
            lease.release()


@dataclass
class _Build:
    """One build, from its lease on."""

    config: Config
    staging: Path
    progress: Progress
    asked: Asked
    started: float

    def run(self, inputs: str) -> BuildResult:
        output = self.config.dataset.output
        before = versions.current(output)
        if before is not None and not self.asked.wants_work and unchanged(before, inputs):
            shutil.rmtree(self.staging, ignore_errors=True)  # of a build that was killed when all was done
            return self._result(before, read_manifest(before), 0, before, changes.NONE)
        again = None if self.asked.shard is None else leaf_of_shard(before, self.asked.shard)
        self.staging.mkdir(exist_ok=True)
        write_json(self.staging / RULES, rules_of(self.config.dataset))
        catalogue = list_samples(self.config, self.staging, self.progress)
        try:
            plan_leaves(catalogue, self.config.dataset)
            known = self._known(catalogue, again)
            self._convert(catalogue, known)
            _require_some(catalogue)
            changed = changes.since(before, catalogue)
            if not self.asked.accept_loss:
                changed.check(before)
            shards = list_of(catalogue, known, self.staging)
            told = facts(self.config, catalogue)
            version, manifest = assemble(self.config, catalogue, shards, told, output)
        finally:
            catalogue.close()
        rewritten = sum(1 for path in self.staging.glob("*.tar"))
        shutil.rmtree(self.staging)
        return self._result(version, manifest, rewritten, before, changed)

    def _known(self, catalogue: Catalogue, again: str | None) -> dict[int, Known]:
        known = known_leaves(self.config.dataset.output, catalogue)
        if self.asked.rehash:
            for left in self.staging.glob("*.arrow"):
                left.unlink()
            for ordinal in rehashed(self.config, self.staging, known, self.progress):
                del known[ordinal]
        if again is not None:
            (self.staging / f"{again}.arrow").unlink(missing_ok=True)
            for ordinal in catalogue.ordinals(again):
                known.pop(ordinal, None)
        return known

    def _convert(self, catalogue: Catalogue, known: Mapping[int, Known]) -> None:
        """Convert whatever no version holds into `staging`; DataError once the budget is sure to be passed.

        Afterwards the catalogue knows all rejects.
        """
        budget = rejects.Budget(catalogue.read, self.config.dataset.reject_budget)
        budget.add(catalogue.reasons())
        for one in known.values():
            budget.add(one.rejects)
        done = sum(one.samples for one in known.values())
        ordinals = [leaf.ordinal for leaf in catalogue.leaves() if leaf.ordinal not in known]
        if not budget.is_exceeded:
            pilot.run(self.config, catalogue, self.staging, catalogue.accepted - done, budget, self.progress)
            convert_all(self.config, self.staging, ordinals, budget, done, catalogue.accepted, self.progress)
        self._note_rejects(catalogue, known)
        if budget.is_exceeded:
            path = self.staging / "rejects.parquet"
            rejects.write(path, catalogue.rejects())
            raise budget.error(catalogue, path, self.config.dataset.private)

    def _note_rejects(self, catalogue: Catalogue, known: Mapping[int, Known]) -> None:
        """Bring the rejects of all converted shards into the catalogue."""
        sidecars = KnownSidecars()
        unread: Counter[str] = Counter()
        with catalogue.transaction():
            for leaf in catalogue.leaves():
                one = known.get(leaf.ordinal)
                if one is not None and not one.rejects:
                    continue
                table = staged(self.staging, leaf.digest) if one is None else sidecars[one]
                if table is not None:
                    found = list(rejects.of_sidecar(catalogue.entries(leaf), table))
                    unread.update(reject.reason for reject in found)
                    catalogue.reject(found)
            catalogue.note("unread", unread[rejects.TRANSIENT])

    def _result(
        self,
        version: Path,
        manifest: Manifest,
        rewritten: int,
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
            up_to_date=version == before and rewritten == 0,
            seconds=round(time.monotonic() - self.started, 3),
        )


def _require_some(catalogue: Catalogue) -> None:
    """DataError when no sample is left to make a dataset of."""
    if catalogue.accepted == catalogue.rejected_entries:
        raise DataError(
            f"none of {catalogue.read:,} samples is left: {catalogue.filtered:,} filtered, "
            f"{sum(catalogue.reasons().values()):,} rejected; loosen dataset.filter or mend the source"
        )


def list_of(catalogue: Catalogue, known: Mapping[int, Known], staging: Path) -> Iterator[Shard]:
    """Every leaf as the shard it has become; DataError when one was taken away meanwhile."""
    sidecars = KnownSidecars()
    for leaf in catalogue.leaves():
        one = known.get(leaf.ordinal)
        if one is not None:
            tar = None if one.tar is None else one.version / one.tar
            yield Shard(leaf.split, sidecars[one], tar)
            continue
        table = staged(staging, leaf.digest)
        if table is None:
            raise DataError(f"a converted shard has gone from {staging}; build again")
        yield Shard(
            leaf.split, table, None if first(table, "sha256") is None else tar_path(staging, leaf.digest)
        )
