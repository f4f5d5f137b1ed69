"""The manifest and the tables beside it: readable, and at one with each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.core.errors import DataError
from tasks.core.files import read_json
from tasks.core.findings import Finding
from tasks.dataset.manifest import Manifest, content_digest, read_manifest, version_name
from tasks.dataset.samples import MODALITIES
from tasks.dataset.shards import shard_name
from tasks.dataset.tables import read_table
from tasks.dataset.verification.faults import REBUILD, UPDATE, fault

INTEGERS = ("bytes", "samples", "shard", "row")


@dataclass(frozen=True, slots=True)
class Shard:
    """A row of `shards.parquet`."""

    name: str
    split: str
    sha256: str
    bytes: int
    samples: int


@dataclass(frozen=True)
class Tables:
    """Whatever of the tables could be read; None or absent where it could not."""

    manifest: Manifest | None
    shards: list[Shard] | None
    samples: dict[str, Any]


def read_tables(version: Path) -> tuple[Tables, list[Finding]]:
    """Read the tables and compare them with each other."""
    findings: list[Finding] = []
    manifest = _manifest(version, findings)
    shards = _shards(version, findings)
    splits = sorted(manifest.splits if manifest else {shard.split for shard in shards or []})
    samples = {}
    for split in splits:
        table = _read(version / "samples" / f"{split}.parquet", ("key", "shard", "row"), findings)
        if table is not None:
            samples[split] = table
    tables = Tables(manifest, shards, samples)
    if manifest is not None:
        findings += _rejects_faults(version, manifest)
        if shards is not None:
            findings += _count_faults(manifest, shards)
    if shards is not None:
        findings += _sizes_faults(version, shards)
        for split, table in samples.items():
            findings += _samples_faults(split, table, [shard for shard in shards if shard.split == split])
    findings += _key_faults(samples) + _group_faults(samples)
    return tables, findings


def _invalid(file: str, problem: str, **where: Any) -> Finding:
    return fault("manifest.invalid", REBUILD, {"file": file, **where}, problem=problem)


def _manifest(version: Path, findings: list[Finding]) -> Manifest | None:
    try:
        manifest = read_manifest(version)
    except DataError as error:
        findings.append(_invalid("manifest.json", str(error)))
        return None
    name = version_name((version / "manifest.json").read_bytes())
    if version.parent.name == "versions" and version.name != name:
        findings.append(_invalid("manifest.json", f"it was changed: its digest is {name}"))
    if manifest.modality not in MODALITIES:
        problem = f"modality {manifest.modality!r} is none of {', '.join(MODALITIES)}"
        at = {"file": "manifest.json"}
        findings.append(fault("manifest.invalid", UPDATE, at, problem=problem))
    if manifest.read != manifest.accepted + manifest.filtered + manifest.rejected:
        findings.append(_invalid("manifest.json", "read is not accepted + filtered + rejected"))
    return manifest


def _read(path: Path, columns: Sequence[str], findings: list[Finding]) -> Any | None:
    file = f"{path.parent.name}/{path.name}" if path.parent.name == "samples" else path.name
    try:
        table = read_table(path)
        table.validate(full=True)
    except FileNotFoundError:
        findings.append(_invalid(file, "missing"))
        return None
    except (OSError, pa.ArrowException) as error:
        findings.append(_invalid(file, f"unreadable: {str(error)[:200]}"))
        return None
    lacking = [name for name in columns if name not in table.column_names or not _is_usable(table, name)]
    if lacking:
        findings.append(_invalid(file, f"no sound column {', '.join(lacking)}"))
        return None
    return table


def _is_usable(table: Any, column: str) -> bool:
    values = table.column(column)
    is_typed = pa.types.is_integer if column in INTEGERS else pa.types.is_string
    return bool(is_typed(values.type) and not values.null_count)


def _shards(version: Path, findings: list[Finding]) -> list[Shard] | None:
    columns = ("name", "split", "sha256", "bytes", "samples")
    table = _read(version / "shards.parquet", columns, findings)
    if table is None:
        return None
    shards = [Shard(**row) for row in table.select(columns).to_pylist()]
    numbers: Counter[str] = Counter()
    for shard in shards:
        if shard.name != shard_name(shard.split, numbers[shard.split]):
            problem = f"{shard.name} where {shard_name(shard.split, numbers[shard.split])} belongs"
            findings.append(_invalid("shards.parquet", problem))
            return None
        numbers[shard.split] += 1
    return shards


def _count_faults(manifest: Manifest, shards: list[Shard]) -> list[Finding]:
    findings = []
    if content_digest((shard.name, shard.sha256) for shard in shards) != manifest.digest:
        findings.append(_invalid("shards.parquet", "its checksums are not those of the manifest's digest"))
    if manifest.accepted != sum(shard.samples for shard in shards):
        findings.append(_invalid("shards.parquet", "its samples are not as many as the manifest's accepted"))
    for split in sorted(manifest.splits.keys() | {shard.split for shard in shards}):
        mine = [shard for shard in shards if shard.split == split]
        counted = (len(mine), sum(one.samples for one in mine), sum(one.bytes for one in mine))
        summary = manifest.splits.get(split)
        stated = (summary.shards, summary.samples, summary.bytes) if summary else (0, 0, 0)
        if counted != stated:
            problem = f"shards, samples, bytes are {counted}, in the manifest {stated}"
            findings.append(_invalid("shards.parquet", problem, split=split))
    return findings


def _rejects_faults(version: Path, manifest: Manifest) -> list[Finding]:
    findings: list[Finding] = []
    table = _read(version / "rejects.parquet", ("key", "reason"), findings)
    if table is None:
        return findings
    counted = dict(Counter(table.column("reason").to_pylist()))
    if counted != manifest.rejects:
        problem = f"counts {counted}, in the manifest {dict(manifest.rejects)}"
        findings.append(_invalid("rejects.parquet", problem))
    return findings


def _sizes_faults(version: Path, shards: list[Shard]) -> list[Finding]:
    findings = []
    for split in sorted({shard.split for shard in shards}):
        name = f"{split}/sizes.json"
        expected = {shard.name.partition("/")[2]: shard.samples for shard in shards if shard.split == split}
        try:
            sizes = read_json(version / name)
        except (OSError, ValueError) as error:
            findings.append(_invalid(name, f"unreadable: {error}", split=split))
            continue
        if sizes != expected:
            findings.append(_invalid(name, "differs from shards.parquet", split=split))
    return findings


def _samples_faults(split: str, table: Any, shards: list[Shard]) -> list[Finding]:
    numbers = np.repeat(np.arange(len(shards)), [shard.samples for shard in shards])
    if table.num_rows != len(numbers):
        problem = f"{table.num_rows} rows for {len(numbers)} samples"
    elif not np.array_equal(table.column("shard").to_numpy(), numbers):
        problem = "its samples are not in the shards of shards.parquet"
    elif not np.array_equal(table.column("row").to_numpy(), np.arange(len(numbers))):
        problem = "its rows are not those of the index"
    else:
        return []
    return [_invalid(f"samples/{split}.parquet", problem, split=split)]


def _key_faults(samples: dict[str, Any]) -> list[Finding]:
    seen: dict[str, str] = {}
    findings = []
    for split, table in samples.items():
        for key in table.column("key").to_pylist():
            if key in seen:
                where = {"split": split, "key": key}
                findings.append(fault("sample.duplicate_key", REBUILD, where, also_in=seen[key]))
            seen[key] = split
    return findings


def _group_faults(samples: dict[str, Any]) -> list[Finding]:
    """A group in two splits leaks what is held out into the training."""
    seen: dict[str, str] = {}
    findings = []
    for split, table in samples.items():
        if "group" not in table.column_names:
            continue
        for group in sorted(set(table.column("group").to_pylist()) - {None}):
            if group in seen:
                problem = f"group {group!r} is in {seen[group]} and in {split}"
                findings.append(_invalid(f"samples/{split}.parquet", problem, split=split))
            seen.setdefault(group, split)
    return findings
