"""Which split a model is judged on when nobody names one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

VALIDATION = ("val", "validation", "valid", "dev")


def held_out(splits: Iterable[str]) -> str | None:
    """The split for validation by its usual names, or else the only split beside `train`; None when there is
    none, or no telling which."""
    others = [name for name in splits if name != "train"]
    usual = next((name for name in VALIDATION if name in others), None)
    return usual or (others[0] if len(others) == 1 else None)


def nothing_held_out(version: Path, splits: Iterable[str]) -> str:
    """Why `held_out` finds none, with the fix."""
    names = list(splits)
    if names == ["train"]:
        return f"{version} has no split but train; hold more out by dataset.splits"
    return f"{version} has the splits {', '.join(names)}; name one by split: NAME"
