"""The inside of one shard: its checksum, and each of its samples against index, tables and rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from tasks.core.findings import Finding
from tasks.dataset.samples import MODALITIES, Modality, missing
from tasks.dataset.verification.faults import REBUILD, REMAKE, fault
from tasks.dataset.verification.files import where
from tasks.dataset.verification.tables import Shard
from tasks.dataset.verification.walk import Stored, Walk, suffix_of

SHOWN = 5
"""Findings of one kind shown for a shard; the last one counts the rest."""


@dataclass(frozen=True)
class Task:
    """A shard to look into. `shard`, `index` and `keys` are None where their table could not be read."""

    version: Path
    name: str
    shard: Shard | None
    index: NDArray[np.void] | None
    keys: Sequence[str] | None
    modality: str | None
    decodes: bool


@dataclass(frozen=True)
class Inside:
    """What was found; `sha256` is the file's own, None when it could not be read."""

    name: str
    sha256: str | None
    shard_findings: list[Finding]
    sample_findings: list[Finding]


def inspect(task: Task) -> Inside:
    """Read one shard from its first byte to its last."""
    try:
        with (task.version / task.name).open("rb") as file:
            walk = Walk(file, task.decodes)
            samples, found = _walk(task, walk)
            sha256 = walk.sha256()
    except FileNotFoundError:
        return Inside(task.name, None, [], [])  # the look at the files has reported it
    except OSError as error:
        problem = f"unreadable: {error.strerror or error}"
        return Inside(
            task.name, None, [fault("shard.checksum", REMAKE, where(task.name), problem=problem)], []
        )
    is_sound = task.shard is None or sha256 == task.shard.sha256
    is_cut = walk.damage is not None and walk.damage.is_cut
    return Inside(
        task.name,
        sha256,
        list(_shard_faults(task, walk, samples, sha256)),
        [*found, *_span_faults(task, samples, len(samples) if is_cut else None, is_sound)],
    )


def _walk(task: Task, walk: Walk) -> tuple[list[Stored], list[Finding]]:
    modality = MODALITIES.get(task.modality or "")
    samples: list[Stored] = []
    findings: list[Finding] = []
    seen: set[str] = set()
    for sample in walk.samples():
        at = {**where(task.name), "key": sample.key}
        if sample.key in seen:
            problem = "its members do not stand together"
            findings.append(fault("sample.split_members", REMAKE, at, problem=problem))
        seen.add(sample.key)
        findings += _member_faults(at, sample, modality, task.decodes)
        sample.contents.clear()
        samples.append(sample)
    return samples, findings


def _member_faults(
    at: dict[str, Any], sample: Stored, modality: Modality | None, decodes: bool
) -> Iterator[Finding]:
    sizes: dict[str, int] = {}
    for header in sample.headers:
        suffix = suffix_of(header)
        member = {**at, "member": suffix}
        if header.kind != "0" or header.name.startswith("/") or ".." in header.name.split("/") or not suffix:
            problem = f"{header.name!r} of kind {header.kind!r}"
            yield fault("member.unsafe", "remove it: a shard holds plain files only", member, problem=problem)
        if suffix in sizes:
            yield fault("sample.duplicate_key", REMAKE, member, problem="the sample has this member twice")
        if header.size == 0:
            yield fault("member.empty", REMAKE, member, bytes=0)
        sizes[suffix] = header.size
    if modality is None:
        return
    for choices in missing(modality.required, sizes):
        there = " ".join(sorted(sizes))
        yield fault("sample.missing_member", REMAKE, {**at, "member": choices}, there=there)
    if decodes:
        contents = {suffix: content for suffix, content in sample.contents.items() if content}
        for found in modality.judge(contents):
            yield fault(found.code, REMAKE, {**at, "member": found.member}, problem=found.evidence)


def _shard_faults(task: Task, walk: Walk, samples: list[Stored], sha256: str) -> Iterator[Finding]:
    at = where(task.name)
    damage = walk.damage
    if damage is not None and damage.is_cut:
        yield fault("shard.truncated", REMAKE, at, problem=str(damage), whole_samples=len(samples))
        return
    if task.shard is not None and sha256 != task.shard.sha256:
        evidence = {} if damage is None else {"problem": str(damage)}
        expected = task.shard.sha256[:12]
        yield fault("shard.checksum", REMAKE, at, sha256=sha256[:12], expected=expected, **evidence)
    elif damage is not None:
        yield fault("shard.checksum", REMAKE, at, problem=str(damage))
    if damage is None and task.shard is not None and len(samples) != task.shard.samples:
        yield fault("shard.count", REMAKE, at, samples=len(samples), expected=task.shard.samples)


def _span_faults(task: Task, samples: list[Stored], stop: int | None, is_sound: bool) -> Iterator[Finding]:
    """Place, checksum and key of the samples up to `stop`; those behind damage are read by the index."""
    if task.index is None:
        return
    code = "index.mismatch" if is_sound else "member.checksum"
    remedy = REBUILD if is_sound else REMAKE
    at = where(task.name)
    for row, entry in enumerate(task.index[:stop]):
        sample = samples[row] if row < len(samples) else None
        key = task.keys[row] if task.keys is not None and row < len(task.keys) else None
        if sample is not None and (sample.offset, sample.length) == (entry["offset"], entry["length"]):
            crc32c = sample.crc32c
        else:
            crc32c = _crc32c(task.version / task.name, int(entry["offset"]), int(entry["length"]))
            sample = None
        if crc32c != entry["crc32c"]:
            name = key or (sample.key if sample else None)
            yield fault(code, remedy, {**at, "key": name}, row=row, problem="CRC32C differs from the index")
        elif sample is not None and key is not None and sample.key != key:
            problem = f"the tar holds {sample.key!r} in this place"
            file = f"samples/{at['split']}.parquet"
            yield fault("manifest.invalid", REBUILD, {**at, "file": file, "key": key}, problem=problem)


def _crc32c(path: Path, offset: int, length: int) -> int:
    with path.open("rb") as file:
        file.seek(offset)
        return int(google_crc32c.value(file.read(length)))
