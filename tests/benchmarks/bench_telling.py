"""What a training pays for telling of itself: microseconds a step, and a transition of a loader worker.

The training process says what it is at, measures its waits, looks whether a checkpoint failed, and appends a
row of metrics every `log_every` steps; each of its workers keeps its state in a mapped file. Nothing is
trained here: what is timed is all that a step costs beside its arithmetic, in time of the CPU, which a busy machine
does not stretch.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
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
from tests.benchmarks.harness import Benchmark, Case, Column, Promise, Row, Setup, call, value

STEPS, TRANSITIONS = 3000, 50_000
STEP = "a step"
ENTRIES = ("stage entered", "sample begun", "sample read", "batch made")
MOST_US = {STEP: 20.0, **dict.fromkeys(ENTRIES, 2.0)}
"""What is promised."""


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


def told(name: str) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(Path(folder))
        if name == STEP:
            return {"us": microseconds(Telling(run), STEPS)}
        writer = WorkerStates(run.workers, 0, "train").keep(0)
        shard = worker_state.shard_field("train/000007.tar")
        changes: tuple[Callable[[], object], ...] = (
            lambda: writer.enter(WorkerStage.DECODE),
            lambda: writer.reading(shard, 12, 51_200),
            writer.transforming,
            lambda: writer.handing_over(64),
        )
        return {"us": microseconds(dict(zip(ENTRIES, changes, strict=True))[name], TRANSITIONS)}


def cases(setup: Setup) -> Iterator[Case]:
    yield Case("one process", {name: call(told, name) for name in MOST_US})


BENCHMARKS = (
    Benchmark(
        "telling",
        "What a training pays for telling of itself",
        "Microseconds of the CPU: of a step all but its arithmetic (what it is at, its waits, a look for a failed "
        "checkpoint, and its row of metrics), and of a loader's worker each entry into its mapped file.",
        cases,
        (Column("us", "µs", ".2f"),),
        promises=tuple(
            Promise(name, value(name, "us"), "at most", most, unit="µs") for name, most in MOST_US.items()
        ),
        packages=("torch",),
    ),
)
