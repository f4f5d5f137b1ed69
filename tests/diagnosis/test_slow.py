"""What makes a training slow, by its lines and its memory; tests/stalls/test_slow.py watches real trainings."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import wait
from pathlib import Path

import pytest

from tasks.core.findings import Finding
from tasks.diagnosis import fetching
from tasks.diagnosis.observation.stacks import Stacks
from tasks.diagnosis.slow import GPU_EVERY_S, Course, MemoryWatch, SlowWatch, _MemoryLook
from tasks.trainers.contract import Phase, Progress


def course(*stretches: tuple[Phase, float, int], began: float = 100.0) -> tuple[Course, float]:
    """A training of stretches: the phase, seconds per line, and the number of lines. Steps count through."""
    made, now, step = Course(began), began + 10.0, 0
    for phase, seconds, lines in stretches:
        for _ in range(lines):
            now += seconds
            step += phase == "step"
            made.note(Progress(phase, float(step)), now)
    return made, now


def codes(*stretches: tuple[Phase, float, int]) -> dict[str, str]:
    made, now = course(*stretches)
    return {one.code: str(one.evidence["what"]) for one in made.findings(now)}


def test_a_loss_of_pace_is_reported_with_when_it_began() -> None:
    found = codes(("step", 0.5, 200), ("step", 1.0, 60))
    assert "2.0 times slower since 59 s" in found["pace.dropped"] and "0.5 s before" in found["pace.dropped"]
    assert codes(("step", 0.5, 200), ("step", 1.0, 60), ("step", 0.5, 20)) == {}, "it has gone by"


@pytest.mark.parametrize(
    "stretches",
    [
        [("step", 0.5, 200)],
        [("step", 0.5, 200), ("step", 0.7, 100)],
        [("step", 0.5, 200), ("step", 1.0, 20)],
        [("step", 2.0, 3), ("step", 0.5, 200)],
        [
            ("step", 0.5, 100),
            ("validate", 5.0, 1),
            ("step", 0.5, 100),
            ("validate", 5.0, 1),
            ("step", 0.5, 50),
        ],
        [("step", 0.2, 20), ("step", 9.0, 1), ("step", 0.2, 200)],
    ],
    ids=["steady", "a little slower", "slow for a moment", "slow at first", "validates", "one pause"],
)
def test_others_are_not_slow(stretches: list[tuple[Phase, float, int]]) -> None:
    assert codes(*stretches) == {}


def test_pauses_between_epochs() -> None:
    epoch = (("step", 0.5, 50), ("step", 9.0, 1))
    found = codes(*epoch, *epoch, *epoch, ("step", 0.5, 10))
    assert set(found) == {"epoch.gap"} and "8.5 s without a step" in found["epoch.gap"]


def test_validation_and_checkpoints_that_take_long() -> None:
    validating = (("step", 0.5, 50), ("validate", 2.0, 10))
    assert "validation.slow" in codes(*validating, *validating, ("step", 0.5, 1))
    saving = (("step", 0.5, 50), ("checkpoint", 0.1, 1), ("step", 6.0, 1))
    assert "checkpoint.slow" in codes(*saving, *saving, *saving)


def test_goodput_says_where_the_time_went() -> None:
    made, now = course(("step", 0.5, 100), ("validate", 1.0, 10), ("step", 0.5, 10))
    goodput = made.finish(now + 2.0)
    assert goodput.total_s == pytest.approx(now + 2.0 - 100.0)
    assert str(goodput).startswith("goodput 74%: training 57 s, validating 9.5 s, starting 10 s")


def watched(sizes: list[int], shares: list[int] | None = None, every_s: float = 5.0) -> MemoryWatch:
    made = MemoryWatch()
    made._sizes[1] = [_MemoryLook(every_s * n, size) for n, size in enumerate(sizes)]
    made._shares[1] = [_MemoryLook(every_s * n, size) for n, size in enumerate(shares or [])]
    return made


GB = 1 << 30


def test_memory_that_grows_until_a_kill() -> None:
    found = watched([GB + n * GB // 10 for n in range(30)]).finding(10 * GB)
    assert found is not None and "last 8 min" in str(found.evidence["what"])
    copied = watched([4 * GB] * 30, [GB + n * GB // 10 for n in range(30)]).finding(10 * GB)
    assert copied is not None and "shared with its parent" in str(copied.evidence["what"])


@pytest.mark.parametrize(
    "sizes",
    [
        [4 * GB] * 30,
        [GB + min(n, 12) * GB // 10 for n in range(30)],
        [GB + (n % 2) * GB for n in range(30)],
        [GB + n * 1000 for n in range(30)],
    ],
    ids=["steady", "a cache that is full", "up and down", "next to nothing"],
)
def test_memory_that_does_not(sizes: list[int]) -> None:
    assert watched(sizes).finding(10 * GB) is None


@pytest.fixture
def idle_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA H100, 3, 1000, 80000'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    yield


def test_a_gpu_with_nothing_to_do(idle_gpu: None) -> None:
    """nvidia-smi is a script here: no machine of the tests has a GPU."""
    slow, found = SlowWatch(1, 0.0, tuple), list[Finding]()
    for look in range(6):
        slow.note("step", look, now := 1.0 + look * GPU_EVERY_S)
        found += slow.look(now)
    assert [one.code for one in found] == ["gpu.idle"] and "at last 3 %" in str(found[0].evidence["what"])


@pytest.mark.parametrize("fetches, share", [(12, 1.0), (6, 0.5), (0, 0.0)])
def test_glances_at_a_rank_that_loads_its_data_itself(
    monkeypatch: pytest.MonkeyPatch, fetches: int, share: float
) -> None:
    loads = [
        "Rows.__getitem__ (train.py:7)",
        "fetch (torch/utils/data/_utils/fetch.py:54)",
        "train (train.py:9)",
    ]
    stacks = iter([loads] * fetches + [["train (train.py:12)"]] * (fetching.GLANCES - fetches))
    monkeypatch.setattr(fetching, "stacks_of", lambda pids: ({pids[0]: Stacks(next(stacks), {}, None)}, None))
    watch = fetching.FetchWatch()
    for number in range(2 * fetching.GLANCES):
        assert watch.share in (0.0, share)
        watch.look(1, fetching.SOON_S * number)
        if watch._pending is not None:
            wait([watch._pending])
    assert watch.share == share
    assert not share or watch.call == loads[0]


def test_a_rank_whose_stack_is_denied_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(fetching, "stacks_of", lambda pids: (asked.append(pids[0]) or {}, "denied"))
    watch = fetching.FetchWatch()
    for number in range(10):
        watch.look(1, fetching.SOON_S * number)
        if watch._pending is not None:
            wait([watch._pending])
    assert len(asked) == fetching.MOST_FAILURES and watch.share == 0.0
