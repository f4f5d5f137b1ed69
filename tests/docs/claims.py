"""The tables and figures of docs/claims.md, made of tests/benchmarks/results/claims.json.

python -m tests.docs.claims        writes them again after `python -m tests.benchmarks claims`
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tests.benchmarks import page, results
from tests.benchmarks.suite import load
from tests.docs import figures
from tests.docs.figures import Kept, Sentence
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "claims.md"
TABLE = re.compile(r"(?<=<!-- claims: )(?P<case>[^>\n]+) -->\n.*?(?=<!-- end -->)", re.S)
NEAR, FAR, NONE = "Shuffle buffer, local files", "Shuffle buffer, 4 MB/s", "No sample has a caption"
CORES, WAITING, LOCK = (
    "Workers, decoding on two cores",
    "Workers, waiting 10 ms per sample",
    "A lock that was held at the fork",
)
SHM, FILES, CALLS = "Size of /dev/shm", "A list keeps up to 1,000 batches", "wandb's calls"
QUEUE, BURSTS, EVEN = "prefetch_factor, steps of 30 ms", "24.5 ms on average in bursts", "40 ms each"
OPEN_CLIP = "5,000, starts at 1,000 (open_clip)"
SENTENCES: list[tuple[str, list[tuple[str, str, str]]]] = [
    (
        "a buffer of 100 gives the first batch after {} s and one of 10,000 after {} s; even if all 10,000 are read "
        "first, it takes {} s",
        [
            (NEAR, "100", "first_s"),
            (NEAR, "10,000, starts at 1,000", "first_s"),
            (NEAR, "10,000, starts when full", "first_s"),
        ],
    ),
    ("the first 1,000 samples take {} s", [(FAR, OPEN_CLIP, "first_s")]),
    (
        "half of what its source can give, {} samples/s in place of {} samples/s",
        [(FAR, "5,000, starts at 100", "rate"), (FAR, "100", "rate")],
    ),
    (
        "all of the data {} times with a buffer of 5,000, {} times with one of 100",
        [(NONE, "buffer of 5,000", "passes"), (NONE, "buffer of 100", "passes")],
    ),
    (
        "gives {} samples/s, no workers give {} samples/s",
        [(LOCK, "2 workers by forkserver", "rate"), (LOCK, "no workers", "rate")],
    ),
    ("drops every sample as well, {} times over", [(NONE, "buffer of 5,000, no workers", "passes")]),
    (
        "give {} samples/s in place of {} and hold {} MB in place of {} MB",
        [(CORES, f"{workers} workers", key) for key in ("rate", "held_mb") for workers in (4, 2)],
    ),
    (
        "eight workers now give {} samples/s and one gives {} samples/s",
        [(WAITING, "8 workers", "rate"), (WAITING, "1 worker", "rate")],
    ),
    (
        "A call with `commit=True` takes {} µs, one with `commit=False` {} µs, and a server that hangs makes no "
        "difference: {} µs",
        [
            (CALLS, "log, commit=True", "call_us"),
            (CALLS, "log, commit=False", "call_us"),
            (CALLS, "log, commit=True, server hangs", "call_us"),
        ],
    ),
    ("encoded within the call, in {} µs", [(CALLS, "log of a picture", "call_us")]),
    ("`unable to allocate shared memory(shm)` after {} s", [(SHM, "64 MB, batch of 128", "error_s")]),
    ("256 files end after {} batches", [(FILES, "file_descriptor, 256 files", "batches")]),
    (
        "the share of waiting falls from {} % to {} %",
        [(QUEUE, f"{BURSTS}, prefetch 2", "waiting"), (QUEUE, f"{BURSTS}, prefetch 16", "waiting")],
    ),
    (
        "as empty as a short one, {} % with 16 and {} % with 2",
        [(QUEUE, f"{EVEN}, prefetch 16", "waiting"), (QUEUE, f"{EVEN}, prefetch 2", "waiting")],
    ),
]
"""The sentences with figures: `{}` is a number, and which one by case, row and key."""


def kept_cases() -> dict[str, Any]:
    return results.read(results.KEPT, "claims")


def stated() -> list[Sentence]:
    return [(sentence, [Kept("claims", *where) for where in found]) for sentence, found in SENTENCES]


def table(case: str) -> str:
    return page.table(load("claims"), kept_cases()[case])


def written(text: str) -> str:
    """The page with the tables and figures that are kept now; a sentence that is missing raises ValueError."""
    text = TABLE.sub(lambda found: f"{found['case']} -->\n\n{table(found['case'])}\n\n", text)
    return figures.written(text, stated(), PAGE.name)


def bare_figures(text: str) -> Iterator[str]:
    """Figures of the prose that no sentence accounts for."""
    text = re.sub(r"<!-- claims: .*?<!-- end -->", "", text, flags=re.S)
    yield from figures.unaccounted(text, stated(), rf"{figures.NUMBER}\s+(?:samples/s|µs|times)")


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
