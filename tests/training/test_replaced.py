"""What was replaced is told once, also when a training goes on with another number of ranks."""

from __future__ import annotations

import json
from pathlib import Path

from tasks.loader.bad import Budget
from tasks.training.loop import ReplacedLedger


def written(path: Path, *lines: tuple[int, int]) -> Path:
    path.write_text("".join(json.dumps({"step": step, "position": place}) + "\n" for step, place in lines))
    return path


def test_lines_of_two_ranks_belong_to_the_one_that_goes_on(tmp_path: Path) -> None:
    """Batches of four: the first rank read 0 and 1 of each, the second 2 and 3."""
    files = [written(tmp_path / "0", (1, 1), (3, 8)), written(tmp_path / "1", (1, 2), (2, 7), (3, 10))]
    budget = Budget("train", 100, 3, "see there")
    assert ReplacedLedger(files[0], 2, budget, files, lambda position: True).count == 3
    assert budget.spent == 3
    on_two = [
        ReplacedLedger(
            path, 2, Budget("train", 100, 3, ""), files, lambda place, rank=rank: place % 4 // 2 == rank
        )
        for rank, path in enumerate(files)
    ]
    assert [ledger.count for ledger in on_two] == [1, 2]
