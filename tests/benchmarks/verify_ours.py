"""`verify_ours.py VERSION LEVEL`: Tarmac's verify of a sound version; prints the seconds of CPU of this process,
and the seconds that it took.

Imports do not count, the workers' start does; those that `verify` puts off until it needs them come before.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tasks.dataset.verify import rows, shard  # noqa: F401 - which `verify` imports when it needs them
from tasks.dataset.verify.verifier import verify


def main(version: str, level: str) -> None:
    began, cpu = time.perf_counter(), time.process_time()
    report = verify(Path(version), level)  # type: ignore[arg-type]
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    if not report.ok:
        sys.exit(f"not what was to be measured: {report.findings[:3]}")
    print(cpu, took)


if __name__ == "__main__":
    main(*sys.argv[1:])
