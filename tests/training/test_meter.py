from __future__ import annotations

import time

import pytest
import torch

from tasks.training.meter import Meter


def test_tells_waiting_from_computing() -> None:
    meter = Meter(batch_size=8)
    for loss in (1.0, 2.0):
        with meter.waiting():
            time.sleep(0.03)
        time.sleep(0.01)
        meter.add(torch.tensor(loss, requires_grad=True))
    values = meter.values()
    assert values["train/loss"] == 1.5
    assert 0.5 < values["train/data_wait"] < 0.95
    assert values["train/step_s"] >= 0.04
    assert values["train/samples_per_s"] == pytest.approx(8 / values["train/step_s"])


def test_restart_forgets_what_happened_between() -> None:
    meter = Meter(batch_size=8)
    meter.add(torch.tensor(9.0))
    time.sleep(0.2)
    meter.restart()
    meter.add(torch.tensor(1.0))
    values = meter.values()
    assert values["train/loss"] == 1.0 and values["train/step_s"] < 0.1
