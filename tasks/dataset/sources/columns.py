"""Names of columns that a config asks for, and the error when a table has no such column."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from tasks.core.errors import UsageError

OTHER_DELIMITERS = {"\t": "tabs", ";": "semicolons", "|": "bars"}


def other_delimiter(columns: Sequence[str]) -> str:
    """What to do about a .csv that has no commas; "" where its only column is one."""
    sign = next((sign for sign in OTHER_DELIMITERS if len(columns) == 1 and sign in columns[0]), None)
    if sign is None:
        return ""
    fix = "name it .tsv" if sign == "\t" else "write it with commas, or with tabs as .tsv"
    return f"its cells are apart by {OTHER_DELIMITERS[sign]}, those of a .csv by commas: {fix}"


def require(config_key: str, name: str, columns: Sequence[str], where: str) -> None:
    """UsageError that names the nearest column, or the cause, when `name` is none of `columns`."""
    if name in columns:
        return
    nearest = difflib.get_close_matches(name, columns, n=1, cutoff=0)
    meant = f"did you mean {nearest[0]!r}?" if nearest else "there are none"
    hint = other_delimiter(columns) or meant
    listed = ", ".join(columns[:12]) + (", …" if len(columns) > 12 else "")
    raise UsageError(f"{config_key}: {where} has no column {name!r}; {hint} (columns: {listed})")
