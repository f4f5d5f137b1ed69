"""The line that says how far a stage is."""

from __future__ import annotations

import pytest

from tasks.core.pace import Pace, how_far


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_rate_and_rest_follow_the_last_minute() -> None:
    clock = Clock()
    pace = Pace(clock)
    pace.update(500, 1500, "steps")
    assert str(pace) == "500/1,500 steps", "a resumed stage has no rate yet"
    for _ in range(120):
        clock.now += 1
        pace.update(pace._seen[-1][1] + 2, 1500, "steps")
    for _ in range(90):
        clock.now += 1
        pace.update(pace._seen[-1][1] + 4, 1500, "steps", "loss 1.48")
    assert str(pace) == "1,100/1,500 steps · loss 1.48 · 4.0/s · 100 s left"
    assert pace.percent == pytest.approx(73.33, abs=0.01)


def test_a_stage_that_stands_slows_down() -> None:
    clock = Clock()
    pace = Pace(clock)
    pace.update(0, 100, "steps")
    clock.now += 10
    pace.update(50, 100, "steps")
    assert "5.0/s" in str(pace)
    clock.now += 40
    pace.update(50, 100, "steps")
    assert "1.0/s" in str(pace)


def test_a_stage_that_stands_still_promises_no_end_and_goes_on_at_its_own_rate() -> None:
    clock = Clock()
    pace = Pace(clock)
    for step in range(100, 161):
        clock.now += 0.5
        pace.update(step, 3000, "steps")
    clock.now += 61
    pace.update(160, 3000, "steps")
    assert str(pace) == "160/3,000 steps"
    clock.now += 120
    for step in range(161, 171):
        clock.now += 0.5
        pace.update(step, 3000, "steps")
    assert str(pace) == "170/3,000 steps · 2.0/s · 24 min left"


def test_a_slow_stage_does_not_stand_still() -> None:
    clock = Clock()
    pace = Pace(clock)
    for volume in range(5):
        pace.update(volume, 100, "volumes")
        clock.now += 120
    assert str(pace) == "4/100 volumes · 0.0042/s · 6.4 h left"


def test_what_is_counted_anew_starts_anew() -> None:
    clock = Clock()
    pace = Pace(clock)
    pace.update(0, 0, "waiting: held by 4711")
    assert (str(pace), pace.percent) == ("waiting: held by 4711", 0.0)
    clock.now += 10
    pace.update(5000, 0, "samples listed")
    clock.now += 10
    pace.update(10, 200, "shards")
    assert str(pace) == "10/200 shards"
    clock.now += 10
    pace.update(200, 200, "shards")
    assert str(pace) == "200/200 shards · 19/s"


def test_how_far() -> None:
    assert how_far(5000, 20000, "samples") == "5,000/20,000 samples"
    assert how_far(5000, 0, "samples listed") == "5,000 samples listed"
    assert how_far(0, 0, "waiting") == "waiting"
