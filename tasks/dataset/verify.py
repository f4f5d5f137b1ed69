"""Is a dataset sound? Three levels, each holding the one before.

`quick` looks at tables, names, sizes, end blocks and index, without reading a shard. `default` reads every
byte: checksums, tar structure, members, keys. `full` decodes every member and applies the modality's rules.
All causes are reported, not only the first; torn files are findings, never a crash.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from tasks.core.engines.local import map_here
from tasks.core.errors import UsageError
from tasks.core.findings import Finding, Report
from tasks.core.process import available_cores
from tasks.core.progress import Progress, silent
from tasks.dataset.samples import MODALITIES
from tasks.dataset.verification.faults import REMAKE, fault
from tasks.dataset.verification.files import file_faults, index_faults, tars_of, where
from tasks.dataset.verification.inside import SHOWN, Inside, Task, inspect
from tasks.dataset.verification.tables import Shard, Tables, read_tables

Level = Literal["quick", "default", "full"]
NOT_SEEN = {
    "quick": ["the bytes within the shards", "whether members decode"],
    "default": ["whether members decode"],
    "full": [],
}
WORTH_WORKERS_BYTES = 256_000_000
"""Below this, starting worker processes costs more than it saves."""


def verify(path: Path, level: Level = "default", progress: Progress = silent) -> Report:
    """Judge the dataset or version at `path`; UsageError when there is no such folder."""
    version = _version(path)
    tables, findings = read_tables(version)
    tasks = []
    if tables.shards is None:
        tasks = [
            Task(version, name, None, None, None, _modality(tables), level == "full")
            for name in tars_of(version)
        ]
    else:
        findings += file_faults(version, tables.shards)
        for split in sorted({shard.split for shard in tables.shards}):
            mine = [shard for shard in tables.shards if shard.split == split]
            index, faults = index_faults(version, split, mine)
            findings += faults
            tasks += list(_tasks(version, tables, split, mine, index, level == "full"))
    insides = [] if level == "quick" else _look_inside(tasks, progress)
    copies = _copies(insides, tables.shards or [])
    findings += [found for inside in insides for found in _inside_faults(inside)]
    findings = [found for found in findings if found.where.get("shard") not in copies]
    findings += [
        fault("shard.checksum", REMAKE, where(name), problem=f"holds the content of {other}")
        for name, other in copies.items()
    ]
    if level == "full" and _modality(tables) not in MODALITIES:
        level = "default"  # without the modality's rules nothing was decoded
    return Report(_merged(findings), not_seen=NOT_SEEN[level])


def _version(path: Path) -> Path:
    """The version's folder, even when its manifest is missing, which is then a finding."""
    target = path.parent / os.readlink(path) if path.is_symlink() else path
    link = target / "current"
    if not (target / "manifest.json").exists() and link.is_symlink():
        target = target / os.readlink(link)
    if not target.is_dir():
        raise UsageError(
            f"{path} is no dataset: there is no folder {target}; give DATASET or a version's folder"
        )
    return target


def _modality(tables: Tables) -> str | None:
    return tables.manifest.modality if tables.manifest else None


def _tasks(
    version: Path, tables: Tables, split: str, shards: list[Shard], index: Any, decodes: bool
) -> Iterator[Task]:
    samples = tables.samples.get(split)
    start = 0
    for shard in shards:
        stop = start + shard.samples
        rows = None if index is None else index[start:stop]
        keys = None if samples is None else samples.column("key")[start:stop].to_pylist()
        yield Task(version, shard.name, shard, rows, keys, _modality(tables), decodes)
        start = stop


def _look_inside(tasks: list[Task], progress: Progress) -> list[Inside]:
    insides = []
    for done, inside in enumerate(_map(tasks), 1):
        progress(done, len(tasks), "shards")
        insides.append(inside)
    return sorted(insides, key=_name)


def _name(inside: Inside) -> str:
    return inside.name


def _map(tasks: list[Task]) -> Iterable[Inside]:
    size_bytes = sum(task.shard.bytes if task.shard else 0 for task in tasks)
    workers = available_cores()
    if size_bytes < WORTH_WORKERS_BYTES or workers < 2:
        return map(inspect, tasks)
    return map_here(inspect, tasks, workers)


def _copies(insides: list[Inside], shards: list[Shard]) -> dict[str, str]:
    """Shards whose content is that of another shard, by name: they were swapped or copied."""
    names = {shard.sha256: shard.name for shard in shards}
    others = {inside.name: names.get(inside.sha256 or "") for inside in insides}
    return {name: other for name, other in others.items() if other is not None and other != name}


def _inside_faults(inside: Inside) -> list[Finding]:
    """The shard's findings; of those on samples the first few of each kind, the last with the number left."""
    findings = list(inside.shard_findings)
    for code in dict.fromkeys(found.code for found in inside.sample_findings):
        same = [found for found in inside.sample_findings if found.code == code]
        findings += same[:SHOWN]
        if len(same) > SHOWN:
            last = findings[-1]
            findings[-1] = replace(
                last, evidence={**last.evidence, "and_more_of_its_kind": len(same) - SHOWN}
            )
    return findings


def _merged(findings: Iterable[Finding]) -> list[Finding]:
    """One finding for each code and place, with all evidence: size and content may show the same damage."""
    merged: dict[tuple[str, ...], Finding] = {}
    for found in findings:
        place = (found.code, *map(str, found.where.items()))
        known = merged.get(place)
        merged[place] = (
            found if known is None else replace(known, evidence={**known.evidence, **found.evidence})
        )
    return list(merged.values())
