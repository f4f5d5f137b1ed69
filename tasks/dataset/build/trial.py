"""What a pilot does, in its process: convert its few samples, judge them, draw them, verify their shards."""

from __future__ import annotations

import shutil
from pathlib import Path

from tasks.core.errors import DataError
from tasks.dataset.build import assemble
from tasks.dataset.build import rejects
from tasks.dataset.build.catalogue import NAME, Catalogue, reading
from tasks.dataset.build.convert import Conversion, convert, write_rules
from tasks.dataset.build.facts import facts
from tasks.dataset.build.leaves import plan_leaves
from tasks.dataset.build.listing import SPILL
from tasks.dataset.build.pilot_task import PAGE, Pilot
from tasks.dataset.build.shard_plan import Weighed
from tasks.dataset.build.staging import converted_shards, note_rejects
from tasks.dataset.rejects import reject_lines
from tasks.dataset.keys import position
from tasks.dataset.preview import write_look
from tasks.dataset.verify.run import verify


def run(pilot: Pilot) -> Path | None:
    """Convert, verify and show; the page, unless there is nothing to show. DataError."""
    folder = pilot.staging / "pilot"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    if (pilot.staging / SPILL).exists():
        (folder / SPILL).symlink_to((pilot.staging / SPILL).absolute())
    small = _few(pilot, folder)
    try:
        page = _judge(pilot, small, folder)
    finally:
        small.close()
    shutil.rmtree(folder)
    return page


def _few(pilot: Pilot, folder: Path) -> Catalogue:
    """A catalogue of the pilot's entries alone."""
    with reading(pilot.staging / NAME) as catalogue:
        entries = [entry for rank in pilot.ranks for entry in catalogue.between(rank, rank + 1)]
    small = Catalogue(folder / NAME)
    with small.transaction():
        small.add(Weighed(position(entry.key), 1, entry) for entry in entries)
        small.sort(by_hash=True)
    plan_leaves(small, pilot.config.dataset)
    return small


def _judge(pilot: Pilot, small: Catalogue, folder: Path) -> Path | None:
    config = pilot.config
    rules = write_rules(folder, config.dataset)
    leaves = [leaf.ordinal for leaf in small.leaves()]
    for ordinal in leaves:
        convert(Conversion(folder, rules, ordinal))
    note_rejects(small, {}, folder, leaves)
    rejected = sum(small.reasons().values())
    if pilot.budget.is_hopeless(rejected, small.read, pilot.to_convert):
        path = folder.parent / "rejects.parquet"
        rejects.write(path, small.rejects())
        lines = [
            f"the pilot stops the build: {rejected} of {small.read} samples spread over {pilot.to_convert:,} "
            f"are rejected; that passes dataset.reject_budget ({pilot.budget.share:.1%})",
            *reject_lines(path.parent, small.reasons(), config.dataset.private),
            f"  all are in {path}; mend the sources or the config and run again",
        ]
        raise DataError("\n".join(lines))
    if rejected == small.read:
        return None  # of a budget that allows it; there is nothing to show
    draft = assemble.begin(config, converted_shards(small, {}, folder, iter(leaves)), folder)
    version, _ = assemble.complete(draft, config, small, facts(config, small), folder)
    note = f"a pilot: {small.read} samples spread over all that are to be converted"
    page = config.dataset.output / PAGE
    write_look(version, page, note)
    report = verify(version, "full" if config.dataset.image.check == "decode" else "default")
    if not report.ok:
        lines = [line for finding in report.findings for line in finding.lines()]
        raise DataError("\n".join(["the pilot's shards do not pass their checks:", *lines]))
    return page
