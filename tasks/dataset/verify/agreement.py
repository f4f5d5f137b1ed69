"""The other tables of a version beside the manifest and the shards: `rejects.parquet` and `sizes.json`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tasks.core.stores import Unreachable
from tasks.dataset.manifest import Manifest
from tasks.dataset.verify.beside import Beside
from tasks.dataset.verify.ledger import Ledger
from tasks.dataset.verify.parquet import Torn, open_parquet
from tasks.dataset.verify.recorded import read_json, told
from tasks.dataset.verify.tables import MANIFEST, SHARDS, SplitShards

REJECTS = "rejects.parquet"
MOST_REASONS = 1000
"""A build knows some thirty."""


def check_rejects(files: Beside, manifest: Manifest | None, ledger: Ledger) -> None:
    """As many of each reason as the manifest says."""
    try:
        counted = _reasons(files)
    except Torn as torn:
        ledger.add(REJECTS, str(torn))
        return
    if manifest is not None and counted != manifest.rejects:
        few = dict(counted.most_common(5))
        ledger.at_odds(REJECTS, MANIFEST, f"counts {few}, in the manifest {_few(manifest.rejects)}")


def _reasons(files: Beside) -> Counter[str]:
    counted: Counter[str] = Counter()
    for table in open_parquet(files, REJECTS, ("key", "reason")).batches("key", "reason"):
        for entry in table.column("reason").value_counts().to_pylist():
            counted[entry["values"]] += entry["counts"]
        if len(counted) > MOST_REASONS:
            raise Torn(f"more than {MOST_REASONS:,} different reasons")
    return counted


def _few(rejects: Mapping[str, int]) -> dict[str, int]:
    return dict(Counter(rejects).most_common(5))


def sizes_name(split: str) -> str:
    return f"{split}/sizes.json"


def check_sizes(files: Beside, shards: SplitShards, ledger: Ledger) -> None:
    """`sizes.json` is for other loaders: it says what `shards.parquet` says."""
    name = sizes_name(shards.split)
    expected = {shard.name.partition("/")[2]: shard.samples for shard in shards}
    try:
        sizes = read_json(files, name)
    except Unreachable:
        raise
    except OSError as error:
        ledger.add(name, told(error))
    except ValueError as error:
        ledger.add(name, f"no JSON: {error}")
    else:
        if sizes != expected:
            ledger.at_odds(name, SHARDS, "differs from shards.parquet")
