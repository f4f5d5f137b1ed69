"""A pilot before a long build: a few samples spread over all, through every step and every check.

A wrong column, a wrong scale or a wrong folder spoils every sample; fifty of them show it in seconds, and a
page shows a person what the dataset will look like before the hours are spent.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from tasks.core.errors import DataError
from tasks.core.progress import Progress
from tasks.core.schema import Config, ShardRules
from tasks.dataset.building import rejects
from tasks.dataset.building.assemble import assemble
from tasks.dataset.building.catalogue import NAME, Catalogue, Leaf
from tasks.dataset.building.convert import Conversion, convert, write_rules
from tasks.dataset.building.facts import facts
from tasks.dataset.building.leaves import plan_leaves
from tasks.dataset.building.listing import SPILL
from tasks.dataset.building.plan import Weighed
from tasks.dataset.building.spread import spread
from tasks.dataset.building.staging import converted_shards, note_rejects
from tasks.dataset.groups import reject_lines
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
    missing: Sequence[Leaf],
    budget: rejects.Budget,
    progress: Progress,
) -> None:
    """Convert, verify and show SAMPLES samples of the `missing` leaves when these hold WORTH_SAMPLES or more.

    DataError when so many of them are rejected that the budget cannot hold, or when a check fails. The page
    is `pilot.html` in the dataset's folder.
    """
    to_convert = sum(leaf.samples for leaf in missing)
    if to_convert < WORTH_SAMPLES:
        return
    progress(0, to_convert, "samples; first a pilot of a few")
    folder = staging / "pilot"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    if (staging / SPILL).exists():
        (folder / SPILL).symlink_to((staging / SPILL).absolute())
    few = config.model_copy(
        update={"dataset": config.dataset.model_copy(update={"shard": ShardRules(samples=SAMPLES)})}
    )
    small = _few(catalogue, spread(missing, SAMPLES), folder, few)
    try:
        _judge(few, small, folder, budget, to_convert)
    finally:
        small.close()
    shutil.rmtree(folder)


def _few(catalogue: Catalogue, ranks: Sequence[int], folder: Path, config: Config) -> Catalogue:
    """A catalogue of these entries alone."""
    entries = [entry for rank in ranks for entry in catalogue.between(rank, rank + 1)]
    small = Catalogue(folder / NAME)
    with small.transaction():
        small.add(Weighed(position(entry.key), 1, entry) for entry in entries)
        small.sort(by_hash=True)
    plan_leaves(small, config.dataset)
    return small


def _judge(config: Config, small: Catalogue, folder: Path, budget: rejects.Budget, to_convert: int) -> None:
    rules = write_rules(folder, config.dataset)
    for leaf in small.leaves():
        convert(Conversion(folder, rules, leaf.ordinal))
    note_rejects(small, {}, folder)
    rejected = sum(small.reasons().values())
    if budget.is_hopeless(rejected, small.read, to_convert):
        path = folder.parent / "rejects.parquet"
        rejects.write(path, small.rejects())
        lines = [
            f"the pilot stops the build before its first shard: {rejected} of {small.read} samples spread "
            f"over {to_convert:,} are rejected; that passes dataset.reject_budget ({budget.share:.1%})",
            *reject_lines(path.parent, small.reasons(), config.dataset.private),
            f"  all are in {path}; mend the sources or the config and run again",
        ]
        raise DataError("\n".join(lines))
    if rejected == small.read:
        return  # of a budget that allows it; there is nothing to show
    shards = converted_shards(small, {}, folder)
    version, _ = assemble(config, small, shards, facts(config, small), folder)
    note = f"a pilot: {small.read} samples spread over all that are to be converted"
    write_look(version, config.dataset.output / PAGE, note)
    report = verify(version, "full" if config.dataset.image.check == "decode" else "default")
    if not report.ok:
        lines = [line for finding in report.findings for line in finding.lines()]
        raise DataError("\n".join(["the pilot's shards do not pass their checks:", *lines]))
