"""What a run leaves out of its data, in a line for the screen."""

from __future__ import annotations

from tasks.dataset.quarantine import notice
from tasks.runs import record
from tasks.runs.data import version_path
from tasks.runs.folder import RunFolder
from tasks.runs.quarantine import of_run


def left_out(run: RunFolder) -> str | None:
    """None for a run that leaves nothing out. Errors as `of_run` and `notice`."""
    return notice(version_path(record.load(run).data[0]), of_run(run))
