"""The judgement of a version: tables, files and content against each other."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain

from tasks.core.findings import Finding
from tasks.core.stores import is_remote, is_web
from tasks.dataset.manifest import content_digest
from tasks.dataset.tables import give_memory_back
from tasks.dataset.verify.beside import Beside
from tasks.dataset.verify.duplicates import Lookup
from tasks.dataset.verify.faults import REMAKE
from tasks.dataset.verify.files import Expected, extra_faults, file_faults, odd_ends, shut_in
from tasks.dataset.verify.foreign import count_faults, hole_faults
from tasks.dataset.verify.keys import keys_in
from tasks.dataset.verify.locate import Place
from tasks.dataset.verify.lost import renamed_back
from tasks.dataset.verify.outcome import Outcome
from tasks.dataset.verify.place import sizes_of, tars_in
from tasks.dataset.verify.recorded import compare
from tasks.dataset.verify.records import Task
from tasks.dataset.verify.reporting import without_shards
from tasks.dataset.verify.ruling import Level, LookInside, Seen
from tasks.dataset.verify.tables import SHARDS
from tasks.dataset.verify.version import Version

UNLISTED = "tars that no table names: a web server gives no list"


def judge(
    place: Place, files: Beside, level: Level, look_inside: LookInside, outcome: Outcome
) -> tuple[list[Finding], Seen]:
    """All findings, and what was looked at."""
    version, expected, there, found = _look(place, files, level)
    gone = _shards_with("shard.missing", found)
    outcome.shards, outcome.ledger = version.shards or {}, version.ledger
    version.ledger.shut = shut_in(found)
    there = {name: size for name, size in there.items() if not outcome.is_shut(name)}
    sizes = {name: size for name, size in there.items() if name in expected and name not in gone}
    tasks = _present(version.tasks(sizes, level == "full"), sizes, outcome)
    if level != "quick":
        look_inside(tasks, sizes)
        outcome.finish(_lookup(version), REMAKE)
        found += count_faults(outcome.counts, version.stated, outcome.findings, "the other tables")
    elif outcome.tells:
        _tell_of_cut(tasks, sizes, _shards_with("shard.truncated", found), outcome)
    is_as_built = version.shards is None and _has_digest(version, outcome)
    if is_as_built:
        version.ledger.note(SHARDS, tars="together they have the manifest's digest: each is as it was built")
    seen = Seen(
        level,
        shards=len(expected),
        read=outcome.read,
        samples=outcome.samples,
        confirmed=len(version.ledger.confirmed),
        splits=len(version.splits),
        has_tables=version.shards is not None,
        has_digest=is_as_built,
        undecoded=outcome.undecoded,
        beside=[UNLISTED] if is_web(place.folder) else [],
    )
    found = [*version.ledger.findings(), *without_shards(found, outcome.copies), *outcome.findings]
    if len(found) == 1 and version.true_name is not None and not is_remote(place.folder):
        problem = f"its digest is {version.true_name}, which the folder was called when it was built"
        only = replace(found[0], evidence={"problem": problem})
        found = [renamed_back(only, place.folder, version.true_name)]
    return found, seen


def _look(
    place: Place, files: Beside, level: Level
) -> tuple[Version, Expected, Mapping[str, int], list[Finding]]:
    """Everything but the inside of the tars. Files beside them are hashed while the tars' ends are read."""
    give_memory_back()
    with ThreadPoolExecutor(1) as beside:
        comparing = beside.submit(compare, files)
        there = {} if is_web(place.folder) else tars_in(place.folder, hidden=True, lenient=True)
        odd = odd_ends(place.folder, there)
        ledger = comparing.result()
    version = Version(files, place.folder, ledger, is_quick=level == "quick")
    version.read_splits(there)
    expected = version.expected(there)
    if is_web(place.folder):
        there = sizes_of(place.folder, list(expected))
        odd = odd_ends(place.folder, there)
    found = list(chain(file_faults(place.folder, there, odd, expected), extra_faults(there, expected)))
    if version.shards is None and version.manifest is None:
        found += hole_faults(expected, REMAKE)
    return version, expected, there, found


def _shards_with(code: str, findings: Iterable[Finding]) -> frozenset[str]:
    return frozenset(found.where["shard"] for found in findings if found.code == code)


def _present(tasks: Iterator[Task], there: Collection[str], outcome: Outcome) -> Iterator[Task]:
    for task in tasks:
        if task.name in there:
            yield task
        else:
            outcome.absent(task)


def _tell_of_cut(
    tasks: Iterator[Task], sizes: Mapping[str, int], cut: Collection[str], outcome: Outcome
) -> None:
    for task in tasks:
        if task.name in cut:
            outcome.cut(task, sizes[task.name])


def _lookup(version: Version) -> Lookup:
    """Finds keys again: in the tables, else in the tars."""

    def lookup(wanted: Mapping[str, Collection[int]]) -> Iterator[tuple[str, str]]:
        told = set()
        for shard, key in version.keys_of(wanted):
            told.add(shard)
            yield shard, key
        yield from keys_in(version.folder, {name: wanted[name] for name in wanted if name not in told})

    return lookup


def _has_digest(version: Version, outcome: Outcome) -> bool:
    """Whether the tars that were read are, all together, those of the manifest."""
    digest = content_digest(outcome.blake3.items())
    return bool(outcome.blake3) and version.manifest is not None and digest == version.manifest.digest
