"""Shards that were converted and wait to be assembled, and what their sidecars say of rejects."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from pathlib import Path

from tasks.core.errors import DataError, UsageError
from tasks.core.files import read_json
from tasks.dataset.build import rejects
from tasks.dataset.build.assemble import Shard
from tasks.dataset.build.catalogue import Catalogue, Leaf
from tasks.dataset.build.convert import RULES, SUFFIXES, staged, tar_path
from tasks.dataset.build.reuse import Known, KnownSidecars
from tasks.dataset.build.sidecar import counted_reasons, first

OUR_KEYS = {"modality", "shard", "splits"}
"""Of the rules in a folder that a build has made."""


def require_own(staging: Path) -> None:
    """UsageError where the folder is somebody else's: a build removes what it does not need there."""
    try:
        names = [path.name for path in staging.iterdir() if not path.name.startswith(f".{RULES}.")]
    except FileNotFoundError:
        return
    except NotADirectoryError:
        names = [staging.name]
    if names and not _has_rules(staging):
        raise UsageError(
            f"dataset.output: {staging} holds what no build has put there, such as {min(names)}, and a build "
            "would remove it; move it away"
        )


def _has_rules(staging: Path) -> bool:
    try:
        rules = read_json(staging / RULES)
    except (OSError, ValueError):
        return False
    return isinstance(rules, dict) and rules.keys() >= OUR_KEYS


def staged_shard(staging: Path, leaf: Leaf) -> Shard:
    """A leaf as the shard it has become; DataError when it was taken away meanwhile."""
    table = staged(staging, leaf.digest)
    if table is None:
        raise DataError(f"a converted shard has gone from {staging}; build again")
    return Shard(
        leaf.split, table, None if first(table, "blake3") is None else tar_path(staging, leaf.digest)
    )


def converted_shards(
    catalogue: Catalogue, known: Mapping[int, Known], staging: Path, converted: Iterator[int]
) -> Generator[Shard, None, None]:
    """Every leaf as the shard it has become, here or in an earlier version, in order, each as soon as
    `converted` has told of it."""
    sidecars = KnownSidecars()
    waiting: set[int] = set()
    for leaf in catalogue.leaves():
        one = known.get(leaf.ordinal)
        if one is not None:
            yield Shard(leaf.split, sidecars[one], None if one.tar is None else one.version / one.tar)
            continue
        while leaf.ordinal not in waiting:
            waiting.add(next(converted))
        waiting.remove(leaf.ordinal)
        yield staged_shard(staging, leaf)
    next(converted, None)  # which lets it come to its end


def note_rejects(
    catalogue: Catalogue, known: Mapping[int, Known], staging: Path, leaves: Iterable[int]
) -> None:
    """Bring the rejects of these leaves, as far as they are converted, into the catalogue; its fact `unread`
    says how many samples could not be read for a cause that may pass."""
    sidecars = KnownSidecars()
    unread = catalogue.fact("unread_containers") or 0
    with catalogue.transaction():
        for leaf in map(catalogue.leaf, leaves):
            one = known.get(leaf.ordinal)
            table = staged(staging, leaf.digest) if one is None else sidecars[one]
            if table is not None and (reasons := counted_reasons(table)):
                unread += reasons.get(rejects.TRANSIENT, 0)
                told = rejects.of_sidecar(catalogue.entries(leaf), table)
                catalogue.reject(told, in_conversion=True)
        catalogue.note("unread", unread)


def sweep(staging: Path, is_kept: Callable[[Path], bool]) -> None:
    """Remove whatever a killed build has half written, and the staged shards and sidecars that are not to be
    kept."""
    for path in staging.iterdir():
        is_half_written = path.name.startswith(".") and path.is_file()
        if is_half_written or (path.suffix in SUFFIXES and not is_kept(path)):
            path.unlink(missing_ok=True)  # a worker of a build that has just failed cleans up too
