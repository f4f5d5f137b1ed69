"""What all our flows have in common: a name, a final state and page, and that they obey Cancel and Suspend.

Each DAG is a plain function under `tarmac_flow`. A training is no child of its flow run: its agent outlives
the process, so that a killed flow or a restarted worker costs nothing. Hence whoever ends a flow run on
purpose has to end the training too. The flow does it itself (`control`), and so does the hook, which the
worker calls after it has killed the flow's process; both find the training by the label that `works_on` sets.

A flow run ends in a state whose name shows the outcome, with a first line that is clear without the log, and
leaves one page of Markdown, `run-<id>`, also when it fails.
"""

from __future__ import annotations

import functools
import inspect
import logging
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ParamSpec, TypeVar
from uuid import uuid4

from prefect import Flow, flow, get_run_logger
from prefect.artifacts import create_markdown_artifact
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, TaskRunFilter
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.context import FlowRunContext
from prefect.exceptions import Abort, ObjectNotFound, Pause
from prefect.states import Cancelled, Completed, Crashed, Failed
from prefect.types import KeyValueLabels

from flows import cancelled
from flows.starts import RUN_LABEL, due_again, require_progress, run_of
from tasks import control, guard
from tasks.core.child import WITHHELD
from tasks.core.errors import TarmacError, UsageError, Withdrawn
from tasks.core.schema import Config
from tasks.core.stores import redact
from tasks.dataset.building.conversion.result import BuildResult
from tasks.events import TAG
from tasks.report import Reported
from tasks.runs import record
from tasks.runs.folder import RunFolder
from tasks.stage import StageJournal, artifact_key, begin_journal, best_effort, forward_logs
from tasks.supervision.tracking import gathering

SETTLED = timedelta(minutes=1)
"""This long after its end, none of a flow run's reports is still on its way to the server."""
GREEK = (
    "alpha|beta|gamma|delta|epsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|omicron|pi|rho|sigma|tau|upsilon|"
    "phi|chi|psi|omega"
)
GENERATED = re.compile(rf"[a-z]+-[a-z]+|({GREEK})\d*(-[a-z]+){{1,3}}")
"""The names that Prefect generates, such as brave-otter, and its form, such as tau3-pestac-expanse."""
SHORT = 6
"""Digits of a run's id in the name of a flow run."""
P = ParamSpec("P")
R = TypeVar("R")


def tarmac_flow(name: str) -> Callable[[Callable[P, R]], Flow[P, R]]:
    """A decorator that makes a DAG a flow with our lifecycle."""
    hooks: dict[str, Any] = {"on_cancellation": [stop_training], "on_crashed": [close_tasks]}

    def decorate(dag: Callable[P, R]) -> Flow[P, R]:
        return flow(name=name, flow_run_name=_first_name, **hooks)(_with_endings(dag))

    return decorate


@dataclass
class _FlowRunSubject:
    """The subject of this process's flow run, as far as it is known yet."""

    config: Config | None = None
    run: RunFolder | None = None
    failure: Exception | None = None
    """The error that has failed it, once it is in the log and in the last state."""


_subject = _FlowRunSubject()


def looks_at(dataset: str) -> None:
    """Name this flow run after a dataset that it only reads: `digits · verify`."""
    _name_flow_run([_short_name(dataset)], [])


def concerns(config: Config) -> None:
    """Name this flow run after its config, as soon as that is known: `digits-clip · build`."""
    _subject.config = config
    _name_flow_run([config.name], [config.name])


def examines(run: RunFolder) -> None:
    """Name this flow run after a run that it only examines, so that its end is not the run's."""
    name = record.load_record(run).name
    _name_flow_run([name, run.id[:SHORT]], [name, run.id])


def works_on(run: RunFolder) -> None:
    """Name this flow run after the run that it works on, and label it: `digits-clip · 42ca6d · train`."""
    _subject.run = run
    examines(run)
    flow_run = control.own_flow_run()
    if flow_run is not None:
        folder = str(run.path.resolve())
        label: KeyValueLabels = {RUN_LABEL: folder}
        flow_run.labels.update(label)
        control.label({RUN_LABEL: folder})  # in case the server does not answer just now
        with get_client(sync_client=True) as client:
            best_effort(client.update_flow_run_labels, flow_run.id, label)


def _first_name() -> str:
    """Return the flow run's name before anything is read, made of the file or folder that it is given. So a
    flow run that fails on its config is called `digits-clip · build`, too."""
    context = FlowRunContext.get()
    assert context is not None and context.flow is not None and context.parameters is not None
    flow_run, required = context.flow_run, context.flow.parameters.required
    if flow_run is not None and _is_typed(flow_run.name, context.flow.name):
        return flow_run.name
    if not required:
        return context.flow.name
    return f"{_short_name(str(context.parameters[required[0]]))} · {context.flow.name}"


