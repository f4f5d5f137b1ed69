"""A folder that an example fills whole or not at all."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec

Options = ParamSpec("Options")
Write = Callable[Concatenate[Path, Options], int]


def into_empty_folder(write: Write[Options]) -> Write[Options]:
    """Let `write`, which returns how many samples it wrote, fill a folder whole or not at all. A folder with
    anything in it is left alone, and 0 is returned."""

    @wraps(write)
    def written(path: Path, /, *args: Options.args, **options: Options.kwargs) -> int:
        if _is_taken(path):
            return 0
        with whole(path) as draft:
            return write(draft, *args, **options)

    return written


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
