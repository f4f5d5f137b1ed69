"""Some damaged shards at once: their samples looked for in one pass over the source, then each made whole."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.core.engines.local import map_here
from tasks.core.units import counted
from tasks.dataset.build.catalogue import NAME, Catalogue
from tasks.dataset.build.shard_plan import PlannedShard
from tasks.dataset.build.spill import FOLDER as SPILL
from tasks.dataset.build.staging import write_rules
from tasks.dataset.keys import shard_hash
from tasks.dataset.repair import reasons
from tasks.dataset.repair.mend import Mended, Mending, mend
from tasks.dataset.repair.outcome import BRING_BACK, MOVED
from tasks.dataset.repair.recipes import Built, spans_of
from tasks.dataset.repair.seek import Found, Sought, seek
from tasks.dataset.repair.work import Work


@dataclass(frozen=True)
class Plan:
    """A shard that is to be made: its samples, and which of them its file still has."""

    shard: Built
    rows: Any
    sound: list[bool]

    @property
    def needed(self) -> list[int]:
        return [row for row, is_sound in enumerate(self.sound) if not is_sound]

    @property
    def spans(self) -> NDArray[np.int64]:
        return spans_of(self.rows)

    def column(self, name: str) -> list[Any]:
        return list(self.rows.column(name).to_pylist())


class Round:
    """Some shards at once: their samples looked for in one pass over the source."""

    def __init__(self, work: Work, plans: Sequence[Plan]) -> None:
        self._work = work
        self._plans = {plan.shard.name: plan for plan in plans}
        self._staging = work.place.staging
        self._found = Found()

    def run(self) -> None:
        try:
            self._run()
        finally:
            shutil.rmtree(self._staging, ignore_errors=True)  # a full disk is not to be kept so

    def _run(self) -> None:
        shutil.rmtree(self._staging, ignore_errors=True)
        self._staging.mkdir(parents=True)
        self._work.place.good.mkdir(exist_ok=True)
        sought = self._sought()
        rules = ""
        if sought:
            dataset = self._work.origin.dataset
            rules = write_rules(self._staging, dataset)
            self._found = seek(dataset, sought, self._staging / SPILL, self._work.progress)
        whole = [plan for plan in self._plans.values() if self._is_found(plan)]
        ordinals = self._catalogue(whole) if sought else {}
        tasks = [self._task(plan, rules, ordinals.get(plan.shard.name)) for plan in whole]
        # A converter keeps its sources open, so what is converted here would be read as it is now for ever.
        results = map_here(mend, tasks, self._work.origin.workers) if sought else map(mend, tasks)
        for mended in results:
            self._finish(mended)

    def _sought(self) -> dict[str, Sought]:
        sought: dict[str, Sought] = {}
        for name, plan in self._plans.items():
            columns = ("key", "original_key", "file", "size", "stamp")
            rows = plan.rows.select(columns).take(plan.needed).to_pylist() if plan.needed else []
            for row in rows:
                key = row.pop("key")
                sought[key] = Sought(number=len(sought), shard=name, **row)
        return sought

    def _is_found(self, plan: Plan) -> bool:
        """Whether all that the shard needs is there; it has failed otherwise."""
        keys, names = plan.column("key"), plan.column("original_key")
        lacking = [row for row in plan.needed if keys[row] not in self._found.entries]
        if not lacking:
            return True
        why = {names[row]: self._found.lost.get(keys[row], "") for row in lacking}
        reason = reasons.of_lost(why, len(keys), self._found.troubles, self._work.origin.is_private)
        if self._found.is_of_host or any(keys[row] in self._found.unread for row in lacking):
            self._work.fail_for_host(plan.shard, reason)
        else:
            self._work.fail(plan.shard, reason, MOVED if self._found.troubles else BRING_BACK)
        return False

    def _catalogue(self, plans: Iterable[Plan]) -> dict[str, int]:
        """Write the entries as leaves of a catalogue, a shard a leaf; their ordinals by shard."""
        names = {plan.shard.name: plan for plan in plans}
        ordinals = {}
        catalogue = Catalogue(self._staging / NAME)
        try:
            with catalogue.transaction():
                entries = [one for one in self._found.entries.values() if one.split in names]
                catalogue.add((one, shard_hash(one.key), 1) for one in entries)
                catalogue.sort(by_hash=False)
                start = 1  # ranks count the samples from 1, split by split
                for ordinal, name in enumerate(catalogue.splits()):
                    stop = start + len(names[name].needed)
                    catalogue.add_shards([PlannedShard(ordinal, name, start, stop, names[name].shard.blake3)])
                    ordinals[name] = ordinal
                    start = stop
        finally:
            catalogue.close()
        return ordinals

    def _task(self, plan: Plan, rules: str, ordinal: int | None) -> Mending:
        shard = plan.shard
        return Mending(
            shard.name,
            shard.blake3,
            self._work.good(shard),
            self._work.path(shard),
            plan.spans,
            plan.column("content"),
            plan.sound,
            self._staging,
            rules,
            ordinal,
        )

    def _finish(self, mended: Mended) -> None:
        plan = self._plans[mended.name]
        if not mended.is_whole:
            names = plan.column("original_key")
            origin = self._work.origin
            reason = reasons.of_mended(mended, names, self._changes(plan), len(names), origin)
            fail = self._work.fail_for_host if mended.is_of_host else self._work.fail
            fail(plan.shard, reason)
            return
        count, samples = len(plan.needed), counted(len(plan.sound), "sample")
        if not count:
            how, way = "put together again: all its samples were sound", "joined"
        elif count == len(plan.sound):
            how, way = f"converted again: {samples}", "converted"
        else:
            how, way = f"{count:,} of {samples} converted again, the others were sound", "converted"
        self._work.install(plan.shard, self._work.good(plan.shard), how, way)

    def _changes(self, plan: Plan) -> dict[int, str]:
        """What is to be seen from outside of the raw samples that may have changed."""
        changes = {}
        keys, sizes, stamps = (plan.column(name) for name in ("key", "size", "stamp"))
        for row in plan.needed:
            entry = self._found.entries[keys[row]]
            if sizes[row] is not None and entry.size != sizes[row]:
                changes[row] = f"{entry.size:,} bytes, were {sizes[row]:,}"
            elif stamps[row] is not None and entry.stamp == stamps[row]:
                changes[row] = "with the same size and time"
        return changes
