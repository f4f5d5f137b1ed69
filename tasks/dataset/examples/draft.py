"""A folder that appears whole or not at all."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def is_taken(path: Path) -> bool:
    """Whether there is anything, which an example leaves alone."""
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
        elif not is_taken(place):
            for entry in draft.iterdir():
                shutil.move(entry, place / entry.name)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
