"""What `tarmac watch` costs: its share of a core over the second minute of a healthy training, and its memory.

`python -m tests.benchmarks.bench_watch`; exits 1 above a hundredth of a core or 60 MB of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil

from tests.conftest import ROOT

WARM_S, SECONDS = 60.0, 60.0
MOST_CORES, MOST_MB = 0.01, 60.0


def main() -> int:
    training = [sys.executable, "-m", "tests.stalls.slow_program", "healthy_workers"]
    watch = subprocess.Popen(
        [sys.executable, "-m", "flows.cli", "watch", "--", *training],
        cwd=ROOT,
        env={**os.environ, "SLOW_SECONDS": str(WARM_S + SECONDS + 10)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    process = psutil.Process(watch.pid)
    time.sleep(WARM_S)
    before = sum(process.cpu_times()[:4])  # with the children that have ended, such as py-spy
    time.sleep(SECONDS)
    spent = sum(process.cpu_times()[:4]) - before
    own_mb = process.memory_full_info().uss / 1e6
    watch.wait()
    cores = spent / SECONDS
    print(f"watch: {cores:.2%} of a core, {own_mb:.0f} MB of its own")
    return int(cores > MOST_CORES or own_mb > MOST_MB)


if __name__ == "__main__":
    sys.exit(main())
