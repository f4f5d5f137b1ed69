"""Which split a sample belongs to: drawn by key, drawn by group, or named by a column.

A draw depends on the key or group alone, so a sample never changes sides when others come or go; the price
is that shares hold on average, not exactly.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tasks.core.errors import UsageError
from tasks.dataset.keys import split_hash
from tasks.dataset.rejects import Reject

if TYPE_CHECKING:  # the names of splits are read where no config is
    from tasks.core.schema import Splits

REST = "train"
FOLDERS = ("index", "samples")  # a version keeps these beside its splits
_WHOLE = re.compile(r"(-?\d+)\.0*")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def check_splits(splits: Splits) -> None:
    """UsageError when a split would take the name of another folder of the version."""
    for name in splits.shares:
        if name in FOLDERS:
            raise UsageError(
                f"dataset.splits.{name}: a version's folder of that name holds tables; rename it"
            )


def group_of(splits: Splits, fields: Mapping[str, Any]) -> str | None:
    """The sample's value of `group_by`; None where samples are not grouped. Reject when it has none."""
    if splits.group_by is None:
        return None
    value = fields.get(splits.group_by)
    if value is None or value == "" or value != value:  # NaN is how data frames write that there is none
        raise Reject("source.unreadable", f"no value for dataset.splits.group_by: {splits.group_by}")
    return _group_name(value)


def _group_name(value: Any) -> str:
    """The same for 7, 7.0 and "7.0": a column of whole numbers is written with fractions wherever one of its
    values is missing, and one patient must not be two groups."""
    text = str(value)
    whole = _WHOLE.fullmatch(text)
    return whole[1] if whole else text


def split_of(splits: Splits, key: str, group: str | None, fields: Mapping[str, Any]) -> str:
    """The sample's split; Reject when the column that names it holds no usable name."""
    if splits.column is not None:
        name = fields.get(splits.column)
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name in FOLDERS:
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
