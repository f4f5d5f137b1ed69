"""The whole stall matrix as a table: every row with its seconds, and the score.

Run as `python -m tests.soak.stalls`. Exits 1 unless every row is right.
"""

from __future__ import annotations

import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.stalls.contract import Stall
from tests.stalls.test_matrix import AT_ONCE, ROWS, examine


def row(stall: Stall) -> int | None:
    """The score of one row, which is printed; None where this machine cannot produce it."""
    if (reason := stall.missing()) is not None:
        print(f"   {stall.name:<44} not produced: {reason}", flush=True)
        return None
    with tempfile.TemporaryDirectory(prefix="stall-") as folder:
        found = examine(stall, Path(folder))
    said, score = found.traced, found.traced.score(stall)
    untraced = "" if found.untraced is None else f"  untraced: {found.untraced.first or 'nothing'}"
    print(
        f"{score:2d} {stall.name:<44} {said.first or 'nothing':<20} {said.seconds:3.0f} s{untraced}",
        flush=True,
    )
    return score


def main() -> int:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        scores = [score for score in pool.map(row, ROWS) if score is not None]
    print(f"{sum(scores)} of {len(scores)}")
    return 0 if sum(scores) == len(scores) else 1


if __name__ == "__main__":
    sys.exit(main())
