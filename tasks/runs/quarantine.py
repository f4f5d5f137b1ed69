"""What a run leaves out: its own copy of the dataset's quarantine, made when the run is planned.

The copy's digest is part of the run's identity, so all that read for a run (training, validation, evaluation,
on every rank and in every attempt) leave out the same samples, whatever the dataset's file says by then.
"""

from __future__ import annotations

from pathlib import Path

from blake3 import blake3

from tasks.core.errors import DataError
from tasks.core.quarantine import NAME, Entry, home, read, to_text
from tasks.runs import record
from tasks.runs.folder import RunFolder


def of_dataset(version: Path, name: str) -> list[Entry]:
    """The entries of the version's dataset that are about the version of this name, one a sample."""
    mine = (entry for entry in sorted(read(home(version) / NAME), reverse=True) if entry.version == name)
    return sorted({entry.sample: entry for entry in mine}.values())


def of_run(run: RunFolder) -> list[Entry]:
    """The entries of the run's copy; DataError when it is not the one that the run was planned with."""
    entries = read(run.quarantine)
    if digest(entries) != record.load(run).identity.get("quarantine"):
        raise DataError(
            f"{run.quarantine}: is not what the run began with; take back the change, or train anew with "
            "`tarmac run CONFIG --fresh`"
        )
    return entries


def digest(entries: list[Entry]) -> str | None:
    """BLAKE3 of the file's content; None for an empty quarantine."""
    return blake3(to_text(entries).encode()).hexdigest() if entries else None
