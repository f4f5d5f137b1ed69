"""Which split a sample belongs to: drawn by key, drawn by group, or named by a column.

A draw depends on the key or group alone, so a sample never changes its split when other samples come or go;
the price is that the shares hold on average, not exactly.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tasks.core.errors import UsageError
from tasks.dataset.keys import split_hash
from tasks.dataset.version.layout import is_split
from tasks.dataset.version.rejects import Reject

if TYPE_CHECKING:  # readers of versions import the names of splits, and need no config
    from tasks.core.schema import Splits

REST = "train"
FOLDERS = ("index", "samples")  # a version keeps these beside its splits
_WHOLE = re.compile(r"(-?\d+)\.0*")


def check_splits(splits: Splits) -> None:
    """UsageError when a split has the name of another folder of the version."""
    for name in splits.shares:
        if name in FOLDERS:
            raise UsageError(
                f"dataset.splits.{name}: a version keeps tables in a folder of that name; rename it"
            )


def group_of(splits: Splits, fields: Mapping[str, Any]) -> str | None:
    """The sample's value of `group_by`, or None where samples are not grouped; Reject when it has no value.

    The group is the same for 7, 7.0 and "7.0": a column of whole numbers is written with fractions wherever
    one value is missing, and one patient must not be two groups.
    """
    if splits.group_column is None:  # by content the build groups once all is listed
        return None
    value = fields.get(splits.group_column)
    if value is None or value == "" or value != value:  # data frames write NaN for a missing value
        raise Reject("source.unreadable", f"no value for dataset.splits.group_by: {splits.group_by}")
    whole = _WHOLE.fullmatch(str(value))
    return whole[1] if whole else str(value)


def split_of(splits: Splits, key: str, group: str | None, fields: Mapping[str, Any]) -> str:
    """The sample's split; Reject when the column that names it holds no usable name."""
    if splits.column is not None:
        name = fields.get(splits.column)
        if not isinstance(name, str) or not is_split(name) or name in FOLDERS:
            raise Reject("source.unreadable", f"column {splits.column} names no split: {name!r}")
        return name
    if not splits.shares:
        return REST
    drawn = split_hash(key if group is None else group)
    for name, share in sorted(splits.shares.items()):
        if drawn < share:
            return name
        drawn -= share
    return REST
