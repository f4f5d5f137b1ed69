"""What the checks of a training on itself cost: their share of the time of all its steps, and what comes once.

At the start and at checkpoints until the model has learned, weights are kept and pairs are exchanged; that does not
grow with the steps and is shown apart, in milliseconds. Each recipe trains its example by two threads, with a clock
around every call of the checks, so no other noise of the machine is in the figure. The steps of the examples take tens
of milliseconds, those of real trainings longer by far, and the checks hardly longer: this is the worst case.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tasks.core.config import load_config
from tasks.dataset import examples
from tasks.dataset.building.builder import build
from tasks.runs.plan import plan
from tasks.training import loop
from tasks.training.sanity.sanity import Sanity
from tests.benchmarks.harness import Benchmark, Case, Column, Promise, Row, Setup, call, value
from tests.conftest import ROOT
from tests.training.helpers import set_workers, train_here

CASES = {
    "clip": ("digits", "digits-clip.yaml", 600),
    "ct_clip": ("phantoms", "phantoms-ct.yaml", 200),
    "vlm": ("digits-chat", "digits-chat.yaml", 600),
    "clip_reinforced": ("reinforced", "reinforced-clip.yaml", 300),
}
SPENT = {"steps": 0.0, "once": 0.0}


def timed(method: Callable[..., Any], when: str = "steps") -> Callable[..., Any]:
    def call(*given: Any) -> Any:
        began = time.perf_counter()
        try:
            return method(*given)
        finally:
            SPENT[when] += time.perf_counter() - began

    return call


class TimedSanity(Sanity):
    """The checks with a clock around them; the step within `step` does not count."""

    __init__ = timed(Sanity.__init__, "once")  # type: ignore[assignment]
    note = timed(Sanity.note)  # type: ignore[assignment]
    row = timed(Sanity.row)  # type: ignore[assignment]
    checkpoint = timed(Sanity.checkpoint, "once")  # type: ignore[assignment]
    validated = timed(Sanity.validated, "once")  # type: ignore[assignment]

    @contextmanager
    def step(self, number: int, batch: Sequence[Mapping[str, Any]]) -> Iterator[None]:
        inner = super().step(number, batch)
        timed(inner.__enter__)()
        yield
        timed(inner.__exit__)(None, None, None)


def trained(name: str, steps: int) -> Row:
    """What a step took, the share of the checks in all steps, and what came once."""
    loop.Sanity = TimedSanity  # type: ignore[misc]
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        os.chdir(folder)
        example, config, _ = CASES[name]
        examples.write_example(example, Path("data/raw") / example)
        keys = (
            f"train.steps={steps}",
            "evaluate=null",
            "track.mode=disabled",
            "train.checkpoint_every=200",
            "train.threads=2",
        )
        settings = load_config(ROOT / "configs" / config, keys)
        run = plan(settings, build(settings).version)
        set_workers(run, 0)
        began = time.perf_counter()
        train_here(run)
        elapsed = time.perf_counter() - began
    spent = {"percent": 100 * SPENT["steps"] / elapsed, "once_ms": 1000 * SPENT["once"]}
    return {"step_ms": 1000 * elapsed / steps, **spent}


def cases(setup: Setup) -> Iterator[Case]:
    for name in setup.sized([*CASES], ["clip"]):
        yield Case(name, {"the checks": call(trained, name, setup.sized(CASES[name][2], 50))})


BENCHMARKS = (
    Benchmark(
        "sanity",
        "What a training's checks on itself cost",
        "The share of the time of all steps that the checks take, with a clock around every call of them, in the "
        "trainings of the examples on two threads of the CPU, whose steps are as short as any; and what comes once, at "
        "the start and at checkpoints until the model has learned.",
        cases,
        (
            Column("percent", "% of the steps", ".2f"),
            Column("step_ms", "ms a step", ".1f"),
            Column("once_ms", "ms once"),
        ),
        promises=(Promise("share of the steps", value("the checks", "percent"), "at most", 0.5, unit="%"),),
        packages=("torch",),
        is_warm=False,
    ),
)
