"""The ledger's last word on each evaluation survives a torn line."""

from __future__ import annotations

from pathlib import Path

from tasks.runs import ledger
from tasks.runs.ledger import LedgerEntry


def test_the_last_line_of_an_evaluation_stands(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    first = LedgerEntry("u", 200, "zero_shot", "submitted", None, 1, at=1.0, since=1.0)
    ledger.append(path, first)
    ledger.append(path, first.having(step=400))
    with path.open("a") as file:
        file.write('{"uid": "u", "step": 200, "ta')
    ledger.append(path, first.having(state="done", at=2.0))
    found = ledger.fold(ledger.read_ledger(path))
    assert {key: entry.state for key, entry in found.items()} == {
        (200, "zero_shot"): "done",
        (400, "zero_shot"): "submitted",
    }
    assert found[200, "zero_shot"] == first.having(state="done", at=2.0)


def test_a_missing_ledger_is_empty(tmp_path: Path) -> None:
    assert ledger.read_ledger(tmp_path / "none.jsonl") == []
