"""The state in which a flow run ends, by the results of its stages; tests/system shows it on a server."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from prefect.utilities.callables import ParameterSchema

from flows import lifecycle
from tasks import control
from tasks.core.child import WITHHELD
from tasks.core.errors import DataError, NeedsApproval, UsageError
from tasks.stage import Effect, StageJournal, StageResult


@pytest.fixture(autouse=True)
def published(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The failures for which a page was published."""
    failures: list[str | None] = []
    monkeypatch.setattr(lifecycle, "get_run_logger", lambda: logging.getLogger("test"))
    monkeypatch.setattr(lifecycle, "_publish", lambda journal, headline, failure: failures.append(failure))
    return failures


@pytest.mark.parametrize(
    ("effects", "name"),
    [
        (("changed", "unchanged", "changed"), "Completed"),
        (("unchanged", "unchanged"), "Unchanged"),
        (("unchanged", "adopted", "changed"), "Adopted"),
    ],
)
def test_the_name_shows_whether_anything_was_done_and_by_whom(effects: tuple[Effect, ...], name: str) -> None:
    stages = [StageResult("build", "12 shards written", 1.0, None, effect) for effect in effects]
    state = lifecycle._completed(stages, StageJournal(stages))
    assert (state.is_completed(), state.name, state.message) == (True, name, "build: 12 shards written")


@pytest.fixture
def form(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Pretend that the flow run was started from a form with these fields, of which the first is required."""

    def started_from(*fields: str) -> None:
        shown = ParameterSchema(properties={field: {} for field in fields}, required=list(fields[:1]))
        context = SimpleNamespace(flow=SimpleNamespace(parameters=shown))
        monkeypatch.setattr(control, "deployed", lambda: object())
        monkeypatch.setattr(lifecycle.FlowRunContext, "get", lambda: context)

    return started_from


def test_the_first_line_of_a_failure_names_stage_reason_and_the_field_of_the_form(
    form: Callable[..., None], published: list[str | None]
) -> None:
    form("config", "accept_loss")
    loss = NeedsApproval("12 of 20 samples are gone; accept the loss\n  more")
    state = lifecycle._failed(str(loss), loss, StageJournal(under_way="build"))
    first = "build failed: 12 of 20 samples are gone; accept the loss; in the form: accept_loss"
    assert state.message == f"{first}\n  more"
    assert published == [state.message]
    state = lifecycle._failed("no data", DataError("no data"), StageJournal())
    assert state.message == "start failed: no data"


def test_a_field_that_the_form_does_not_have_is_not_named(form: Callable[..., None]) -> None:
    form("dataset")
    loss = NeedsApproval("12 of 20 samples are gone")
    state = lifecycle._failed(str(loss), loss, StageJournal())
    assert state.message == "start failed: 12 of 20 samples are gone: tarmac build CONFIG --accept-loss"
    wrong = UsageError("x: no dataset there", field="overrides")
    assert lifecycle._failed(str(wrong), wrong, StageJournal()).message.endswith("; in the form: dataset")


def test_a_failure_in_a_terminal_names_no_form() -> None:
    loss = NeedsApproval("12 of 20 samples are gone")
    state = lifecycle._failed(str(loss), loss, StageJournal())
    assert state.message == "start failed: 12 of 20 samples are gone: tarmac build CONFIG --accept-loss"


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("configs/digits-clip.yaml", "digits-clip · build"),
        ("data/digits", "digits · build"),
        ("data/digits/versions/303b88922a05", "digits · 303b88922a05 · build"),
        ("3f9a", "3f9a · build"),
        ("s3://key:secret@bucket/digits", "digits · build"),
    ],
)
def test_a_flow_run_that_fails_at_once_is_called_by_what_it_was_given(
    monkeypatch: pytest.MonkeyPatch, given: str, name: str
) -> None:
    flow = SimpleNamespace(name="build", parameters=ParameterSchema(required=["subject"]))
    flow_run = SimpleNamespace(name="brave-otter")
    context = SimpleNamespace(flow=flow, flow_run=flow_run, parameters={"subject": given})
    monkeypatch.setattr(lifecycle.FlowRunContext, "get", lambda: context)
    assert lifecycle._first_name() == name
    for generated in ("tau3-pestac-expanse", "omega-canis-majoris", "pi12-tikal"):
        flow_run.name = generated
        assert lifecycle._first_name() == name, "Prefect's form has filled it in"
    for typed in ("before the move", "run-2-long"):
        flow_run.name = typed
        assert lifecycle._first_name() == typed, "a person has typed it"


def test_a_defect_over_private_data_is_not_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    class Private:
        class dataset:
            private = True

    def dag() -> None:
        lifecycle._subject.config = Private()  # type: ignore[assignment]
        raise LookupError("patient_17")

    state = lifecycle._with_endings(dag)()
    assert state.is_failed()
    assert state.message == f"start failed: LookupError; {WITHHELD}"
