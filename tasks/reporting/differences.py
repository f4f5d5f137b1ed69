"""What differs between the runs of a comparison before anything was trained: config, data, code and packages.

The first run is the reference. Only counts leave the tables of samples, never a key.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.core.config import differing_keys
from tasks.core.errors import TarmacError
from tasks.core.schema import Config
from tasks.core.units import NOTHING, count, shorten
from tasks.dataset.version.index import read_index
from tasks.dataset.version.layout import samples_name
from tasks.dataset.version.manifest import read_manifest
from tasks.reporting.evidence import RunContents
from tasks.runs.data import version_path
from tasks.runs.identity import DataRef
from tasks.runs.record import Attempt

UNREADABLE = (TarmacError, OSError, pa.ArrowException, ValueError, KeyError)


@dataclass(frozen=True)
class Difference:
    """One thing that differs, and what it is in each run, in their order."""

    name: str
    values: Sequence[Any]

    @property
    def texts(self) -> list[str]:
        """The values for a reader."""
        return [_shown(value) for value in self.values]


def config_differences(runs: Sequence[RunContents]) -> list[Difference]:
    """Return the keys that differ, resolved: as they were used, defaults included."""
    trees = [_settings(run.config) for run in runs]
    keys = sorted({key for tree in trees[1:] for key in differing_keys(trees[0], tree)})
    return [Difference(key, [_value(tree, key) for tree in trees]) for key in keys]


def _settings(config: Config | None) -> dict[str, Any]:
    """Return the blocks that shape weights, scores or speed."""
    if config is None:
        return {}
    values = config.model_dump(mode="json", include={"train", "loader", "evaluate", "engine"})
    return {**values, "engine": {"train": values["engine"]["train"]}}


def _value(tree: Mapping[str, Any], key: str) -> Any:
    value: Any = tree
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _shown(value: Any) -> str:
    if value is None:
        return NOTHING
    return shorten(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def data_differences(runs: Sequence[RunContents]) -> list[Difference]:
    """Return a row per dataset whose version or share differs, with what each run has more or less than the
    reference, and one for the samples that were left out."""
    data = [run.record.data if run.record is not None else [] for run in runs]
    found = []
    for place in range(max(map(len, data), default=0)):
        refs = [refs[place] if place < len(refs) else None for refs in data]
        if len({(ref.version, ref.weight) for ref in refs if ref is not None}) > 1 or None in refs:
            names = sorted({Path(ref.dataset).name for ref in refs if ref is not None})
            found.append(Difference(" / ".join(names), [_data_text(refs[0], ref) for ref in refs]))
    left_out = [{(one.version, one.sample) for one in run.quarantined} for run in runs]
    if any(one != left_out[0] for one in left_out):
        found.append(Difference("samples left out", [count(len(one)) for one in left_out]))
    return found


def _data_text(reference: DataRef | None, ref: DataRef | None) -> str:
    """Format it like `9c41… (1,527 train, 270 val); train +12 −3, 1 changed`."""
    if ref is None:
        return NOTHING
    path = version_path(ref)
    try:
        splits = read_manifest(path).splits
    except TarmacError:
        return f"{ref.version} (cannot be read now)"
    share = f", weight {ref.weight:g}" if ref.weight != 1 else ""
    parts = [
        f"{ref.version} ({', '.join(f'{count(s.samples)} {name}' for name, s in splits.items())}){share}"
    ]
    if reference is not None and reference.version != ref.version:
        try:
            parts += _changes(version_path(reference), path)
        except UNREADABLE:
            parts.append("what changed cannot be read now")
    return "; ".join(parts)


def _changes(before: Path, after: Path) -> Iterator[str]:
    """Yield what one version of a split has more, less and otherwise than another, by key and CRC32C."""
    first, second = read_manifest(before).splits, read_manifest(after).splits
    for split in sorted({*first, *second}):
        had, has = (
            _rows(path, split) if split in splits else None
            for path, splits in ((before, first), (after, second))
        )
        if had is None or has is None:
            yield f"split {split} is new" if had is None else f"no split {split}"
            continue
        kept = pc.is_in(has["key"], value_set=had["key"])
        same = np.isin(_pairs(has), _pairs(had)).sum()
        stayed = pc.sum(kept).as_py() or 0
        gained, lost, changed = has.num_rows - stayed, had.num_rows - stayed, stayed - int(same)
        if gained or lost or changed:
            more = f", {count(changed)} changed" if changed else ""
            yield f"{split} +{count(gained)} −{count(lost)}{more}"


def _rows(version: Path, split: str) -> Any:
    """Return the key of each sample, and the CRC32C of its span in the tar."""
    table = pq.read_table(version / samples_name(split), columns=["key"])
    return table.append_column("crc32c", pa.array(np.asarray(read_index(version, split)["crc32c"])))


def _pairs(rows: Any) -> np.ndarray[Any, Any]:
    """Return a text per row that is equal where key and content are."""
    text = pc.binary_join_element_wise(rows["key"], pc.cast(rows["crc32c"], pa.string()), " ")
    return np.asarray(text.to_pylist())


def code_differences(runs: Sequence[RunContents]) -> list[Difference]:
    """Return what differs in Tarmac's code and in packages, between the last attempts that trained."""
    attempts = [_trained(run) for run in runs]
    codes = [one.code_digest if one else NOTHING for one in attempts]
    found = [Difference("Tarmac's code", codes)] if len(set(codes)) > 1 else []
    versions = [one.versions if one else {} for one in attempts]
    for name in sorted({name for each in versions for name in each}):
        values = [each.get(name, NOTHING) for each in versions]
        found += [Difference(name, values)] if len(set(values)) > 1 else []
    return found


def _trained(run: RunContents) -> Attempt | None:
    attempts = run.record.attempts if run.record is not None else []
    number = run.record.trained if run.record is not None else 0
    return attempts[(number or len(attempts)) - 1] if attempts else None
