"""Names of columns that a config asks for, and the error when a table has no such column."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from tasks.core.errors import UsageError


def require(config_key: str, name: str, columns: Sequence[str], where: str) -> None:
    """UsageError that names the nearest column, or the cause, when `name` is none of `columns`."""
    if name in columns:
        return
    nearest = difflib.get_close_matches(name, columns, n=1, cutoff=0)
    meant = f"did you mean {nearest[0]!r}?" if nearest else "there are none"
    listed = ", ".join(columns[:12]) + (", …" if len(columns) > 12 else "")
    raise UsageError(f"{config_key}: {where} has no column {name!r}; {meant} (columns: {listed})")
