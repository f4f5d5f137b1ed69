"""Small trainings that become slow, and healthy ones that might seem so.

`python -m tests.stalls.slow_program KIND` runs the function of that name; each ends by itself.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from tests.stalls.program import MODEL
from tests.web import answering_server

SECONDS = float(os.environ.get("SLOW_SECONDS", "150"))


class Rows(Dataset[torch.Tensor]):
    """Random rows, each of which takes `work(row)`."""

    def __init__(self, rows: int, work: Callable[[int], object] = lambda row: None) -> None:
        self.rows, self.work = rows, work

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: int) -> torch.Tensor:
        self.work(row)
        return torch.randn(256)


def compute(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        MODEL(torch.randn(8, 256)).sum().backward()


def train(loader: Any, work: Callable[[int], object]) -> None:
    """Train epoch after epoch, with a line per step."""
    end = time.monotonic() + SECONDS
    step = 0
    while time.monotonic() < end:
        for _ in loader:
            work(step)
            print(f"step {step} loss 0.5", flush=True)
            step += 1
            if time.monotonic() > end:
                break


def healthy() -> None:
    train([torch.randn(256)] * 50, lambda step: compute(0.2))


def healthy_workers() -> None:
    train(DataLoader(Rows(2000), 8, num_workers=1), lambda step: compute(0.2))


def healthy_noise() -> None:
    """Steps of unlike length, as texts of unlike length make them."""
    train([0] * 50, lambda step: compute(0.05 + 0.4 * (step * 7919 % 100) / 100))


def validating(steps: int, batches: int) -> None:
    """Train and validate in turn; a step takes 0.2 s and a batch of the validation 0.25 s."""
    begin = time.monotonic()
    while time.monotonic() < begin + SECONDS:
        for step in range(steps):
            compute(0.2)
            print(f"step {step} loss 0.5", flush=True)
        for batch in range(batches):
            compute(0.25)
            print(f"valid: 10%|# | {batch + 1}/{batches} [00:00<00:00, 4.0it/s]", flush=True)


def healthy_validation() -> None:
    """A validation now and then, each a tenth of the time."""
    validating(60, 5)


def healthy_memory() -> None:
    """A cache that fills and is full."""
    kept: list[bytes] = []

    def work(step: int) -> None:
        compute(0.2)
        if step < 150:
            kept.append(os.urandom(1 << 20))

    train([0] * 50, work)


def loader_bound() -> None:
    train(DataLoader(Rows(2000, lambda row: compute(0.05)), 8, num_workers=1), lambda step: compute(0.05))


def loader_bound_sleep() -> None:
    """Each row comes from a slow server."""
    train(DataLoader(Rows(2000, lambda row: time.sleep(0.05)), 8, num_workers=2), lambda step: compute(0.05))


def loader_bound_without_workers() -> None:
    train(DataLoader(Rows(2000, lambda row: time.sleep(0.05)), 8), lambda step: compute(0.1))


def loader_bound_without_workers_by_decoding() -> None:
    train(DataLoader(Rows(2000, lambda row: compute(0.05)), 8), lambda step: compute(0.1))


def healthy_without_workers() -> None:
    train(DataLoader(Rows(2000, lambda row: compute(0.002)), 8), lambda step: compute(0.2))


def straggler() -> None:
    def work(row: int) -> None:
        info = get_worker_info()
        if info is not None and info.id == 1:
            compute(0.1)

    train(DataLoader(Rows(2000, work), 4, num_workers=3), lambda step: compute(0.03))


def pace_dropped() -> None:
    begin = time.monotonic()
    train([0] * 50, lambda step: compute(0.2 if time.monotonic() < begin + SECONDS / 2 else 0.5))


def pace_dropped_by_sleep() -> None:
    """A write to a slow disk in each step, from a moment on."""
    begin = time.monotonic()
    train(
        [0] * 50,
        lambda step: (compute(0.2), time.sleep(0.0 if time.monotonic() < begin + SECONDS / 2 else 0.3)),
    )


def epoch_gap() -> None:
    """Each epoch starts its workers anew, and each of these first reads its list."""
    loader = DataLoader(Rows(40), 1, num_workers=1, worker_init_fn=lambda number: time.sleep(9))
    train(loader, lambda step: compute(0.4))


def memory_growing() -> None:
    kept: list[bytes] = []

    def work(step: int) -> None:
        compute(0.1)
        kept.append(os.urandom(6 << 20))

    train([0] * 50, work)


def memory_copied() -> None:
    """Two workers go through a list of Python objects, whose pages they own from then on; an epoch takes
    minutes."""
    rows = [[str(number), float(number)] for number in range(8_000_000)]

    def work(row: int) -> None:
        for at in range(row * 1000, row * 1000 + 1000):
            _ = rows[at % len(rows)][0]

    train(DataLoader(Rows(200_000, work), 4, num_workers=2), lambda step: compute(0.1))


def validation_slow() -> None:
    validating(20, 20)


def tracker_slow() -> None:
    """MLflow's client waits for each metric's answer, for 0.3 s."""
    import mlflow

    name = "a" * 32
    info = {"run_id": name, "run_uuid": name, "experiment_id": "0", "status": "RUNNING", "start_time": 1}
    run = {"info": {**info, "artifact_uri": "file:artifacts"}, "data": {}}

    def answer(path: str, _: bytes) -> tuple[int, bytes]:
        time.sleep(0.3 if "log-metric" in path else 0)
        return 200, json.dumps({"run": run}).encode()

    with answering_server(answer) as address:
        mlflow.set_tracking_uri(address)
        with mlflow.start_run(run_name="run"):
            train([0] * 50, lambda step: (compute(0.15), mlflow.log_metric("loss", 0.5, step=step)))


if __name__ == "__main__":
    torch.set_num_threads(1)
    globals()[sys.argv[1]]()
