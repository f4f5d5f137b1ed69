"""How Prefect's page reports a stalled run: through the flow run that watches it, and one that examines it.
tests/supervision tests what the agent finds."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tasks import doctor, stage, train
from tasks.core.lock import Lease
from tasks.core.process import Identity
from tasks.runs import record
from tasks.runs.folder import RunFolder
from tasks.runs.record import Attempt
from tasks.supervision.status import RunStatus, look_at_run
from tests.supervision.fakes import make_run

SENTENCE = "checkpoint.stalled: nobody takes held.pt, patient_17"
REASON = f"stalled for 3 min at step 7: {SENTENCE}"
FINDING = {
    "code": "checkpoint.stalled",
    "severity": "error",
    "remedy": "empty the pipe",
    "where": {"file": "held.pt"},
    "evidence": {"what": "nobody takes held.pt, patient_17"},
    "attempt": 1,
}
RUN_LOG = "run-log"
Pages = list[dict[str, Any]]


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> Pages:
    """The artifacts that were left, each with its text as `page`."""
    left: Pages = []

    def tell(show: Any, page: str, **named: Any) -> None:
        left.append({"page": page, **named})

    for module in (train, doctor):
        monkeypatch.setattr(module, "best_effort", tell)
    monkeypatch.setattr(stage, "best_effort", lambda *_, **__: None)
    monkeypatch.setattr(stage, "get_run_logger", lambda: logging.getLogger(RUN_LOG))
    return left


@pytest.fixture
def stalled(tmp_path: Path) -> Iterator[Callable[..., RunFolder]]:
    """A run whose agent, this process, has called it stalled."""
    held = ExitStack()

    def make(**blocks: Any) -> RunFolder:
        run = make_run(tmp_path, **blocks)
        mine = Identity.mine()
        attempt = Attempt(
            started=1.0,
            host=mine.host,
            boot_id=mine.boot_id,
            pid=mine.pid,
            pid_started=mine.started,
            job=None,
            code_digest="",
            versions={},
        )
        begun = record.load_record(run).having(
            state="stalled", reason=REASON, attempts=[attempt], goal="train"
        )
        record.save_record(run, begun)
        run.findings.write_text(json.dumps(FINDING) + "\n")
        held.enter_context(Lease(run.lease))
        return run

    with held:
        yield make


def watched(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the stage see the run twice, then end."""
    started = SimpleNamespace(changes=(), adopted=False, is_up_to_date=False)
    monkeypatch.setattr(train.launch, "start_or_adopt", lambda *_: started)
    status = look_at_run(run)

    def wait_for_training(run: RunFolder, show: Callable[[RunStatus], None]) -> RunStatus:
        show(status)
        show(status)
        return status

    monkeypatch.setattr(train.launch, "wait_for_training", wait_for_training)
    train.train.fn(run)


def test_a_standstill_is_a_warning_with_evidence_and_on_the_runs_page_at_once(
    stalled: Callable[..., RunFolder],
    pages: Pages,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = stalled()
    watched(run, monkeypatch)
    [warning] = [
        one.getMessage() for one in caplog.records if one.name == RUN_LOG and one.levelname == "WARNING"
    ]
    assert f"{run.name}: {REASON}; tarmac doctor --run {run.handle}" in warning
    assert "checkpoint.stalled     held.pt" in warning and "fix    empty the pipe" in warning
    [page] = pages
    assert page["key"] == f"run-{run.id}" and page["description"] == REASON
    assert "The run is stalled" in page["page"] and "empty the pipe" in page["page"]


def test_a_standstill_over_private_data_is_reported_by_its_code(
    stalled: Callable[..., RunFolder],
    pages: Pages,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = stalled()
    run.config.write_text(run.config.read_text().replace("private: false", "private: true"))
    watched(run, monkeypatch)
    doctor.examine.fn(run)
    assert "stalled: checkpoint.stalled" in caplog.text
    assert "patient_17" not in caplog.text + str(pages)


def test_the_doctors_verdict_is_an_artifact_and_a_warning(
    stalled: Callable[..., RunFolder], pages: Pages, caplog: pytest.LogCaptureFixture
) -> None:
    run = stalled()
    done = doctor.examine.fn(run)
    assert done.details.found == ("checkpoint.stalled",)
    assert REASON in done.summary
    assert any("empty the pipe" in one.getMessage() for one in caplog.records if one.name == RUN_LOG)
    [page] = pages
    assert page["key"] == f"doctor-{run.id}" and "VERDICT" in page["page"] and "FIX" in page["page"]
