"""What a training pays for telling of itself: microseconds a step, and a transition of a loader worker.

The training process says what it is at, measures its waits, looks whether a checkpoint failed, and appends a
row of metrics every `log_every` steps; each of its workers keeps its state in a mapped file. Nothing is
trained here: what is timed is all that a step costs beside its arithmetic. Medians of ROUNDS, in time of the
CPU, which a busy machine does not stretch.

    .venv/bin/python -m tests.benchmarks.bench_telling
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from tasks.core.schema import Train
from tasks.loader import worker_state
from tasks.loader.worker_state import WorkerStage, WorkerStates
from tasks.runs.folder import RunFolder
from tasks.runs.metrics import TRAIN_AXIS, MetricsWriter, make_row
from tasks.runs.phases import PhaseWriter
from tasks.training.checkpoints import CheckpointSaver
from tasks.training.meter import Meter

ROUNDS, STEPS, TRANSITIONS = 7, 3000, 50_000
STEP_BOUND_US, TRANSITION_BOUND_US = 20.0, 2.0


class Telling:
    """What the loop does in each step besides training."""

    def __init__(self, run: RunFolder) -> None:
        self.metrics, self.phases = MetricsWriter(run.metrics), PhaseWriter(run)
        self.meter, self.aside = Meter(64), CheckpointSaver(run)
        self.every = Train.model_fields["log_every"].default
        self.step = 0
        self.loss = torch.tensor(1.0)

    def __call__(self) -> None:
        self.step += 1
        self.aside.check()
        with self.meter.waiting():
            pass
        self.meter.add(self.loss, {})
        self.phases.set("step", self.step, (1, 2))
        if self.step % self.every == 0:
            self.metrics.append(make_row(TRAIN_AXIS, self.step, "train", self.meter.values()))
            self.meter.restart()


def microseconds(work: Callable[[], object], times: int) -> float:
    began = time.thread_time()
    for _ in range(times):
        work()
    return 1e6 * (time.thread_time() - began) / times


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(Path(folder))
        writer = WorkerStates(run.workers, 0, "train").keep(0)
        shard = worker_state.shard_field("train/000007.tar")
        work: dict[str, tuple[Callable[[], object], int, float]] = {
            "a step": (Telling(run), STEPS, STEP_BOUND_US),
            "stage entered": (lambda: writer.enter(WorkerStage.DECODE), TRANSITIONS, TRANSITION_BOUND_US),
            "sample begun": (lambda: writer.reading(shard, 12, 51_200), TRANSITIONS, TRANSITION_BOUND_US),
            "sample read": (writer.transforming, TRANSITIONS, TRANSITION_BOUND_US),
            "batch made": (lambda: writer.handing_over(64), TRANSITIONS, TRANSITION_BOUND_US),
        }
        print(f"load average {os.getloadavg()[0]:.1f}")
        for name, (what, times, bound) in work.items():
            costs = [microseconds(what, times) for _ in range(ROUNDS)]
            middle = statistics.median(costs)
            verdict = "holds" if middle <= bound else "does NOT hold"
            print(
                f"{name:14} {middle:6.2f} us ({min(costs):.2f} to {max(costs):.2f}), bound {bound:g}: {verdict}"
            )


if __name__ == "__main__":
    main()