def _short_name(given: str) -> str:
    """Return the name of a file or folder for the name of a flow run; a version's includes its dataset's."""
    path = Path(redact(given))
    if path.parent.name == "versions":
        return f"{path.parent.parent.name} · {path.name}"
    return path.name.removesuffix(".yaml") or given


def _is_typed(name: str, flow_name: str) -> bool:
    """Whether a person has typed the flow run's name; otherwise Prefect, its form or we have made it."""
    return not GENERATED.fullmatch(name) and not name.endswith(f" · {flow_name}")


def _name_flow_run(parts: list[str], tags: list[str]) -> None:
    """Name the flow run by these parts and its flow, unless a person has named it, and add the tags."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None or context.flow is None:
        return
    flow_run = context.flow_run
    if not _is_typed(flow_run.name, context.flow.name):
        flow_run.name = " · ".join([*parts, context.flow.name])
    flow_run.tags = sorted({*flow_run.tags, TAG, *tags})
    with get_client(sync_client=True) as client:
        best_effort(client.update_flow_run, flow_run.id, name=flow_run.name, tags=flow_run.tags)


def stop_training(flow: Flow[..., Any], flow_run: FlowRun, state: State) -> None:
    """End the training and the evaluations that a flow run worked on, with a checkpoint: a hook for Cancel,
    which the worker calls when it has killed the flow's process."""
    run = _stop_run_of(flow_run, "was cancelled")
    with get_client(sync_client=True) as client:
        state = Cancelled(message="Its flow run was cancelled.")
        _close(client, state, {"id": {"any_": [flow_run.id]}}, killed_in=flow_run.run_count)
        best_effort(cancelled.close_progress, client, flow_run, run)
        if run is not None:
            best_effort(cancelled.leave_page, client, flow_run, run)


def close_tasks(flow: Flow[..., Any], flow_run: FlowRun, state: State) -> None:
    """Close the task runs of a flow whose process was killed: a hook for Crashed. Its training goes on."""
    with get_client(sync_client=True) as client:
        _close(client, Crashed(message="Its flow's process ended."), {"id": {"any_": [flow_run.id]}})


def _close_left_over() -> None:
    """Close the task runs that killed processes left Running, in this flow run and in crashed ones, which may
    never start again. Prefect's server does so itself for cancelled flow runs only."""
    this = control.own_flow_run()
    if this is None:
        return
    with get_client(sync_client=True) as client:
        left: State = Crashed(message="Its flow's process was killed.")
        best_effort(_close, client, left, {"id": {"any_": [this.id]}})
        crashed = {"tags": {"all_": [TAG]}, "state": {"type": {"any_": [StateType.CRASHED]}}}
        before = {"end_time": {"before_": datetime.now(UTC) - SETTLED}}
        best_effort(_close, client, left, {**crashed, **before})


def _close(
    client: SyncPrefectClient, state: State, flow_runs: dict[str, Any], killed_in: int | None = None
) -> None:
    """Set every task run of these flow runs that is Running, or about to be, to the final `state`, and so
    those that Prefect shows as Crashed because they were killed in the flow run's `killed_in`th start."""
    types = [StateType.RUNNING, StateType.PENDING, StateType.SCHEDULED]
    types += [StateType.CRASHED] if killed_in is not None else []
    chosen = TaskRunFilter.model_validate({"state": {"type": {"any_": types}}})
    within = FlowRunFilter.model_validate(flow_runs)
    for run in client.read_task_runs(flow_run_filter=within, task_run_filter=chosen):
        if run.state_type is not StateType.CRASHED or run.flow_run_run_count == killed_in:
            client.set_task_run_state(run.id, state.model_copy(update={"id": uuid4()}), force=True)


def _with_endings(dag: Callable[P, R]) -> Callable[P, R]:
    """Return the DAG under watch: when it is withdrawn, it ends its training and then the flow run."""

    @functools.wraps(dag)
    def watched(*arguments: P.args, **named: P.kwargs) -> Any:
        global _subject
        _subject = _FlowRunSubject()
        forward_logs()
        logging.getLogger("prefect.flow_runs").addFilter(_is_unreported)
        if (deployed := control.deployed()) is not None:  # so that it starts again when its process is killed
            guard.start_guard(deployed)
        _close_left_over()
        journal = begin_journal()
        with control.watching():
            try:
                if (due := due_again()) is not None:
                    again = f"{due:%Y-%m-%d %H:%M} {due.tzname()}"
                    message = f"its schedule was due again at {again}; that run does the work"
                    return Completed(name="Superseded", message=message)
                require_progress()
                return _completed(dag(*arguments, **named), journal)
            except Withdrawn as withdrawn:
                raise _ending(withdrawn, journal) from None
            except Pause:
                _stop_run_of(control.own_flow_run(), "was suspended")
                raise
            except TarmacError as error:
                return _failed(str(error), error, journal)
            except Exception as error:
                logger = get_run_logger()
                if _subject.config is not None and _subject.config.dataset.private:
                    return _failed(f"{type(error).__name__}; {WITHHELD}", error, journal)
                logger.exception("this is a defect of Tarmac")
                return _failed(f"{type(error).__name__}: {error}; the log has more", error, journal)

    # Prefect resolves the names in annotations in the module of the function that it is given: this one.
    watched.__signature__ = inspect.signature(dag, eval_str=True)  # type: ignore[attr-defined]
    return watched


