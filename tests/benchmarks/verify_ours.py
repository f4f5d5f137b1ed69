"""`verify_ours.py VERSION LEVEL`: Tarmac's verify of a sound version; prints the seconds it took.

Imports do not count, the workers' start does; a look at `quick` before brings those that `verify` puts off.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tasks.dataset.verify.run import verify


def main(version: str, level: str) -> None:
    if level != "quick":
        verify(Path(version), "quick")
    began = time.perf_counter()
    report = verify(Path(version), level)  # type: ignore[arg-type]
    took = time.perf_counter() - began
    if not report.ok:
        sys.exit(f"not what was to be measured: {report.findings[:3]}")
    print(took)


if __name__ == "__main__":
    main(*sys.argv[1:])
