"""The judgement of tars that nobody has a manifest of."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator

from tasks.core.findings import Finding
from tasks.core.stores import is_remote
from tasks.core.units import counted
from tasks.dataset.verify import foreign
from tasks.dataset.verify.beside import Beside
from tasks.dataset.verify.faults import AGAIN, plain
from tasks.dataset.verify.files import shut_in
from tasks.dataset.verify.keys import keys_in
from tasks.dataset.verify.locate import Place
from tasks.dataset.verify.lost import dataset_of, is_current
from tasks.dataset.verify.outcome import Outcome
from tasks.dataset.verify.place import ZIPPED, compression_unread
from tasks.dataset.verify.records import Task
from tasks.dataset.verify.ruling import Level, LookInside, Seen
from tasks.dataset.verify.tables import MANIFEST

NO_MANIFEST = "changed bytes: no manifest says what they were"
MOST_VERSIONS = 3
"""Whose names are told."""


def judge(
    place: Place, files: Beside, level: Level, look_inside: LookInside, outcome: Outcome
) -> tuple[list[Finding], Seen]:
    """All findings, and what was looked at."""
    found: list[Finding] = []
    stated = foreign.read_sizes(files, place, found)
    found += [*foreign.name_faults(place, stated), *foreign.end_faults(place)]
    gone = {finding.where["shard"] for finding in found if finding.code == "shard.missing"}
    shut = shut_in(found)
    sizes = {
        name: size
        for name, size in place.tars.items()
        if name not in gone and name.rpartition("/")[0] not in shut and compression_unread(name) is None
    }
    if level != "quick":
        tasks = (Task(folder=place.folder, name=name, decodes=level == "full") for name in sizes)
        look_inside(tasks, sizes)
        outcome.finish(lambda wanted: keys_in(place.folder, wanted), AGAIN)
        found += foreign.count_faults(outcome.counts, stated.samples, outcome.findings, foreign.SIZES)
    seen = Seen(
        level,
        shards=len(place.tars),
        read=outcome.read,
        samples=outcome.samples,
        undecoded=outcome.undecoded,
        zipped=sum(name.endswith(ZIPPED) for name in sizes) if level == "quick" else 0,
        beside=[*(f"what {name} says: its form is not known" for name in stated.strange), *_unseen(place)],
    )
    return [*found, *outcome.findings], seen


def _unseen(place: Place) -> Iterator[str]:
    """What only a manifest would show, and where there is one after all."""
    yield NO_MANIFEST
    if is_remote(place.folder):
        return
    folders = dict.fromkeys(os.path.dirname(os.path.join(place.folder, name)) for name in place.tars)
    above = dict.fromkeys(os.path.dirname(os.path.realpath(folder)) for folder in folders)
    found = [folder for folder in above if os.path.lexists(os.path.join(folder, MANIFEST))]
    for version in found[:MOST_VERSIONS]:
        known = dataset_of(version) if is_current(dataset_of(version), version) else version
        command = f"tarmac verify {shlex.quote(plain(known))} compares them with its manifest"
        yield f"these lie in version {plain(os.path.basename(version))}; {command}"
    if len(found) > MOST_VERSIONS:
        yield f"others lie in {counted(len(found) - MOST_VERSIONS, 'more version')}"
