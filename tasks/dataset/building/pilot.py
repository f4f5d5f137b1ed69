"""A pilot before a long build: a few samples spread over all, through every step and every check.

A wrong column, a wrong scale or a wrong folder spoils every sample; fifty of them show it in seconds, and a
page shows a person what the dataset will look like before the hours are spent.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from tasks.core.errors import DataError
from tasks.core.progress import Progress
from tasks.core.schema import Config, ShardRules
from tasks.dataset.building import rejects
from tasks.dataset.building.assemble import Shard, assemble
from tasks.dataset.building.catalogue import NAME, Catalogue
from tasks.dataset.building.convert import RULES, Conversion, convert, staged, tar_path
from tasks.dataset.building.facts import facts
from tasks.dataset.building.leaves import plan_leaves
from tasks.dataset.building.listing import SPILL
from tasks.dataset.building.plan import Weighed
from tasks.dataset.building.sidecar import first
from tasks.dataset.keys import position
from tasks.dataset.look import write_look
from tasks.dataset.verify import verify

SAMPLES = 50
WORTH_SAMPLES = 2000
"""A shorter build is its own pilot."""
PAGE = "pilot.html"


def run(
    config: Config,
    catalogue: Catalogue,
    staging: Path,
    to_convert: int,
    budget: rejects.Budget,
    progress: Progress,
) -> None:
    """Convert, verify and show SAMPLES samples when more than WORTH_SAMPLES are to be converted.

    DataError when so many of them are rejected that the budget cannot hold, or when a check fails. The page
    is `pilot.html` in the dataset's folder.
    """
    if to_convert < WORTH_SAMPLES:
        return
    progress(0, to_convert, "samples; first a pilot of a few")
    folder = staging / "pilot"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    shutil.copy(staging / RULES, folder / RULES)
    if (staging / SPILL).exists():
        (folder / SPILL).symlink_to((staging / SPILL).absolute())
    few = config.model_copy(
        update={"dataset": config.dataset.model_copy(update={"shard": ShardRules(samples=SAMPLES)})}
    )
    small = _spread(catalogue, folder, few)
    try:
        _judge(few, small, folder, budget)
    finally:
        small.close()
    shutil.rmtree(folder)


def _spread(catalogue: Catalogue, folder: Path, config: Config) -> Catalogue:
    """A catalogue of SAMPLES entries, evenly spread over all."""
    ranks = [1 + number * catalogue.accepted // SAMPLES for number in range(SAMPLES)]
    entries = [entry for rank in ranks for entry in catalogue.between(rank, rank + 1)]
    small = Catalogue(folder / NAME)
    with small.transaction():
        small.add(Weighed(position(entry.key), 1, entry) for entry in entries)
        small.sort(by_hash=True)
    plan_leaves(small, config.dataset)
    return small


def _judge(config: Config, small: Catalogue, folder: Path, budget: rejects.Budget) -> None:
    shards = []
    for leaf in list(small.leaves()):
        convert(Conversion(folder, leaf.ordinal))
        table = staged(folder, leaf.digest)
        assert table is not None
        small.reject(rejects.of_sidecar(small.entries(leaf), table))
        tar = tar_path(folder, leaf.digest)
        shards.append(Shard(leaf.split, table, None if first(table, "sha256") is None else tar))
    rejected = sum(small.reasons().values())
    if budget.is_hopeless(rejected, small.read):
        path = folder.parent / "rejects.parquet"
        rejects.write(path, small.rejects())
        raise DataError(
            f"the pilot stops the build before its first shard: of {small.read} samples spread over all,\n"
            + str(rejects.Budget(small.read, budget.share).error(small, path, config.dataset.private))
        )
    if rejected == small.read:
        return  # of a budget that allows it; there is nothing to show
    version, _ = assemble(config, small, shards, facts(config, small), folder)
    note = f"a pilot: {small.read} samples spread over all that are to be converted"
    write_look(version, config.dataset.output / PAGE, note)
    report = verify(version, "full")
    if not report.ok:
        lines = [line for finding in report.findings for line in finding.lines()]
        raise DataError("\n".join(["the pilot's shards do not pass their checks:", *lines]))
