"""What became of every raw sample of a run's datasets: the counts of the manifest, and the rejects by reason.

A version may have been pruned or moved since the run; then the account says so instead of failing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.core.errors import TarmacError
from tasks.core.formats import shorten
from tasks.dataset.manifest import Manifest, read_manifest
from tasks.dataset.quarantine import Entry, told
from tasks.dataset.rejects import MEANINGS
from tasks.models.held_out import held_out
from tasks.runs.data import version_path
from tasks.runs.identity import DataRef

EXAMPLES = 3


@dataclass(frozen=True)
class Rejects:
    """The rejects of one reason; `examples` are (key, detail) of the first, none for a private dataset."""

    reason: str
    count: int
    examples: tuple[tuple[str, str], ...] = ()

    @property
    def meaning(self) -> str:
        return MEANINGS.get(self.reason, "")


@dataclass(frozen=True)
class Account:
    """One dataset of a run. `manifest` is None when the version cannot be read; `why_none` says why.

    `left_out` says which of its samples the run did without from its start, empty where there are none.
    """

    name: str
    version: str
    path: Path
    manifest: Manifest | None = None
    rejects: tuple[Rejects, ...] = ()
    left_out: str = ""
    why_none: str = ""
    why_no_examples: str = ""

    @property
    def held_out(self) -> str | None:
        """The split that is not trained on; None where there is none, or no telling which."""
        return held_out(self.manifest.splits) if self.manifest else None


def read_account(ref: DataRef, private: bool, quarantined: Iterable[Entry] = ()) -> Account:
    """The account of one dataset of a run that left those in quarantine out; examples of rejects only where
    it is not private."""
    path = version_path(ref)
    mine = [entry for entry in quarantined if entry.version == ref.version]
    name = Path(ref.dataset).name
    try:
        manifest = read_manifest(path)
    except (TarmacError, OSError, ValueError) as error:
        why = f"Version {ref.version} cannot be read: {str(error).splitlines()[0]}"
        return Account(name, ref.version, path, left_out=told({}, mine), why_none=why)
    counts = {reason: number for reason, number in manifest.rejects.items() if number}
    examples: dict[str, list[tuple[str, str]]] = {}
    why_no_examples = ""
    if counts and not private:
        try:
            examples = _examples(path / "rejects.parquet", counts)
        except (OSError, ValueError) as error:
            why_no_examples = f"rejects.parquet cannot be read: {str(error).splitlines()[0]}"
    rejects = [Rejects(reason, number, tuple(examples.get(reason, ()))) for reason, number in counts.items()]
    rejects.sort(key=lambda reject: (-reject.count, reject.reason))
    return Account(
        name,
        ref.version,
        path,
        manifest,
        tuple(rejects),
        left_out=told(manifest.splits, mine),
        why_no_examples=why_no_examples,
    )


def _examples(table: Path, counts: Mapping[str, int]) -> dict[str, list[tuple[str, str]]]:
    """The first rejects of each reason, read no further than needed."""
    found: dict[str, list[tuple[str, str]]] = {reason: [] for reason in counts}
    with pq.ParquetFile(table) as file:
        for batch in file.iter_batches(columns=["reason", "original_key", "detail", "source"]):
            wanting = {r: min(EXAMPLES, counts[r]) - len(rows) for r, rows in found.items()}
            wanting = {reason: number for reason, number in wanting.items() if number > 0}
            if not wanting:
                break
            for reason, number in wanting.items():
                first = batch.filter(pc.field("reason") == reason).slice(0, number)
                found[reason] += [
                    (shorten(row["original_key"], 80), shorten(f"{row['detail']} ({row['source']})"))
                    for row in first.to_pylist()
                ]
    return found