def _is_unreported(record: logging.LogRecord) -> bool:
    """Return False for the traceback that Prefect's engine logs of a failure that is reported already."""
    return record.exc_info is None or record.exc_info[1] is None or record.exc_info[1] is not _subject.failure


def _completed(result: Any, journal: StageJournal) -> State:
    """Return Completed, by a name that shows whether anything was done, and by whom."""
    effects = {stage.effect for stage in journal.stages}
    name = "Adopted" if "adopted" in effects else "Unchanged" if effects == {"unchanged"} else "Completed"
    figures = [one.details.headline for one in journal.stages if isinstance(one.details, Reported)]
    summaries = [f"{one.stage}: {one.summary}" for one in journal.stages]
    message = next(iter([*figures, *summaries]), name)
    _publish(journal, message, failure=None)
    return Completed(name=name, message=message, data=result)


def _field_of(error: TarmacError) -> str | None:
    """Return the field of the form in which the error can be corrected. None if the form has none, or the
    flow run was not started by a deployment's form or schedule.

    A form without a config has a single required field, the only one in which a person can be wrong.
    """
    context = FlowRunContext.get()
    if error.field is None or context is None or context.flow is None or not control.deployed():
        return None
    form = context.flow.parameters
    if error.field.partition(".")[0] in form.properties:
        return error.field
    return form.required[0] if isinstance(error, UsageError) and len(form.required) == 1 else None


def _failed(text: str, error: Exception, journal: StageJournal) -> State:
    """Return Failed, with a line that names stage, reason and fix, and the field of the form to correct."""
    fix = ""
    if isinstance(error, TarmacError) and (field := _field_of(error)) is not None:
        text, fix = error.reason, f"; in the form: {field}"
    reason, *rest = text.splitlines() or [type(error).__name__]
    message = "\n".join([f"{journal.under_way or 'start'} failed: {reason}{fix}", *rest])
    get_run_logger().error("%s", message)
    _subject.failure = error
    _publish(journal, message.splitlines()[0], failure=message)
    return Failed(message=message, data=error)


def _publish(journal: StageJournal, headline: str, failure: str | None) -> None:
    """Write the flow run's page: about its run, if it works on one, or else the dataset that it builds."""
    from tasks.reporting import summary  # imports what draws pages

    built = next((one.details for one in journal.stages if isinstance(one.details, BuildResult)), None)
    if _subject.run is not None:
        key = artifact_key("run", _subject.run.id)
        page = summary.of_run(_subject.run, built, failure, gathering.url(_subject.run))
    elif _subject.config is not None:
        key = artifact_key("dataset", _subject.config.name)
        page = summary.of_dataset(_subject.config, built, failure)
    else:
        return
    best_effort(create_markdown_artifact, page, key=key, description=headline)


def _ending(withdrawn: Withdrawn, journal: StageJournal) -> Abort | Pause:
    """End what the flow run works on, and leave its page; returns the signal by which Prefect's engine leaves
    its state alone.

    A flow that returned a Cancelled state would have a traceback in its log.
    """
    flow_run = control.own_flow_run()
    if withdrawn.kind == "superseded":
        return Abort(str(withdrawn))
    if withdrawn.kind == "suspended":
        _stop_run_of(flow_run, "was suspended")
        return Pause(str(withdrawn), state=withdrawn.state)
    if control.withdrawal() is not None:  # otherwise somebody has cancelled the training alone
        _stop_run_of(flow_run, "was cancelled")
    left = "" if _subject.run is None else cancelled.kept(_subject.run)
    message = "; ".join(filter(None, (str(withdrawn), left)))
    ending = Abort(message)
    if flow_run is not None:
        state: State = Cancelled(message=message)
        with get_client(sync_client=True) as client, suppress(ObjectNotFound):  # somebody has deleted it
            client.set_flow_run_state(flow_run.id, state)
            best_effort(cancelled.close_progress, client, flow_run, _subject.run)
            _publish(journal, message, failure=None)
        ending.state = state  # type: ignore[attr-defined]  # which the engine reports
    return ending


def _stop_run_of(flow_run: FlowRun | None, why: str) -> RunFolder | None:
    """Stop the run that the flow run works on, if it works on one yet and has not adopted it from a flow run
    that goes on; returns the run that was stopped."""
    if flow_run is None or (run := run_of(flow_run)) is None:
        return None
    from tasks import ownership  # with numpy, which a build's flow does without
    from tasks.supervision import stopping

    if ownership.other_owner(run, str(flow_run.id)) is not None:
        return None
    stopping.end(run, f"flow run {ownership.named(flow_run)} {why}", "page")
    return run
