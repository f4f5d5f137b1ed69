"""What `tarmac watch` costs: its share of a core over the second minute of a healthy training, and its memory."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil

from tests.benchmarks.harness import Benchmark, Case, Column, Promise, Row, Setup, call, value
from tests.conftest import ROOT


def watched(warm_s: float, seconds: float) -> Row:
    training = [sys.executable, "-m", "tests.stalls.slow_program", "healthy_workers"]
    watch = subprocess.Popen(
        [sys.executable, "-m", "flows.cli", "watch", "--", *training],
        cwd=ROOT,
        env={**os.environ, "SLOW_SECONDS": str(warm_s + seconds + 10)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    process = psutil.Process(watch.pid)
    time.sleep(warm_s)
    before = sum(process.cpu_times()[:4])  # with the children that have ended, such as py-spy
    time.sleep(seconds)
    spent = sum(process.cpu_times()[:4]) - before
    own_mb = process.memory_full_info().uss / 1e6
    watch.wait()
    return {"percent": 100 * spent / seconds, "mb": own_mb}


def cases(setup: Setup) -> Iterator[Case]:
    yield Case(
        "a healthy training", {"tarmac watch": call(watched, *setup.sized((60.0, 60.0), (10.0, 10.0)))}
    )


BENCHMARKS = (
    Benchmark(
        "watch",
        "Watching a training",
        "The share of a core that `tarmac watch` takes over the second minute of a healthy training with workers, "
        "children that have ended included, and its own memory at the end of it.",
        cases,
        (Column("percent", "% of a core", ".2f"), Column("mb", "MB")),
        promises=(
            Promise("share of a core", value("tarmac watch", "percent"), "at most", 1.0, unit="%"),
            Promise("memory", value("tarmac watch", "mb"), "at most", 60.0, unit="MB"),
        ),
        packages=("psutil", "py-spy"),
        is_warm=False,
    ),
)
