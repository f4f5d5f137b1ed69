"""What the checks of a training on itself cost: their share of the time of all its steps, and what comes once.

At the start and at checkpoints until the model has learned, weights are kept and pairs are exchanged; that does not
grow with the steps and is shown apart, in milliseconds. Each recipe trains its example in this process by two threads, with a clock around every call of the checks,
so no other noise of the machine is in the figure. The steps of the examples take tens of milliseconds, those
of real trainings longer by far, and the checks hardly longer: this is the worst case.

    .venv/bin/python -m tests.benchmarks.bench_sanity
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
from tests.conftest import ROOT
from tests.training.helpers import set_workers, train_here

BOUND = 0.005
CASES = {
    "clip": ("digits", "digits-clip.yaml", ("train.steps=600",)),
    "ct_clip": ("phantoms", "phantoms-ct.yaml", ("train.steps=200",)),
    "vlm": ("digits-chat", "digits-chat.yaml", ("train.steps=600",)),
    "clip_reinforced": ("reinforced", "reinforced-clip.yaml", ("train.steps=300",)),
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


def share(name: str, folder: Path) -> tuple[float, float, float]:
    """Milliseconds that a step took, the share of the checks in all steps, and the milliseconds that came once."""
    os.chdir(folder)
    example, config, keys = CASES[name]
    examples.write_example(example, Path("data/raw") / example)
    overrides = (
        *keys,
        "evaluate=null",
        "track.mode=disabled",
        "train.checkpoint_every=200",
        "train.threads=2",
    )
    settings = load_config(ROOT / "configs" / config, overrides)
    run = plan(settings, build(settings).version)
    set_workers(run, 0)
    SPENT.update(steps=0.0, once=0.0)
    began = time.perf_counter()
    steps = train_here(run)
    elapsed = time.perf_counter() - began
    return 1000 * elapsed / steps, SPENT["steps"] / elapsed, 1000 * SPENT["once"]


def main() -> None:
    loop.Sanity = TimedSanity  # type: ignore[misc]
    worst = 0.0
    for name in CASES:
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            step_ms, spent, once_ms = share(name, Path(folder))
        worst = max(worst, spent)
        print(f"{name}: {spent:.2%} of {step_ms:.1f} ms a step; once {once_ms:.0f} ms", flush=True)
    print(f"at most {BOUND:.1%}: {'kept' if worst <= BOUND else 'NOT KEPT'}")


if __name__ == "__main__":
    main()
