"""The judgement of tars that nobody has a manifest of."""

from __future__ import annotations

from tasks.core.findings import Finding
from tasks.dataset.verification import foreign
from tasks.dataset.verification.beside import Beside
from tasks.dataset.verification.faults import AGAIN
from tasks.dataset.verification.keys import keys_in
from tasks.dataset.verification.locate import Place
from tasks.dataset.verification.outcome import Outcome
from tasks.dataset.verification.place import ZIPPED, compression_unread
from tasks.dataset.verification.records import Task
from tasks.dataset.verification.ruling import Level, LookInside, Seen


def judge(
    place: Place, files: Beside, level: Level, look_inside: LookInside, outcome: Outcome
) -> tuple[list[Finding], Seen]:
    """All findings, and what was looked at."""
    found: list[Finding] = []
    stated = foreign.read_sizes(files, place, found)
    found += [*foreign.name_faults(place, stated), *foreign.end_faults(place)]
    gone = {finding.where["shard"] for finding in found if finding.code == "shard.missing"}
    sizes = {
        name: size
        for name, size in place.tars.items()
        if name not in gone and compression_unread(name) is None
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
        beside=[f"what {name} says: its form is not known" for name in stated.strange],
    )
    return [*found, *outcome.findings], seen
