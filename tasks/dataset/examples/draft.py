"""A folder that appears whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def is_taken(path: Path) -> bool:
    """Whether there is anything, which an example leaves alone."""
    return path.is_dir() and any(path.iterdir())


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A hidden folder beside `path` to write in; it takes the place of `path` at the end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    yield draft
    os.replace(draft, path)
