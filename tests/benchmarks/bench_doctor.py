"""How long `tarmac doctor --pid` takes at two busy cores, for trainings that have stalled for half a minute.

`python -m tests.benchmarks.bench_doctor`; one living training of each mechanism, one after the other. Exits 1 above
8 s in the median.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from tests.stalls.contract import started
from tests.stalls.test_matrix import DAILY, ROWS, ask

MOST_S = 8.0
STALLED_S = 25.0
BUSY = "while True: pass"


def main() -> int:
    spent = []
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(2)]
    try:
        for stall in ROWS:
            if stall.name not in DAILY or stall.missing() is not None:
                continue
            with (
                tempfile.TemporaryDirectory(prefix="stall-") as folder,
                started(stall, Path(folder)) as training,
            ):
                if training.process.poll() is not None:
                    continue
                time.sleep(STALLED_S)
                answer = ask(training, Path(folder))
            spent.append(answer.seconds)
            print(f"{stall.name:<44} {answer.first or 'nothing':<20} {answer.seconds:.1f} s", flush=True)
    finally:
        for one in busy:
            one.kill()
            one.wait()
    print(f"{median(spent):.1f} s in the median, {max(spent):.1f} s at most")
    return int(median(spent) > MOST_S)


if __name__ == "__main__":
    sys.exit(main())
