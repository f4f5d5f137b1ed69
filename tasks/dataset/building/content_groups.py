"""Puts samples that are equal or nearly equal on one side of a split, for `splits: {group_by: content}`.

A group is named after the key of one of its samples and is drawn by that name, as a sample without its like
is drawn by its key. The name is chosen by a hash that is independent of the split's, so groups of any size
are held out as often as single samples.

Where the current version was grouped by content, its groups stay: every sample keeps its group, new copies
join the group of those that are there, and only where new copies make several groups one, all but one of
those move, to one that is trained on if there is one. So, with the same shares, no sample that the current
version trains on is held out by the next. The price is that groups depend on the versions before, and that a
sample whose copies are gone stays where they were.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.errors import DataError
from tasks.core.schema import Config
from tasks.core.schema.dataset import CONTENT
from tasks.core.screen import Progress
from tasks.dataset import duplicates, splits
from tasks.dataset.building.listed.catalogue import Catalogue
from tasks.dataset.building.looks import RawLooks
from tasks.dataset.keys import shard_hash
from tasks.dataset.version import layout
from tasks.dataset.version.build_info import read_build_info
from tasks.dataset.version.tables import read_pieces

logger = logging.getLogger(__name__)
Move = tuple[int, str, str]
"""The number of a listed sample, and its group and split."""


def group_by_content(
    config: Config, catalogue: Catalogue, origins: Sequence[str], progress: Progress, *, anew: bool = False
) -> Iterable[Move]:
    """Measure the listed samples of a config that says `splits: {group_by: content}`, `anew` or those that
    were not measured before, and return what `moves_of` finds; nothing for another config. UsageError as from
    RawLooks, TarmacError for a fault of the source as a whole."""
    if config.dataset.splits.group_by != CONTENT:
        return ()
    looks = RawLooks(config, catalogue, origins)
    looks.measure(config, progress, anew=anew)
    return moves_of(config, catalogue, looks)


def moves_of(config: Config, catalogue: Catalogue, looks: RawLooks) -> Iterator[Move]:
    """Return the samples that belong to a group, by what is known of their looks and of the current version,
    with their group and split."""
    _, near = duplicates.clusters_of(looks.looks, by_text=config.dataset.modality == "chat")
    rows = np.flatnonzero(np.bincount(near, minlength=len(near))[near] > 1)
    clusters: dict[int, dict[str, int]] = defaultdict(dict)
    entries = catalogue.listed_as(looks.numbers[rows].tolist())
    for label, entry in zip(near[rows].tolist(), entries, strict=True):
        clusters[label].setdefault(entry.key, entry.number)  # the first with a key is the one that stays
    keys = {key for members in clusters.values() for key in members}
    known = _known_groups(config, keys)
    draw = partial(_drawn, config)
    found: dict[int, str] = {}
    for members in clusters.values():
        found |= dict.fromkeys(members.values(), group_of(members, known, draw))
    alone = known.keys() - keys  # their copies are gone
    if alone:
        found |= {one.number: known[one.key] for one in catalogue.every_listed() if one.key in alone}
    return ((number, group, draw(group)) for number, group in found.items())


def group_of(keys: Collection[str], known: Mapping[str, str], draw: Callable[[str], str]) -> str:
    """Return the group of samples that are copies of each other. `known` has the groups that there are, by
    key, and `draw` returns the split of a group."""
    there = {known[key] for key in keys if key in known}
    trained = {group for group in there if draw(group) == splits.REST}
    return min(trained or there or keys, key=lambda key: (shard_hash(key), key))


def _drawn(config: Config, group: str) -> str:
    return splits.split_of(config.dataset.splits, group, None, {})


def _known_groups(config: Config, keys: Collection[str]) -> dict[str, str]:
    """Return, by key, the groups in the current version if that was grouped by content: of these keys, for
    which a sample without its like is a group of its own, and of all others that have a group."""
    version = layout.linked(config.dataset.output)
    known: dict[str, str] = {}
    wanted = pa.array(sorted(keys), pa.string())
    try:
        if version is None or (read_build_info(version).dataset["splits"] or {}).get("group_by") != CONTENT:
            return {}
        for path in sorted((version / "samples").glob("*.parquet")):
            for piece in read_pieces(path, ("key", "group")):
                is_known = pc.or_(pc.is_valid(piece.column("group")), pc.is_in(piece.column("key"), wanted))
                for row in piece.filter(is_known).to_pylist():
                    known[row["key"]] = row["group"] or row["key"]
    except DataError as error:
        logger.warning("%s; so copies are grouped as by a first build, and samples may change sides", error)
        return {}
    return known
