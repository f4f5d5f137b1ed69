"""Which samples differ between two versions of a dataset, by their keys and stored bytes.

A version's tables of samples and its indexes have all that this takes, so no tar is read, and tars of others
that were only indexed can be compared as well. Both versions' keys are held in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasks.core.errors import DataError
from tasks.dataset.version.build_info import read_build_info
from tasks.dataset.version.index import read_index
from tasks.dataset.version.layout import samples_name
from tasks.dataset.version.manifest import read_manifest
from tasks.dataset.version.tables import read_pieces


@dataclass(frozen=True)
class VersionDifference:
    """The samples, by original key and in order, that version `after` has and `before` has not (gained), the
    reverse (lost), with other bytes (replaced), or with the same bytes in another split (moved)."""

    before: str
    after: str
    is_private: bool
    gained: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)

    @property
    def lists(self) -> dict[str, list[str]]:
        return {name: getattr(self, name) for name in ("gained", "lost", "replaced", "moved")}

    def to_json(self) -> dict[str, Any]:
        """Return the counts, and the samples unless the data is private."""
        counts = {name: len(samples) for name, samples in self.lists.items()}
        listed = None if self.is_private else self.lists
        return {"before": self.before, "after": self.after, **counts, "samples": listed}


def compare_versions(before: Path, after: Path) -> VersionDifference:
    """Compare two versions; DataError where one of their tables or indexes is damaged."""
    found = VersionDifference(before.name, after.name, _is_private(before) or _is_private(after))
    had = {key: (split, stored, name) for split, key, name, stored in _samples(before)}
    for split, key, name, stored in _samples(after):
        earlier = had.pop(key, None)
        if earlier is None:
            found.gained.append(name)
        elif earlier[1] != stored:
            found.replaced.append(name)
        elif earlier[0] != split:
            found.moved.append(name)
    found.lost.extend(name for _, _, name in had.values())
    for samples in found.lists.values():
        samples.sort()
    return found


def _is_private(version: Path) -> bool:
    """Whether the data is private; so it is where that cannot be read."""
    try:
        return read_build_info(version).private
    except DataError:
        return True


def _samples(version: Path) -> Iterator[tuple[str, str, str, tuple[int, int]]]:
    """Yield split, key, original key, and the length and CRC32C of the stored bytes of every sample."""
    for split in read_manifest(version).splits:
        index, row = read_index(version, split), 0
        path = version / samples_name(split)
        for piece in read_pieces(path, ("key", "original_key")):
            rows = index[row : row + piece.num_rows]
            if len(rows) < piece.num_rows:
                raise DataError(f"{path} has more samples than the index; tarmac repair {version} mends it")
            stored = zip(rows["length"].tolist(), rows["crc32c"].tolist(), strict=True)
            names = (column.to_pylist() for column in piece.columns)
            yield from zip([split] * piece.num_rows, *names, stored, strict=True)
            row += piece.num_rows
