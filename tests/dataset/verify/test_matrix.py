"""Every fault is found, named and explained, alone and together with others, at every level, and never hides
behind another one; what is sound has no findings, whoever made it."""

import random
import shutil
import tarfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations, cycle
from pathlib import Path
from typing import Any

import pytest

from tasks.core.findings import Finding
from tests.dataset import tampering
from tests.dataset.verify import faults_of_shards as faults
from tests.dataset.verify.faults_of_shards import LEVELS, Fault, World
from tests.dataset.verify.injectors import EXECUTED
from tests.dataset.verify.judging import as_lines, judged
from tests.dataset.verify.places import Hit, Place

SINGLE = [*faults.PICTURES, *faults.VOLUMES, *faults.CHATS]
WORLDS: tuple[World, ...] = ("built", "forged", "foreign")


def _shown_by(fault: Fault, world: World) -> set[tuple[str, ...]]:
    """The pairs that one case covers: of fault and level, and of world, level and code."""
    expected = fault.worlds[world]
    levels = {(fault.name, level) for level in LEVELS if expected[level]}
    codes = {(world, level, code) for level in LEVELS for code in expected[level]}
    return {(fault.name,), (world, fault.data)} | levels | codes


def daily(cases: Sequence[tuple[Fault, World]]) -> list[tuple[Fault, World]]:
    """The fewest cases, chosen greedily, that find every fault at every level at which some world shows it, and
    every code in every world and level."""
    left = {pair for case in cases for pair in _shown_by(*case)}
    chosen = []
    while left:
        chosen.append(max(cases, key=lambda case: len(left & _shown_by(*case))))
        left -= _shown_by(*chosen[-1])
    return chosen


CASES = [(fault, world) for fault in SINGLE for world in fault.worlds]
DAILY = {(fault.name, world) for fault, world in daily(CASES)}
"""Each fault in the worlds that show most about it; the full grid of faults and worlds is a soak test."""

PLACES = (
    Place("train/000001.tar", "train/000002.tar", "val/000000.tar", 3),
    Place("train/000004.tar", "train/000005.tar", "val/000002.tar", 2),
    Place("val/000001.tar", "val/000003.tar", "train/000003.tar", 1),
)
"""These places have no shard in common."""
SMALL = Place("train/000000.tar", "train/000001.tar", "val/000000.tar", 0)
SEED, TRIPLES = 20, 30
MOST_S = 20.0
"""Seconds of one core for one verification of a hundred samples."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound version of each kind, apart from any dataset, whose names show nothing of their content."""
    folder = tmp_path_factory.mktemp("made")
    faults.build_each(folder)
    shutil.rmtree(folder / "raw")
    (folder / "work").mkdir()
    (folder / "work/another").symlink_to(folder / "another")
    return folder


@pytest.fixture
def fresh(made: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Path]]:
    """Makes a new copy of a sound version, which may be damaged; afterwards nothing of it was executed."""
    work = made / "work"
    monkeypatch.chdir(work)

    def copy(data: str) -> Path:
        shutil.rmtree(work / data, ignore_errors=True)
        return Path(shutil.copytree(made / data, work / data))

    yield copy
    assert not (work / EXECUTED).exists()


class Tally:
    """How many of the faults that were put in were found, by level and by how many at once."""

    def __init__(self) -> None:
        self.injected: Counter[tuple[str, str]] = Counter()
        self.found: Counter[tuple[str, str]] = Counter()
        self.slowest_s = 0.0

    def timed(self, path: Path, level: Any) -> tuple[list[Finding], bool]:
        began = time.process_time()
        report = judged(path, level)
        self.slowest_s = max(self.slowest_s, time.process_time() - began)
        return list(report.findings), report.ok


TALLY = Tally()


def put_in(world: World, version: Path, some: Iterable[tuple[Fault, Place]]) -> list[Hit]:
    """Damage the version by all of these and make the world for it."""
    if world == "foreign":
        tampering.make_foreign(version)
    hits = [fault.inject(version, place) for fault, place in some]
    if world == "forged":
        tampering.forge(version)
    return hits


def missed(findings: list[Finding], expected: Iterable[str], hit: Hit) -> list[str]:
    """The expected codes that no finding has with the right place."""
    return [
        codes
        for codes in expected
        if not any(
            finding.code in codes.split("|") and hit.is_named(finding.code, finding.where)
            for finding in findings
        )
    ]


def test_every_fault_is_put_in_daily() -> None:
    assert {name for name, _ in DAILY} == {fault.name for fault in SINGLE}
    assert {world for _, world in DAILY} == set(WORLDS)


@pytest.mark.parametrize("data", ["pictures", "volumes", "chats"])
@pytest.mark.parametrize("world", WORLDS)
def test_what_is_sound_has_no_findings(world: World, data: str, fresh: Callable[[str], Path]) -> None:
    version = fresh(data)
    put_in(world, version, [])
    for level in LEVELS:
        assert not as_lines(judged(version, level).findings)


@pytest.mark.parametrize(
    ("fault", "world"),
    [
        pytest.param(
            *case,
            id=", ".join(map(str, case)),
            marks=() if (case[0].name, case[1]) in DAILY else pytest.mark.proof,
        )
        for case in CASES
    ],
)
def test_a_fault_is_found_and_named_and_nothing_else_is(
    fault: Fault, world: World, fresh: Callable[[str], Path]
) -> None:
    version = fresh(fault.data)
    (hit,) = put_in(world, version, [(fault, PLACES[0] if fault.data == "pictures" else SMALL)])
    wrong = []
    more = {"built": fault.also_built, "forged": frozenset[str](), "foreign": fault.also_foreign}
    allowed = fault.also | more[world]
    allowed |= {code for codes in fault.worlds[world]["full"] for code in codes.split("|")}
    for level in LEVELS:
        expected = fault.worlds[world][level]
        TALLY.injected["alone", level] += len(expected)
        findings, is_ok = TALLY.timed(version, level)
        lacking = missed(findings, expected, hit)
        TALLY.found["alone", level] += len(expected) - len(lacking)
        beside = sorted({finding.code for finding in findings} - allowed)
        if lacking or beside or (expected and is_ok):
            wrong.append(f"{level}: lacks {lacking}, has beside {beside}, reports{as_lines(findings)}")
    assert not wrong, "\n".join(wrong)


