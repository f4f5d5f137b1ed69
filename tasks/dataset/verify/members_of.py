"""Which members samples must have where no modality says it: those that nearly all of them have.

Known only when all shards were seen. Until then keys are kept for every set of members in a shard, as many
as there is room for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tasks.core.findings import Finding
from tasks.dataset.verify.faults import fault, where
from tasks.dataset.verify.records import Kind
from tasks.dataset.verify.reporting import Room, counted_out

SHARE = 0.9
IMAGE = frozenset({"jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "jp2", "avif", "heic", "ppm"})
MOST_KINDS = 100
"""Sets of members of a shard that are told apart; where there are more, samples have no common form."""
MOST_MEMBERS = 100_000
MOST_HELD_BYTES = 32 << 20
"""Of keys; beyond it, few are kept of each further shard."""
FEW = 5

Members = frozenset[str]


class Kept(NamedTuple):
    """The samples of a shard that have the same members; the first of their keys, in one piece to take
    little room."""

    members: Members
    samples: int
    joined: bytes

    @property
    def keys(self) -> list[str]:
        return self.joined.decode("utf-8", "surrogatepass").split("\0") if self.joined else []


def roles(suffixes: tuple[str, ...]) -> Members:
    """The members, all types of images taken for one."""
    return frozenset("image" if suffix.lower() in IMAGE else suffix for suffix in suffixes)


@dataclass
class Kinds:
    """The sets of members by shard, and how many samples have each member."""

    samples: int = 0
    have: Counter[str] = field(default_factory=Counter)
    images: set[str] = field(default_factory=set)
    by_shard: dict[str, list[Kept]] = field(default_factory=dict)
    _known: dict[Members, Members] = field(default_factory=dict)
    _held_bytes: int = 0

    def add(self, shard: str, kinds: Mapping[tuple[str, ...], Kind]) -> None:
        kept = []
        for suffixes, kind in kinds.items():
            members = roles(suffixes)
            if len(self._known) < MOST_MEMBERS:
                members = self._known.setdefault(members, members)
            self.samples += kind.count
            for member in members:
                if member in self.have or len(self.have) < MOST_MEMBERS:
                    self.have[member] += kind.count
            self.images.update(one for one in suffixes if one.lower() in IMAGE)
            kept.append(Kept(members, kind.count, self._joined(kind.keys)))
        kept.sort(key=_samples, reverse=True)
        self.by_shard[shard] = kept[:MOST_KINDS]

    def _joined(self, keys: tuple[str, ...]) -> bytes:
        some = keys if self._held_bytes < MOST_HELD_BYTES else keys[:FEW]
        joined = "\0".join(some).encode("utf-8", "surrogatepass")
        self._held_bytes += len(joined)
        return joined

    @property
    def required(self) -> list[str]:
        return sorted(member for member, count in self.have.items() if count >= SHARE * self.samples)

    def faults(self, remedy: str, room: Room) -> Iterator[tuple[str, list[str], list[Finding]]]:
        """Of each shard whose samples lack a required member: its name, their keys, and findings."""
        required = self.required
        for shard, kinds in sorted(self.by_shard.items()):
            keys: dict[str, None] = {}
            findings: list[Finding] = []
            for member in required:
                lacking = [kept for kept in kinds if member not in kept.members]
                keys |= {key: None for kept in lacking for key in kept.keys}
                findings += self._lacking(shard, member, lacking, remedy, room)
            if findings:
                yield shard, list(keys), findings

    def _lacking(
        self, shard: str, member: str, lacking: list[Kept], remedy: str, room: Room
    ) -> list[Finding]:
        named = "|".join(sorted(self.images)) if member == "image" else member
        share = f"{self.have[member]:,} of {self.samples:,} samples have it"
        findings: list[Finding] = []
        for kept in lacking:
            there = " ".join(sorted(kept.members))
            for key in kept.keys:
                if room.takes("sample.missing_member", len(findings)):
                    at = {**where(shard), "key": key, "member": named}
                    findings.append(fault("sample.missing_member", remedy, at, there=there, problem=share))
        return counted_out(findings, sum(kept.samples for kept in lacking))


def _samples(kept: Kept) -> int:
    return kept.samples
