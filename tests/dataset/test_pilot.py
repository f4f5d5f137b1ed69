"""Before a long build a few samples go through every step; what spoils them all is seen at once."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from tasks.core.errors import DataError
from tasks.core.schema import Config
from tasks.dataset.build import pilot
from tasks.dataset.build.catalogue import Leaf
from tasks.dataset.build.conversion import _told, _work
from tasks.dataset.build.pilot_task import PAGE, Trial
from tasks.dataset.build.rejects import Budget
from tasks.dataset.build.run import build
from tasks.dataset.build.spread import spread
from tests.dataset import raw

COUNT = 120


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setattr(pilot, "WORTH_SAMPLES", 100)
    monkeypatch.setattr(pilot, "PATIENCE_S", 0.0)
    raw.pictures(tmp_path / "raw", COUNT)
    return raw.config(tmp_path / "raw", tmp_path / "out")


def test_a_page_shows_the_pilot_and_the_build_is_as_without_it(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    result = build(config, lambda done, total, note: notes.append(note))
    assert any("pilot" in note for note in notes)
    page = (tmp_path / "out" / PAGE).read_text()
    assert "a pilot: 50 samples" in page and "data:image/" in page
    monkeypatch.setattr(pilot, "WORTH_SAMPLES", COUNT + 1)
    other = config.model_copy(
        update={"dataset": config.dataset.model_copy(update={"output": tmp_path / "plain"})}
    )
    assert raw.contents(build(other).version) == raw.contents(result.version)
    assert not (tmp_path / "plain" / PAGE).exists()


def test_what_spoils_every_sample_stops_the_build(config: Config, tmp_path: Path) -> None:
    for number in range(0, COUNT, 2):
        (tmp_path / "raw" / f"{number:04d}.png").write_text("<html>")
    with pytest.raises(DataError, match=r"the pilot stops the build.*\n.*image\.not_an_image"):
        build(config)
    assert not (tmp_path / "out" / "versions").exists()


def test_a_short_build_is_its_own_pilot(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pilot, "PATIENCE_S", 60.0)
    result = build(config)
    assert result.accepted == COUNT and result.seconds < 60
    assert not (tmp_path / "out" / PAGE).exists()
    for number in range(0, COUNT, 2):
        (tmp_path / "raw" / f"{number:04d}.png").write_text("<html>")
    with pytest.raises(DataError, match=r"reject_budget"):
        build(config)


def test_a_pilot_that_fails_after_the_last_shard_fails_the_build(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Iterator[None]:
        raise DataError("spoilt")
        yield

    monkeypatch.setattr(pilot, "map_here", fail)
    leaves, budget = [Leaf(0, "train", 1, COUNT + 1, "a")], Budget(COUNT, 0.05)
    with pytest.raises(DataError, match="spoilt"), pilot.beside(config, tmp_path, leaves, budget) as trial:
        wait([trial])


def test_a_failing_pilot_ends_the_work_that_an_engine_takes_bit_by_bit(tmp_path: Path) -> None:
    failed = Trial()
    work = _work(tmp_path, "rules", range(5), failed)
    assert [next(work).ordinal for _ in range(2)] == [0, 1]
    failed.set_exception(DataError("spoilt"))
    with pytest.raises(DataError, match="spoilt"):
        next(work)


def test_who_watches_learns_of_the_pilot(tmp_path: Path) -> None:
    trial = Trial()
    assert _told(trial) == ""
    trial.set_running_or_notify_cancel()
    assert "pilot" in _told(trial)
    trial.set_result(tmp_path / PAGE)
    assert str(tmp_path / PAGE) in _told(trial)


def test_an_engine_that_takes_all_work_first_waits_for_the_pilot(tmp_path: Path) -> None:
    running = Trial()
    running.set_running_or_notify_cancel()
    with ThreadPoolExecutor(1) as thread:
        taken = thread.submit(list, _work(tmp_path, "rules", range(5), running))
        assert not wait([taken], timeout=0.05).done
        running.set_result(None)
        assert len(taken.result()) == 5


def test_private_samples_stay_out_of_the_page(config: Config, tmp_path: Path) -> None:
    private = config.dataset.model_copy(update={"private": True})
    build(config.model_copy(update={"dataset": private}))
    page = (tmp_path / "out" / PAGE).read_text()
    assert "picture 7" not in page and "data:image/" not in page


def test_chance_does_not_stop_a_build() -> None:
    budget = Budget(10_000, 0.05)
    assert not budget.is_hopeless(0, 50, 10_000)
    assert not budget.is_hopeless(8, 50, 10_000)
    assert budget.is_hopeless(16, 50, 10_000)
    assert not budget.is_hopeless(16, 50, 2_000), (
        "where little is left to convert, more of it may be rejected"
    )
    assert Budget(10_000, 0.0).is_hopeless(1, 50, 10_000), "none is allowed, and one was found"


def test_few_samples_are_spread_over_the_leaves_that_are_given() -> None:
    leaves = [Leaf(0, "train", 1, 11, "a"), Leaf(5, "train", 101, 103, "b"), Leaf(9, "val", 200, 228, "c")]
    held = [rank for leaf in leaves for rank in range(leaf.start, leaf.stop)]
    assert spread(leaves, 40) == spread(leaves, 99) == held
    few = spread(leaves, 10)
    assert few == held[::4]
    assert spread([], 10) == []
