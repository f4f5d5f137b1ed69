"""Puts samples that are equal or nearly equal on one side of a split, for `splits: {group_by: content}`.

Splits are decided before samples are converted, so the samples are measured once more, before: the price is
about a second decoding. The measures are kept in a folder of the dataset, one file for the samples whose
shard hashes share their first bits, so the next build measures only where something has changed.

The group of nearly equal samples is the key of the one whose key comes first in the order of the split's
hash, and the group is drawn by it: a sample without its like is where it would be without this rule, and a
new copy follows the one that is there. A sample that resembles two groups makes them one, which may change
the side of one of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from blake3 import blake3

from tasks.core.engines import map_groups
from tasks.core.errors import UsageError
from tasks.core.files import write_atomic
from tasks.core.schema import Config
from tasks.core.screen import Progress
from tasks.dataset import duplicates, splits
from tasks.dataset.building.conversion.convert import converter
from tasks.dataset.building.conversion.staging import JOBS, write_rules
from tasks.dataset.building.fingerprint import rules_digest
from tasks.dataset.building.listed.catalogue import NAME, Catalogue, ListedSample
from tasks.dataset.formats.measures import FINE_BYTES, SPECTRUM_BYTES
from tasks.dataset.keys import split_hash
from tasks.dataset.version.layout import LOOKS
from tasks.dataset.version.rejects import Reject

PER_FILE = 2048
"""Samples per file of measures, at most on average."""
NOTE = "samples measured for splits.group_by: content"
SCHEMA = pa.schema(
    {
        "key": pa.string(),
        **dict.fromkeys(("content_hash", "text_hash", "phash"), pa.uint64()),
        "phash_fine": pa.binary(FINE_BYTES),
        "spectrum": pa.binary(SPECTRUM_BYTES),
        "contrast": pa.float32(),
    }
)


@dataclass(frozen=True, slots=True)
class LookTask:
    """A worker's task: to measure the listed samples whose shard hashes begin with `prefix` (of `bits` bits),
    by the rules with the digest `rules`, into the file `target`."""

    staging: Path
    rules: str
    prefix: int
    bits: int
    target: Path


def group_by_content(config: Config, catalogue: Catalogue, progress: Progress) -> None:
    """Change group and split, in the catalogue, of all listed samples that are equal or nearly equal to
    another one. UsageError for a source whose pictures lie at web addresses."""
    folder = config.dataset.output / LOOKS
    folder.mkdir(exist_ok=True)
    staging = catalogue.path.parent
    rules, shape = write_rules(staging, config.dataset), rules_digest(config.dataset)
    if catalogue.fact("addresses"):
        raise UsageError(
            "dataset.splits.group_by: content needs each picture before the build, and this source fetches "
            "its pictures; build it without, then build a dataset from its shards (kind: shards) with it"
        )
    with catalogue.transaction():
        catalogue.index_hashes()
    bits = max(0, (catalogue.listed // PER_FILE).bit_length())
    tasks = []
    for prefix in range(1 << bits):
        content = blake3(shape.encode())
        for entry in catalogue.listed_below(prefix, bits):
            content.update(b"\n" + entry.identity)
        tasks.append(LookTask(staging, rules, prefix, bits, folder / f"{content.hexdigest(16)}.arrow"))
    missing = [task for task in tasks if not task.target.exists()]
    done = 0
    with closing(map_groups(measure_looks, missing, config.engine, folder=staging / JOBS)) as results:
        for count in results:
            done += count
            progress(done, catalogue.listed, NOTE)
    with catalogue.transaction():
        catalogue.regroup(_moves(config, [task.target for task in tasks]))
    wanted = {task.target for task in tasks}
    for path in folder.iterdir():
        if path not in wanted:
            path.unlink()


def measure_looks(task: LookTask) -> int:
    """Measure the samples of a task, write them to its file, and return their number."""
    with closing(Catalogue(task.staging / NAME, reads_only=True)) as catalogue:
        work = converter(task.staging, task.rules)
        entries = list(catalogue.listed_below(task.prefix, task.bits))
        rows = [{"key": entry.key, **_look(work, entry)} for entry in entries]
    table = pa.Table.from_pylist(rows, SCHEMA)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, SCHEMA) as writer:
        writer.write_table(table)
    write_atomic(task.target, sink.getvalue().to_pybytes())
    return len(entries)


def _look(work: Any, entry: ListedSample) -> dict[str, Any]:
    """Return what a sample looks like; nothing if it is rejected, which the conversion reports."""
    try:
        statistics = work.modality.take(work.raw(entry), work.dataset).statistics
    except Reject:
        return {}
    except (OSError, MemoryError):
        raise
    except Exception:  # noqa: BLE001 - hostile bytes: the conversion rejects the sample, and names it
        return {}
    return {name: statistics.get(name) for name in duplicates.LOOKS}


def _moves(config: Config, files: Sequence[Path]) -> Iterator[tuple[str, str, str]]:
    """Yield key, group and split of each sample that has its like."""
    table = pa.concat_tables([_read(file) for file in files])
    looks = duplicates.Looks.of(table.to_batches(), table.num_rows)
    _, near = duplicates.clusters_of(looks, by_text=config.dataset.modality == "chat")
    is_shared = np.bincount(near, minlength=len(near))[near] > 1
    members: dict[int, list[str]] = defaultdict(list)
    for row in np.flatnonzero(is_shared).tolist():
        members[int(near[row])].append(table.column("key")[row].as_py())
    for keys in members.values():
        group = min(keys, key=lambda key: (split_hash(key), key))
        split = splits.split_of(config.dataset.splits, group, None, {})
        for key in keys:
            yield key, group, split


def _read(path: Path) -> Any:
    with pa.memory_map(str(path)) as file:
        return pa.ipc.open_file(file).read_all()
