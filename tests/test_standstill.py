"""How Prefect's page reports a stalled run: through the flow run that watches it, and one that examines it.
tests/supervision tests what the agent finds."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tasks import doctor, events, stage, train
from tasks.core.errors import DataError
from tasks.core.lock import Lease
from tasks.core.process import Identity
from tasks.runs import record
from tasks.runs.folder import RunFolder
from tasks.runs.record import Attempt
from tasks.supervision.status import RunStatus, look_at_run
from tests.supervision.fakes import make_run
from tests.test_stage import taken

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


class Pages(list[dict[str, Any]]):
    """The artifacts that were left, and the events that were emitted."""

    def __init__(self) -> None:
        self.emitted: list[tuple[str, dict[str, Any]]] = []


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> Pages:
    """The artifacts that were left, each with its text as `page`."""
    left = Pages()

    def tell(show: Any, page: str, **named: Any) -> None:
        left.append({"page": page, **named})

    for module in (train, doctor):
        monkeypatch.setattr(module, "best_effort", tell)
    monkeypatch.setattr(
        events, "get_current_settings", lambda: SimpleNamespace(api=SimpleNamespace(url="http"))
    )
    monkeypatch.setattr(events, "emit_event", lambda name, **event: left.emitted.append((name, event)))
    monkeypatch.setattr(stage, "_in_background", taken)
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
    goes_on = replace(status, record=status.record.having(state="running", reason=""), stalled_s=0.0)

    def wait_for_training(run: RunFolder, show: Callable[[RunStatus], None]) -> RunStatus:
        show(status)
        show(status)
        show(goes_on)
        return goes_on

    monkeypatch.setattr(train.launch, "wait_for_training", wait_for_training)
    train.train.fn(run)


def test_a_standstill_is_a_warning_with_evidence_and_on_the_runs_page_at_once(
    stalled: Callable[..., RunFolder],
    pages: Pages,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = stalled()
    of_weights = {**FINDING, "code": "captions.repeated", "by": "training"}
    run.findings.write_text(json.dumps(of_weights) + "\n" + json.dumps(FINDING) + "\n")
    watched(run, monkeypatch)
    warned = [one.getMessage() for one in caplog.records if (one.name, one.levelname) == (RUN_LOG, "WARNING")]
    [warning] = [text for text in warned if "look at this training" not in text]
    assert f"{run.name}: {REASON}; tarmac doctor --run {run.handle}" in warning
    assert "checkpoint.stalled     held.pt" in warning and "fix    empty the pipe" in warning
    [page] = pages
    assert page["key"] == f"run-{run.id}" and page["description"] == REASON
    assert "The run is stalled" in page["page"] and "empty the pipe" in page["page"]
    (stalled_event, about), (goes_on, further), (trained, _) = pages.emitted
    assert (stalled_event, goes_on, trained) == (
        "tarmac.run.stalled",
        "tarmac.run.goes-on",
        "tarmac.run.trained",
    )
    assert about["resource"]["prefect.resource.id"] == f"tarmac.run.{run.id}"
    assert about["resource"]["tarmac.config"] == "fake" and about["payload"]["run"] == run.name
    assert about["payload"]["cause"] == REASON and about["payload"]["code"] == "checkpoint.stalled"
    assert further["payload"]["cause"].endswith("after checkpoint.stalled")


def test_two_flow_runs_that_watch_one_run_report_one_event(
    stalled: Callable[..., RunFolder], pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message would come twice otherwise; the server takes an event of a known id for the same."""
    run = stalled()
    watched(run, monkeypatch)
    watched(run, monkeypatch)
    assert len(pages.emitted) == 6 and len({about["id"] for _, about in pages.emitted}) == 3


def test_a_training_that_fails_is_an_event_with_its_cause(
    stalled: Callable[..., RunFolder], pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = stalled()
    watched(run, monkeypatch)
    pages.emitted.clear()

    def fails(*_: object) -> RunStatus:
        raise DataError("fake: failed: loss.nonfinite\n  the log's last line")

    monkeypatch.setattr(train.launch, "wait_for_training", fails)
    with pytest.raises(DataError):
        train.train.fn(run)
    [(name, about)] = pages.emitted
    assert (name, about["payload"]["cause"]) == ("tarmac.run.failed", "fake: failed: loss.nonfinite")


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
    assert "patient_17" not in caplog.text + str(pages) + str(pages.emitted)


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
