"""The split that a model is evaluated on where the config names none."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

VALIDATION = ("val", "validation", "valid", "dev")


def held_out(splits: Iterable[str]) -> str | None:
    """Return the validation split by its usual names, else the only split beside `train`; None where there is
    none, or several."""
    others = [name for name in splits if name != "train"]
    usual = next((name for name in VALIDATION if name in others), None)
    return usual or (others[0] if len(others) == 1 else None)


def nothing_held_out(version: Path, splits: Iterable[str]) -> str:
    """Return the reason why `held_out` finds no split, with the fix."""
    names = list(splits)
    if names == ["train"]:
        return f"{version} has no split but train; hold more out by dataset.splits"
    return f"{version} has the splits {', '.join(names)}; name one by split: NAME"
