"""Names and messages out of the data, as a page may hold them: short, with nothing in them unseen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tasks.core.units import shorten
from tasks.dataset.rejects import printable

ROOM = 4
"""Times the limit that is looked at: white space may count as none."""
MESSAGE = 300


def legible(value: Any, limit: int) -> str:
    """The beginning of a text on one line. What has no shape of its own (control characters, marks that turn
    the direction of writing, bytes that were no text) is written out, as `\\u202e`."""
    text = " ".join(printable(str(value)[: ROOM * limit]).split())
    return shorten("".join(_written_out(char) for char in text), limit)


def without_folder(text: object, folder: Path) -> str:
    """A message without the folder's path, since a page is passed on, and without its full stop. A path of
    one part is left: it may be a word as well."""
    named = str(text)
    if "/" in str(folder):
        named = named.replace(f"{folder}/", "").replace(str(folder), "this folder")
    return legible(named, MESSAGE).rstrip(".")


def _written_out(char: str) -> str:
    return char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
