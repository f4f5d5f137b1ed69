"""The files that a path of the config stands for, named relative to the folder that all of them lie in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import BinaryIO

from tasks.core.errors import UsageError
from tasks.core.patterns import base_folder, expand
from tasks.core.stores import Stat, Store, Unreachable, join_location, open_store

COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst", ".tar.lz4")
AT_ONCE = 1000
"""Files that a remote store is asked about together."""


class Files:
    """The files of one path, in their order, listed once. UsageErrors name `config_key`."""

    def __init__(self, given: str, suffixes: Sequence[str], config_key: str) -> None:
        self._given = given
        self._suffixes = tuple(suffixes)
        self._config_key = config_key

    @cached_property
    def store(self) -> Store:
        return open_store(base_folder(self._given), self._config_key)

    @cached_property
    def names(self) -> list[str]:
        """UsageError when there is none, when one that is promised is not there, or one is compressed."""
        try:
            there = expand(self._given, (*self._suffixes, *COMPRESSED), self._config_key)
        except UsageError:
            there = expand(self._given, self._suffixes, self._config_key)  # says what is missing
        packed = next((file for file in there if file.lower().endswith(COMPRESSED)), None)
        if packed is not None:
            raise UsageError(
                f"{self._config_key}: {packed} is compressed, which is not read: its members are already; "
                "unpack it to .tar"
            )
        base = self.store.location.rstrip("/") + "/"
        return [file.removeprefix(base) for file in there]

    def stats(self) -> Iterator[tuple[str, Stat]]:
        look_ahead = getattr(self.store, "look_ahead", None)  # of a remote store only
        for start in range(0, len(self.names), AT_ONCE):
            some = self.names[start : start + AT_ONCE]
            if look_ahead is not None:
                look_ahead(some)
            for name in some:
                yield name, self.store.stat(name)

    @contextmanager
    def opened(self, name: str) -> Iterator[BinaryIO]:
        """A file to be read in order; Unreachable for whatever OSError comes of it."""
        try:
            with self.store.open(name) as file:
                yield file
        except OSError as error:
            raise lost(join_location(self.store.location, name), error) from None


def lost(place: str, error: OSError, what: str = "cannot be read") -> Unreachable:
    """The error that ends a build when a file of many samples cannot be read for no fault of its content: the
    dataset would lack them all, and the next try may well read it."""
    if isinstance(error, Unreachable):
        return error
    return Unreachable(error.errno, f"{what}: {error.strerror or error}", place)
