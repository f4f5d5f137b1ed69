"""Raw data to a version of the dataset: list, plan, convert what is not there yet, assemble.

The build asks the disk what is done: shards of any version and of a killed build are taken over when they
are made of the same samples by the same rules. It never switches `current`; `versions.publish` does, once
the version is verified.
"""

from __future__ import annotations

import logging
import shutil
import socket
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any

from tasks.core.engine import map_groups
from tasks.core.lease import Held, Lease
from tasks.core.progress import Progress, silent
from tasks.core.schema import Config
from tasks.dataset import rejects, versions
from tasks.dataset.assemble import assemble
from tasks.dataset.convert import Conversion, convert, staged, tar_path
from tasks.dataset.freshness import is_up_to_date, unchanged
from tasks.dataset.leaves import Leaf, plan_leaves
from tasks.dataset.listing import Listing, list_samples
from tasks.dataset.manifest import Manifest, read_manifest
from tasks.dataset.reuse import Known, known_leaves
from tasks.dataset.tables import write_table

__all__ = ["BuildResult", "build", "is_up_to_date"]

NOTE = "samples"
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class BuildResult:
    """What a build did. read = accepted + filtered + rejected; `previous` is the version current before."""

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
    up_to_date: bool
    seconds: float


def build(config: Config, progress: Progress = silent) -> BuildResult:
    """Build the dataset's next version; waits for whoever else builds it.

    UsageError for a config that does not fit the source, DataError when the source holds nothing or the
    rejects are certain to pass the budget.
    """
    started = time.monotonic()
    listing = list_samples(config, progress)  # a wrong config is told before anything is written
    lease = Lease(config.dataset.output / "lease.json")
    try:
        lease.acquire()
    except Held as held:
        logger.warning("%s; waiting", held)
        progress(0, 0, f"{held}; waiting")
        lease.wait()
        listing = list_samples(config, progress)
    try:
        return _build(config, listing, progress, started)
    finally:
        lease.release()


def _build(config: Config, listing: Listing, progress: Progress, started: float) -> BuildResult:
    output = config.dataset.output
    staging = output / "staging"
    before = versions.current(output)
    if before is not None and unchanged(before, listing):
        shutil.rmtree(staging, ignore_errors=True)  # of a build that was killed when all was done
        return _result(before, read_manifest(before), 0, before, started)
    leaves = plan_leaves(listing, config.dataset)
    known = known_leaves(output, leaves)
    staging.mkdir(exist_ok=True)
    _convert(config, listing, leaves, known, staging, progress)
    converted = [(leaf, known.get(leaf.digest) or _fresh(staging, leaf)) for leaf in leaves]
    version, manifest = assemble(config, listing, converted, _facts(config, listing))
    rewritten = sum(1 for _, one in converted if one.tar is not None and one.tar.parent == staging)
    shutil.rmtree(staging)
    return _result(version, manifest, rewritten, before, started)


def _convert(
    config: Config,
    listing: Listing,
    leaves: Sequence[Leaf],
    known: Mapping[str, Known],
    staging: Path,
    progress: Progress,
) -> None:
    """Convert into `staging` whatever no version holds; DataError once the budget is certain to be passed."""
    done = {digest: one.table for digest, one in known.items()}
    budget = rejects.Budget(listing.read, config.dataset.reject_budget)
    budget.add(Counter(reject.reason for reject in listing.rejects))
    for table in done.values():
        budget.add(Counter(reason for reason in table.column("reason").to_pylist() if reason is not None))
    samples = sum(table.num_rows for table in done.values())
    work = [Conversion(leaf, config.dataset, staging) for leaf in leaves if leaf.digest not in known]
    _check(config, budget, listing, leaves, done, staging)
    for result in map_groups(convert, work, config.engine.build.workers):
        samples += result.samples
        progress(samples, len(listing.entries), NOTE)
        budget.add(result.rejects)
        if budget.is_exceeded:
            break  # which ends the map: the shards in hand are finished, no more are begun
    _check(config, budget, listing, leaves, done, staging)


def _check(
    config: Config,
    budget: rejects.Budget,
    listing: Listing,
    leaves: Sequence[Leaf],
    done: Mapping[str, Any],
    staging: Path,
) -> None:
    if not budget.is_exceeded:
        return
    tables = ((leaf, done.get(leaf.digest) or staged(staging, leaf.digest)) for leaf in leaves)
    rejected = rejects.collect(listing, ((leaf, table) for leaf, table in tables if table is not None))
    path = staging / "rejects.parquet"
    write_table(path, rejects.to_table(rejected))
    raise budget.error(rejected, path, config.dataset.private)


def _fresh(staging: Path, leaf: Leaf) -> Known:
    """The shard just converted."""
    table = staged(staging, leaf.digest)
    assert table is not None, f"{leaf.digest} was converted and is not in {staging}"
    tar = tar_path(staging, leaf.digest)
    return Known(table, tar if tar.exists() else None)


def _facts(config: Config, listing: Listing) -> dict[str, Any]:
    """What depends on time and place: build.json."""
    packages = ("numpy", "pillow", "pyarrow")
    return {
        "inputs_digest": listing.digest,
        "built": time.time(),
        "host": socket.gethostname(),
        "engine": config.engine.build.model_dump(mode="json"),
        "python": sys.version.split()[0],
        "versions": {name: package_version(name) for name in packages},
        "output": str(config.dataset.output),
    }


def _result(
    version: Path, manifest: Manifest, rewritten: int, before: Path | None, started: float
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
        up_to_date=version == before and rewritten == 0,
        seconds=round(time.monotonic() - started, 3),
    )