def expected_beside(fault: Fault, world: World, level: str, others: Iterable[Fault]) -> list[str]:
    """What must still be found of a fault although the others are there."""
    codes = list(fault.worlds[world][level])
    hidden = {code for other in others for code in other.hides}
    if fault.has_shard and any(other.leaves_foreign for other in others):
        foreign = fault.worlds.get("foreign", faults.on())
        codes = ["|".join([*foreign["full"], *codes])] if foreign[level] else []
    return [code for code in codes if hidden.isdisjoint(code.split("|"))]


def lost_together(
    world: World, version: Path, some: list[tuple[Fault, Place]], hits: list[Hit], kind: str, level: str
) -> list[str]:
    """The faults at different places that are not found at this level."""
    lost = []
    if any(fault.hides_keys for fault, _ in some):
        hits = [replace(hit, keys=()) for hit in hits]
    if sum(not fault.has_shard for fault, _ in some) > 1:  # which of two tables is at odds with the other?
        hits = [replace(hit, files=()) for hit in hits]
    expected = [
        (fault, code, hit)
        for (fault, _), hit in zip(some, hits, strict=True)
        for code in expected_beside(fault, world, level, [other for other, _ in some if other is not fault])
    ]
    TALLY.injected[kind, level] += len(expected)
    findings, is_ok = TALLY.timed(version, level)
    lacking = [(fault.name, code) for fault, code, hit in expected if missed(findings, [code], hit)]
    TALLY.found[kind, level] += len(expected) - len(lacking)
    if lacking or (expected and is_ok):
        names = " + ".join(fault.name for fault, _ in some)
        lost.append(f"{level}: {names}: not found: {lacking}{as_lines(findings)}")
    return lost


@pytest.mark.proof
@pytest.mark.parametrize("world", ["built", "foreign"])
def test_pairs_of_faults_in_different_shards_are_all_found(
    world: World, fresh: Callable[[str], Path]
) -> None:
    """Each pair at one level, in turn: every fault is in some pairs at each."""
    lost = []
    pairs = combinations([fault for fault in faults.TOGETHER if world in fault.worlds], 2)
    for pair, level in zip(pairs, cycle(LEVELS), strict=False):
        some = list(zip(pair, PLACES[:2], strict=True))
        version = fresh("pictures")
        hits = put_in(world, version, some)
        lost += lost_together(world, version, some, hits, "pairs in different shards", level)
    assert not lost, "\n".join(lost)


@pytest.mark.proof
@pytest.mark.parametrize("world", ["built", "foreign"])
def test_pairs_of_faults_in_one_shard_never_hide_each_other(
    world: World, fresh: Callable[[str], Path]
) -> None:
    """One fault may leave no place for the other, or undo it, so only one of them has to be found."""
    lost = []
    local = [fault for fault in faults.TOGETHER if world in fault.worlds and fault.has_shard]
    for (one, other), level in zip(combinations(local, 2), cycle(LEVELS), strict=False):
        version = fresh("pictures")
        near = replace(PLACES[0], row=PLACES[0].row + 3)
        try:
            hits = put_in(world, version, [(one, PLACES[0]), (other, near)])
        except (OSError, tarfile.TarError, IndexError):
            continue
        hit = Hit(hits[0].shards + hits[1].shards)  # a swap or a new name takes the other fault along
        expected = [code for fault in (one, other) for code in fault.worlds[world][level]]
        TALLY.injected["pairs in one shard", level] += bool(expected)
        findings, is_ok = TALLY.timed(version, level)
        found = len(missed(findings, expected, hit)) < len(expected)
        TALLY.found["pairs in one shard", level] += found
        if expected and (is_ok or not found):
            lost.append(f"{level}: {one} + {other}, none of {expected}{as_lines(findings)}")
    assert not lost, "\n".join(lost)


@pytest.mark.proof
@pytest.mark.parametrize("world", ["built", "foreign"])
def test_random_triples_of_faults_are_all_found(world: World, fresh: Callable[[str], Path]) -> None:
    rng = random.Random(SEED)
    known = [fault for fault in faults.PICTURES if world in fault.worlds and not fault.forges]
    lost: list[str] = []
    done = 0
    while done < TRIPLES:
        some = list(zip(rng.sample(known, 3), PLACES, strict=True))
        version = fresh("pictures")
        try:
            hits = put_in(world, version, some)
        except Exception:  # noqa: BLE001 - two of them damage one file
            continue
        lost += lost_together(world, version, some, hits, "triples", LEVELS[done % len(LEVELS)])
        done += 1
    assert not lost, "\n".join(lost)


def test_score(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print()
        for kind, level in TALLY.injected:
            found, injected = TALLY.found[kind, level], TALLY.injected[kind, level]
            print(f"verify found {found} of {injected} faults put in {kind} at level {level}")
        print(f"the slowest took {TALLY.slowest_s:.2f} s of one core")
    assert TALLY.found == TALLY.injected
    assert TALLY.slowest_s < MOST_S
