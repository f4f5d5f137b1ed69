"""A tar's members in order, with the key and suffix that loaders give them, and the gaps between them.

Reads forward only, and holds no content that is not asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tasks.dataset.tar.format import padding, split_name
from tasks.dataset.verify.entries import Cut, Entries, Entry, Gap
from tasks.dataset.verify.reader import BUFFER, Reader
from tasks.dataset.verify.structure import Run, run_of

LONGEST_NAME = 4096
"""Bytes; no file system takes more."""
LARGEST_CONTENT = 4 << 30
"""Bytes of a member that are kept to be decoded."""
SINGLY = 16
"""Members that are looked at one by one before a run of many is looked for again."""


class Named(NamedTuple):
    """Key and suffix of a name; `oddity` says why it is none of a plain file's below a folder."""

    key: str
    suffix: str
    oddity: str | None


class Member(NamedTuple):
    """`start` is its header's, or that of the first record about it; `content` is None unless asked for."""

    key: str
    suffix: str
    oddity: str | None
    size: int
    start: int
    content: bytes | None


class Members:
    """Iterates over members, runs of tame ones where no contents are asked for, and gaps; Cut, OSError.

    Folders are passed over, and so is what webdataset passes over, unless `is_own`: a shard of Tarmac's holds
    no such thing. `least` is where the data end at the earliest: zeros before that are no end.
    """

    def __init__(self, reader: Reader, is_own: bool, keeps_contents: bool, least: int = 0) -> None:
        self._reader = reader
        self._entries = Entries(reader, least)
        self._is_own = is_own
        self._keeps = keeps_contents

    def __iter__(self) -> Iterator[Member | Run | Gap]:
        singly = 0
        while True:
            run = None if singly else self._run()
            if run is not None:
                if run.is_tame and not self._keeps:
                    yield run
                else:
                    yield from self._of_run(run)
                self._reader.at = run.stop
                continue
            singly = (singly or SINGLY) - 1
            found = self._entries.next()
            if found is None:
                return
            member = self._member(found) if isinstance(found, Entry) else found
            if member is not None:
                yield member

    def _run(self) -> Run | None:
        if self._entries.of_all:
            return None
        reader = self._reader
        run = run_of(reader)
        if run is None and reader.left < BUFFER // 8 and reader.fill():
            run = run_of(reader)
        return run

    def _of_run(self, run: Run) -> Iterator[Member]:
        view = self._reader.view
        for name, size, start, at in zip(run.names, run.sizes, run.starts, run.contents, strict=True):
            named = self._named(name, None)
            if named is not None:
                content = bytes(view[at : at + size]) if self._keeps and not named.oddity else None
                yield Member(*named, size, start, content)

    def _member(self, entry: Entry) -> Member | None:
        """Its content read, or passed; None for what is no member."""
        reader = self._reader
        named = None if entry.is_folder else self._named(entry.name, entry.oddity)
        keeps = self._keeps and named is not None and not named.oddity and entry.size <= LARGEST_CONTENT
        content = reader.take(entry.size) if keeps else None
        left = entry.size + padding(entry.size) - len(content or b"")
        if reader.skip(left) < left:
            raise Cut("ends within a member", reader.offset)
        return None if named is None else Member(*named, entry.size, entry.start, content)

    def _named(self, name: bytes, oddity: str | None) -> Named | None:
        text = name.decode("utf-8", "surrogateescape")
        key, suffix = split_name(text)
        last = key.rpartition("/")[2]
        if len(name) > LONGEST_NAME:
            return Named(key[:LONGEST_NAME], suffix[:LONGEST_NAME], f"of a name of {len(name):,} bytes")
        if oddity is None and text.startswith("/"):
            oddity = "an absolute path"
        if oddity is None and ".." in text.split("/"):
            oddity = "a path that leaves its folder"
        is_beside = not suffix or not last or (text.startswith("__") and text.endswith("__"))
        if oddity is None and is_beside:
            return Named(key, suffix, "a name without key or suffix") if self._is_own else None
        return Named(key, suffix, oddity)
