"""Where a fault is put, and what verify must name of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Place:
    """Where a fault goes: a shard, another of the same split, one of another split, and a sample's row."""

    shard: str = "train/000001.tar"
    other: str = "train/000002.tar"
    across: str = "val/000000.tar"
    row: int = 3


@dataclass(frozen=True)
class Hit:
    """What must be named: one of the shards, one of the keys, one of the members, one of the files; an empty
    field demands nothing."""

    shards: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    def is_named(self, code: str, where: Mapping[str, Any]) -> bool:
        """Whether the place of a finding is this one, as far as its code shows."""
        about_sample = code.startswith(("sample.", "member."))
        about_member = code in (
            "member.empty",
            "member.unsafe",
            "member.undecodable",
            "sample.missing_member",
        )
        if code in ("manifest.invalid", "index.mismatch"):
            return not self.files or where.get("file") in self.files or "shard" in where
        if "shard" in where and self.shards and where["shard"] not in self.shards:
            return False
        if self.shards and "shard" not in where and not about_sample:
            return False
        if about_sample and self.keys and where.get("key") not in self.keys:
            return False
        named = str(where.get("member")).split("|")
        return not (about_member and self.members) or any(member in named for member in self.members)


Inject = Callable[[Path, Place], Hit]
