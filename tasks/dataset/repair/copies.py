"""Where a shard's bytes lie already: in another version, in a twin, or made by a repair that was killed."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

import pyarrow as pa

from tasks.dataset.repair.identity import Stated, is_as_stated
from tasks.dataset.repair.install import inode, is_file
from tasks.dataset.repair.place import Place
from tasks.dataset.repair.recipes import Built, read_built


class Copies:
    """The files of the dataset's other versions that should have these checksums."""

    def __init__(self, place: Place, wanted: Collection[str]) -> None:
        self._place = place
        self._files: dict[str, list[Path]] = {}
        for other in place.others if wanted else ():
            try:
                shards = read_built(other)
            except (OSError, pa.ArrowException, KeyError, TypeError):
                continue  # its own repair is for that
            for shard in shards:
                if shard.blake3 in wanted:
                    self._files.setdefault(shard.blake3, []).append(other / shard.name)

    def find(self, shard: Built, known_bad: Collection[tuple[int, int]]) -> tuple[Path, str] | None:
        """A proven copy, and where it is from for a person; files with these inodes have been looked at."""
        stated = Stated(shard.bytes, shard.blake3)
        for path, origin in self._candidates(shard):
            if is_file(path) and inode(path) not in known_bad and is_as_stated(path, stated):
                return path, origin
        return None

    def to_mend(self, shard: Built, known_bad: Collection[tuple[int, int]]) -> Iterator[Path]:
        """The names in other versions whose file is damaged or gone, too."""
        stated = Stated(shard.bytes, shard.blake3)
        for path in self._files.get(shard.blake3, ()):
            if not is_file(path) or inode(path) in known_bad or not is_as_stated(path, stated):
                yield path

    def _candidates(self, shard: Built) -> Iterator[tuple[Path, str]]:
        for path in self._files.get(shard.blake3, ()):
            yield path, f"version {path.parents[1].name}"
        twin = self._place.again / "versions" / self._place.version.name
        yield twin / shard.name, "the build from the source"
        yield self._place.good / f"{shard.blake3}.tar", "a repair before"
