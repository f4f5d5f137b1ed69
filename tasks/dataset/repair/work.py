"""What a repair of shards has to do with, and how each shard that is done or cannot be done is noted."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tasks.core.screen import Progress
from tasks.dataset.repair import install
from tasks.dataset.repair.copies import Copies
from tasks.dataset.repair.examine import Examined
from tasks.dataset.repair.origin import Origin
from tasks.dataset.repair.outcome import BRING_BACK, MIND, Done, Failed
from tasks.dataset.repair.place import Place
from tasks.dataset.repair.recipes import Built

NOTE = "shards repaired"


@dataclass
class Work:
    """The damaged shards of a version, `total` of them; `seen` is what lay in the place of each, and what
    lies beside them."""

    place: Place
    origin: Origin
    progress: Progress
    copies: Copies
    seen: dict[Path, Examined]
    total: int
    done: list[Done] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)

    def path(self, shard: Built) -> Path:
        return self.place.version / shard.name

    def good(self, shard: Built) -> Path:
        """Where its proven tar waits for its place."""
        return self.place.good / f"{shard.blake3}.tar"

    @cached_property
    def inodes(self) -> set[tuple[int, int]]:
        """Of files that have been looked at; none of them is what its name says."""
        return {one.inode for one in self.seen.values()}

    def install(self, shard: Built, good: Path, how: str, way: str) -> None:
        """Let the shard be this proven file, here and wherever it is as damaged; here last, so that a repair
        that is killed begins with it again."""
        for path in self.copies.to_mend(shard, self.inodes):
            install.link(self.place, good, path)
        install.link(self.place, good, self.path(shard))
        self.done.append(Done(shard.name, how, way))
        self._tell()

    def fail(self, shard: Built, reason: str, remedy: str = BRING_BACK) -> None:
        self.failed.append(Failed(shard.name, reason, remedy))
        self._tell()

    def fail_for_host(self, shard: Built, reason: str, remedy: str = MIND) -> None:
        """The shard is not whole, but not because of its data."""
        self.failed.append(Failed(shard.name, reason, remedy, is_of_host=True))
        self._tell()

    def _tell(self) -> None:
        self.progress(len(self.done) + len(self.failed), self.total, NOTE)
