"""Records what doctor saw of the matrix's rows: `python -m tests.stalls.record [WORDS OF A NAME]`.

The observations lie in tests/diagnosis/observations, where every rule is tested on them in milliseconds. One
that only stacks explain says so.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tasks.diagnosis.observation.record import Observation
from tasks.diagnosis.verdicts import judge
from tests.diagnosis.test_verdicts import without_stacks
from tests.stalls.contract import Stall
from tests.stalls.test_matrix import AT_ONCE, ROWS, examine

RECORDS = Path(__file__).parents[1] / "diagnosis/observations"


def record(stall: Stall) -> None:
    with tempfile.TemporaryDirectory(prefix="stall-") as folder:
        answers = examine(stall, Path(folder))
    answer = answers.traced
    seen = answer.report["observation"]
    print(
        f"{answer.score(stall):2d} {stall.name}: {answer.report['verdict']}, {answer.seconds:.0f} s",
        flush=True,
    )
    if seen is None or answer.score(stall) != 1:
        return
    report = judge(without_stacks(Observation.from_json(seen))).report
    first = report.findings[0].code if report.findings else ""
    facts = {
        "name": stall.name,
        "codes": sorted(stall.codes),
        "needs_stacks": not stall.is_healthy and first not in stall.codes,
    }
    # Locks that others on the machine hold say nothing about the training, and name their folders.
    locks = [one for one in seen["locks"] if one["waiters"] or one["path"].startswith(folder)]
    text = json.dumps({**facts, **seen, "locks": locks}).replace(sys.prefix, "/env").replace(folder, "/here")
    text = re.sub(r"/tmp/stall-\w+", "/there", text.replace(str(RECORDS.parents[2]), "/project"))
    name = re.sub(r"\W+", "-", stall.name).strip("-").lower()
    (RECORDS / f"{name}.json").write_text(text + "\n")


def main(words: str) -> None:
    rows = [stall for stall in ROWS if words in stall.name and stall.missing() is None]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(record, rows))


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]))
