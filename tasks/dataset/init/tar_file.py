"""What the first samples of a tar hold, member by member; nothing is extracted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tasks.core.stores import Unreachable, is_remote
from tasks.dataset.init.evidence import LOOKED_AT, shown
from tasks.dataset.init.inventory import Inventory
from tasks.dataset.rejects import Reject
from tasks.dataset.sources.fields import object_of
from tasks.dataset.sources.foreign_tar import Damage, TarReader
from tasks.dataset.tar.format import split_name
from tasks.dataset.tar.reader import BESIDE

SAMPLES = 100
REMOTE_BYTES = 32 << 20
"""A remote tar is read over, not jumped through, so it is looked at no further than this."""
LARGEST_JSON = 1 << 20


@dataclass
class Looked:
    """The samples looked at: how many have each suffix, their keys, and the fields of the first `json`."""

    samples: int = 0
    suffixes: Counter[str] = field(default_factory=Counter)
    keys: list[str] = field(default_factory=list)
    fields: list[Mapping[str, Any]] = field(default_factory=list)
    bytes: int = 0
    ended: bool = False
    fault: str = ""

    def add(self, other: Looked) -> None:
        self.samples += other.samples
        self.suffixes += other.suffixes
        self.keys += other.keys
        self.fields += other.fields
        self.bytes += other.bytes

    def share(self, suffix: str) -> float:
        return self.suffixes[suffix] / self.samples if self.samples else 0.0


def look_at_tar(inventory: Inventory, file: str) -> Looked:
    looked = Looked()
    try:
        with inventory.store.open(file) as opened:
            reader = TarReader(opened, seeks=not is_remote(inventory.store.location))
            _look(reader, looked, is_remote(inventory.store.location))
    except Unreachable:
        raise
    except (Damage, OSError) as error:
        looked.fault = shown(error, 120)
    return looked


def _look(reader: TarReader, looked: Looked, is_far: bool) -> None:
    key: str | None = None
    its: set[str] = set()
    for member in reader:
        name, suffix = split_name(member.name)
        if member.kind is not None or not suffix or suffix in BESIDE:
            continue
        if name != key or suffix in its:
            if looked.samples >= SAMPLES or (is_far and looked.bytes > REMOTE_BYTES):
                return
            key, its = name, set()
            looked.samples += 1
            looked.keys.append(name)
        its.add(suffix)
        looked.suffixes[suffix] += 1
        looked.bytes += member.size + 1024
        if suffix == "json" and member.size <= LARGEST_JSON and len(looked.fields) < LOOKED_AT:
            try:
                looked.fields.append(object_of(reader.content(member)))
            except Reject:
                looked.fields.append({})
    looked.ended = True
