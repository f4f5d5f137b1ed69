"""What a pipeline says of evaluations that have no result."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tasks import stage
from tasks.core.errors import DataError
from tasks.evaluate import Evaluated, evaluate, require
from tasks.runs import record
from tasks.supervision import launch
from tasks.supervision.status import look_at_run
from tests.supervision import fakes


@pytest.mark.parametrize(("lost", "says"), [(1, "1 evaluation has no result"), (2, "2 evaluations have no")])
def test_what_is_missing_is_counted_and_named(lost: int, says: str) -> None:
    missing = [f"step {step} zero_shot: its job left no trace" for step in range(lost)]
    with pytest.raises(DataError, match=rf"^{says}(.|\n)*step 0 zero_shot: its job left no trace"):
        require(Evaluated(Path("runs/a"), missing))


def test_a_stage_that_lacks_results_has_no_tick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stage, "get_run_logger", logging.getLogger)
    monkeypatch.setattr(launch, "start_or_adopt", lambda *_: launch.Started(False, False, None))
    monkeypatch.setattr(launch, "wait_for_evaluations", lambda run, _: look_at_run(run))
    run = fakes.make_run(tmp_path)
    record.save_record(run, record.load_record(run).having(state="succeeded"))
    assert len(evaluate.fn(run).details.missing) == 1
    assert "✗ evaluate  1 checkpoint, 0 of 1 results" in capsys.readouterr().err
