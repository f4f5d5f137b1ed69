"""Where a tracked run comes from: data, code, packages, machine and config; and of which weights a score is.

All of it is read from the run's folder, where each process has left its part.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tasks.core.files import read_json
from tasks.core.process import Identity
from tasks.runs import record
from tasks.runs.checkpoints import META, MODEL
from tasks.runs.data import version_path
from tasks.runs.folder import RunFolder
from tasks.runs.gpus import products_of_gpus
from tasks.runs.identity import ID_DIGITS, DataRef
from tasks.runs.record import RunRecord
from tasks.supervision.evaluating.result_files import once_per_version
from tasks.supervision.status import config_of

PRIVATE = {"engine"}
"""The part of a config that stays here: the set-up lines of a job may hold a key."""


def lineage_of(run: RunFolder) -> dict[str, Any]:
    """Return the tracked run's config: the run's identity, its data, newest attempt and own config."""
    state = record.load_record(run)
    facts: dict[str, Any] = {"name": state.name, **state.identity}
    facts["data"] = [_data_facts(ref) for ref in state.data]
    facts["data/accepted"] = sum(data.get("accepted", 0) for data in facts["data"])
    facts["data/rejects"] = sum(data.get("rejects", 0) for data in facts["data"])
    facts["config"] = config_of(run).model_dump(
        mode="json", by_alias=True, exclude_none=True, exclude=PRIVATE
    )
    return {**facts, **(_attempt_facts(state) if state.attempts else {})}


def weights_of(run: RunFolder, step: int) -> str | None:
    """Return the first digits of the BLAKE3 of the weights at a step; None where no checkpoint shows it."""
    return _weights(run.checkpoint(step) / META)


def _attempt_facts(state: RunRecord) -> dict[str, Any]:
    """The newest attempt. Only its own machine knows its GPUs; another one leaves what the tracker has."""
    last = state.attempts[-1]
    facts: dict[str, Any] = {
        "attempt": len(state.attempts),
        "host": last.host,
        "code": last.code_digest,
        "versions": last.versions,
    }
    if last.slurm is not None:
        facts["slurm_job"] = last.slurm.id
    if last.host == Identity.mine().host and (gpus := products_of_gpus()):
        facts["gpus"] = gpus
    return facts


def _data_facts(ref: DataRef) -> dict[str, Any]:
    """The dataset, its version and share of the batches, and its manifest's counts while that is there."""
    facts: dict[str, Any] = ref.model_dump()
    manifest = version_path(ref) / "manifest.json"
    if manifest.exists():
        counts = read_json(manifest)
        facts.update({key: counts[key] for key in ("read", "accepted", "filtered")})
        facts["samples"] = {name: split["samples"] for name, split in counts["splits"].items()}
        facts["rejects"] = sum(counts["rejects"].values())
    return facts


def _read_weights(meta: Path) -> str | None:
    try:
        return str(read_json(meta)["files"][MODEL])[:ID_DIGITS]
    except (OSError, ValueError, LookupError, TypeError):
        return None


_weights = once_per_version(_read_weights)
