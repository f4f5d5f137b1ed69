from __future__ import annotations

import time

import pytest
import torch

from tasks.training.meter import Laps, Meter


def test_tells_waiting_from_computing() -> None:
    meter = Meter(batch_size=8)
    for loss in (1.0, 2.0):
        with meter.waiting():
            time.sleep(0.03)
        time.sleep(0.01)
        meter.add(torch.tensor(loss, requires_grad=True), {})
    values = meter.values()
    assert values["train/loss"] == 1.5
    assert 0.5 < values["train/data_wait"] < 0.95
    assert values["train/step_s"] >= 0.04
    assert values["train/samples_per_s"] == pytest.approx(8 / values["train/step_s"])


def test_restart_forgets_what_happened_between() -> None:
    meter = Meter(batch_size=8)
    meter.add(torch.tensor(9.0), {"tokens": torch.tensor(4)})
    time.sleep(0.2)
    meter.restart()
    meter.add(torch.tensor(1.0), {})
    values = meter.values()
    assert values["train/loss"] == 1.0 and values["train/step_s"] < 0.1


def test_laps_count_for_the_mark_that_ends_them() -> None:
    laps = Laps()
    for _ in range(2):
        time.sleep(0.02)  # counts for nothing
        laps.begin()
        time.sleep(0.01)
        laps.lap("forward")
        time.sleep(0.03)
        laps.lap("backward")
    found = laps.take()
    assert 0.02 <= found["forward"] < found["backward"] < 0.2 and found["backward"] >= 0.06
    assert laps.take() == {}


def test_rows_are_counted_and_a_step_is_a_share_of_what_the_device_can() -> None:
    meter = Meter(batch_size=4, share_per_s=0.01)
    for tokens in (60, 80):
        meter.count({"rows": 2, "places": 100, "tokens": tokens, "pictures": 3})
        time.sleep(0.02)
        meter.add(torch.tensor(1.0), {})
    values = meter.values()
    assert (values["train/fill"], values["train/pictures_per_row"]) == (0.7, 1.5)
    assert values["train/tokens_per_s"] == pytest.approx(140 / (2 * values["train/step_s"]))
    assert values["train/mfu"] == pytest.approx(0.01 / values["train/step_s"])


class Queue:
    """Stands in for a GPU's queue: work takes its time there whatever the host does meanwhile."""

    def __init__(self) -> None:
        self.busy_until = 0.0

    def work(self, seconds: float) -> None:
        self.busy_until = max(self.busy_until, time.perf_counter()) + seconds

    def event(self, enable_timing: bool) -> Passed:
        assert enable_timing
        return Passed(self)


class Passed:
    def __init__(self, queue: Queue) -> None:
        self.queue = queue

    def record(self) -> None:
        self.at = max(self.queue.busy_until, time.perf_counter())

    def synchronize(self) -> None:
        return

    def elapsed_time(self, other: Passed) -> float:
        return 1000 * (other.at - self.at)


@pytest.mark.parametrize(("work_s", "least", "most"), [(0.2, 0.0, 0.05), (0.0, 0.9, 1.0)])
def test_a_wait_during_which_the_gpu_works_does_not_count(
    monkeypatch: pytest.MonkeyPatch, work_s: float, least: float, most: float
) -> None:
    queue = Queue()
    monkeypatch.setattr(torch.cuda, "Event", queue.event)
    meter = Meter(batch_size=8, is_cuda=True)
    for _ in range(2):
        queue.work(work_s)
        with meter.waiting():
            time.sleep(0.1)
        meter.add(torch.tensor(1.0), {})
    assert least <= meter.values()["train/data_wait"] <= most
