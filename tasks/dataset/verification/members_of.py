"""Which members samples must have where no modality says it: those that nearly all of them have.

Known only when all shards were seen. Of each shard a few keys are kept for every set of members in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tasks.core.findings import Finding
from tasks.dataset.verification.faults import fault, where
from tasks.dataset.verification.records import Kind
from tasks.dataset.verification.reporting import capped

SHARE = 0.9
IMAGE = frozenset({"jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "jp2", "avif", "heic", "ppm"})
MOST_KINDS = 100
"""Sets of members of a shard that are told apart; where there are more, samples have no common form."""
MOST_MEMBERS = 100_000

Members = frozenset[str]


class Kept(NamedTuple):
    """The samples of a shard that have the same members; a few of their keys, in one piece to take little
    room."""

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
            kept.append(Kept(members, kind.count, "\0".join(kind.keys).encode("utf-8", "surrogatepass")))
        kept.sort(key=_samples, reverse=True)
        self.by_shard[shard] = kept[:MOST_KINDS]

    @property
    def required(self) -> list[str]:
        return sorted(member for member, count in self.have.items() if count >= SHARE * self.samples)

    def faults(self, remedy: str) -> Iterator[tuple[str, list[str], list[Finding]]]:
        """Of each shard whose samples lack a required member: its name, their keys, and findings."""
        required = self.required
        for shard, kinds in sorted(self.by_shard.items()):
            keys: dict[str, None] = {}
            findings: list[Finding] = []
            for member in required:
                lacking = [kept for kept in kinds if member not in kept.members]
                keys |= {key: None for kept in lacking for key in kept.keys}
                findings += self._lacking(shard, member, lacking, remedy)
            if findings:
                yield shard, list(keys), findings

    def _lacking(self, shard: str, member: str, lacking: list[Kept], remedy: str) -> list[Finding]:
        named = "|".join(sorted(self.images)) if member == "image" else member
        share = f"{self.have[member]:,} of {self.samples:,} samples have it"
        findings = []
        for kept in lacking:
            for key in kept.keys:
                at = {**where(shard), "key": key, "member": named}
                there = " ".join(sorted(kept.members))
                findings.append(fault("sample.missing_member", remedy, at, there=there, problem=share))
        return capped(findings, sum(kept.samples for kept in lacking))


def _samples(kept: Kept) -> int:
    return kept.samples
