"""Small raw datasets to start with, made from data in the installed packages, without a download.

Each is a function that fills an empty folder and returns the number of samples.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tasks.dataset.examples.digits import DIGITS, digits
from tasks.dataset.examples.digits_chat import digits_chat
from tasks.dataset.examples.phantoms import phantoms
from tasks.dataset.examples.reinforced import reinforced

__all__ = [
    "DIGITS",
    "EXAMPLES",
    "digits",
    "digits_chat",
    "home",
    "is_example",
    "phantoms",
    "reinforced",
    "whole",
    "write",
]

EXAMPLES: Mapping[str, Callable[[Path], int]] = {
    "digits": digits,
    "digits-chat": digits_chat,
    "phantoms": phantoms,
    "reinforced": reinforced,
}
"""The examples of `tarmac example NAME`."""


def home(name: str) -> Path:
    """Return the default folder of `tarmac example NAME`, where the example's config reads it."""
    return Path("data/raw", name)


def is_example(location: str) -> bool:
    """Whether a source's location is in an example's default folder."""
    return any(f"/{home(name)}/" in f"/{location}/" for name in EXAMPLES)


def write_example(name: str, path: Path) -> int:
    """Fill a folder with a complete example or not at all, and return the number of samples; 0 if the folder
    is not empty."""
    if _is_taken(path):
        return 0
    with whole(path) as draft:
        return EXAMPLES[name](draft)


def _is_taken(path: Path) -> bool:
    return path.is_dir() and any(path.iterdir())


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yield a hidden folder next to `path` to write in. At the end it is renamed to `path`, or its content
    moves into `path` if that is an empty folder. If `path` holds files by then, it stays unchanged."""
    place = Path(os.path.abspath(path))
    draft = place.with_name(f".{place.name}.{uuid.uuid4().hex}.draft")
    draft.mkdir(parents=True)
    try:
        yield draft
        if not place.is_dir():
            os.rename(draft, place)
        elif not _is_taken(place):
            for entry in draft.iterdir():
                shutil.move(entry, place / entry.name)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
