"""What a run leaves out of its data, in a line for the screen."""

from __future__ import annotations

from tasks.dataset.quarantine import notice
from tasks.runs import record
from tasks.runs.data import left_out_by, version_path
from tasks.runs.folder import RunFolder


def left_out(run: RunFolder) -> str | None:
    """None for a run that leaves nothing out. Errors as `left_out_by` and `notice`."""
    return notice(version_path(record.load_record(run).data[0]), left_out_by(run))
