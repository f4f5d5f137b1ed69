"""One line for the screen on the samples that a run leaves out of its data."""

from __future__ import annotations

from tasks.dataset.version.quarantine import notice
from tasks.runs import record
from tasks.runs.data import left_out_by, version_path
from tasks.runs.folder import RunFolder


def left_out(run: RunFolder) -> str | None:
    """Return the line; None for a run that leaves nothing out. Raises as `left_out_by` and `notice` do."""
    return notice(version_path(record.load_record(run).data[0]), left_out_by(run))
