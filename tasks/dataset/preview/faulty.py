"""The samples that verify found faulty, as tiles: what is still there of each.

No checksum is asked, since that is what is wrong with many: what a tile shows proves nothing, and the tile
says which codes it stands for.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tasks.core.findings import Finding
from tasks.dataset.preview import salvage
from tasks.dataset.preview.choice import EACH
from tasks.dataset.preview.legible import legible
from tasks.dataset.preview.samples import Sample
from tasks.dataset.preview.tiles import Fault, Tile, tile_of

MOST = 24
Place = tuple[str, str]
"""A shard and a key."""


def faulty_tiles(version: Path, findings: Sequence[Finding], modality: str) -> list[Tile]:
    """Tiles of the samples that findings name, a few of each code: what still decodes of each."""
    chosen = choose(findings, min(MOST, EACH[modality]))
    tiles: dict[Place, Tile] = {}
    for shard in dict.fromkeys(shard for shard, _ in chosen):
        mine = {key: codes for (own, key), codes in chosen.items() if own == shard}
        try:
            found = salvage.find(version / shard, mine)
        except (OSError, ValueError):  # no such file, or no such name can be: findings of their own
            found = {}
        for key, codes in mine.items():
            tiles[shard, key] = _tile(version, shard, key, found.get(key), modality)
            tiles[shard, key].codes = codes
    return [tiles[place] for place in chosen]


def choose(findings: Sequence[Finding], most: int) -> dict[Place, list[str]]:
    """The codes of at most so many samples, in turn one of each code, so that each is seen."""
    codes: dict[Place, list[str]] = {}
    queues: dict[str, list[Place]] = {}
    for found in findings:
        shard, key = found.where.get("shard"), found.where.get("key")
        if not isinstance(shard, str) or not isinstance(key, str):
            continue
        place = (shard, key)
        known = codes.setdefault(place, [])
        if found.code not in known:
            known.append(found.code)
        queues.setdefault(found.code, []).append(place)
    chosen: dict[Place, list[str]] = {}
    for turn in range(most):
        for places in queues.values():
            if turn < len(places) and len(chosen) < most:
                chosen[places[turn]] = codes[places[turn]]
    return chosen


def _tile(version: Path, shard: str, key: str, places: salvage.Places | None, modality: str) -> Tile:
    """What is left of a sample."""
    try:
        members = salvage.read(version / shard, places) if places else {}
    except OSError:
        members = {}
    if not members:
        return Tile(legible(key, 80), faults=[Fault("", "nothing of it can be read")], shard=shard)
    return tile_of(Sample(key, members), modality, shard)
