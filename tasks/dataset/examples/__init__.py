"""Small raw datasets to start from, made of what comes with the installed packages: no download.

Each is a function that fills an empty folder and returns how many samples it has written.
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
"""What `tarmac example NAME` can write."""


def home(name: str) -> Path:
    """Where `tarmac example NAME` writes it unless told otherwise, and where its config reads it."""
    return Path("data/raw", name)


def is_example(location: str) -> bool:
    """Whether a source of a config reads an example."""
    return any(f"/{home(name)}/" in f"/{location}/" for name in EXAMPLES)


def write_example(name: str, path: Path) -> int:
    """Fill a folder with an example, whole or not at all; how many samples, 0 where something is there
    already."""
    if _is_taken(path):
        return 0
    with whole(path) as draft:
        return EXAMPLES[name](draft)


def _is_taken(path: Path) -> bool:
    return path.is_dir() and any(path.iterdir())


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A hidden folder beside `path` to write in; at the end it takes the place of `path`, and what it holds
    that of an empty folder. Whoever finds `path` taken by then leaves it."""
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
