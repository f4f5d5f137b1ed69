"""The stage that starts the run's agent, or adopts the one that lives, and watches its training."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from prefect.artifacts import create_markdown_artifact

from tasks import control, events, ownership
from tasks.core import screen
from tasks.core.errors import DataError, first_line
from tasks.core.units import number
from tasks.evaluation.fit import doubtful_classes
from tasks.reporting.left_out import left_out
from tasks.reporting.plots import summarize
from tasks.runs import metrics, record
from tasks.runs.data import version_path
from tasks.runs.folder import RunFolder
from tasks.runs.run_findings import findings_of
from tasks.stage import Effect, Shown, StageResult, artifact_key, best_effort, shown
from tasks.supervision import launch
from tasks.supervision.beforehand import doubts
from tasks.supervision.launch import Started
from tasks.supervision.status import RunStatus, config_of, look_at_run
from tasks.supervision.tracking import gathering


@dataclass(frozen=True)
class TrainedRun:
    """The run that was trained; `changes` names what differs from its last attempt."""

    run: Path
    changes: tuple[str, ...]


@control.stage(name="train")
def train(run: RunFolder, begun: Started | None = None) -> StageResult[TrainedRun]:
    """Watch the training that `begun` has started for this flow run, or start or adopt one.

    DataError with the reason and the log's last lines when the training fails. Nothing is retried here: the
    agent knows what can be tried again, and a new start resumes.
    """
    with shown("train") as stage:
        news = _TrainingNews(run)

        def progress(status: RunStatus) -> None:
            news.report(status)
            show_progress(stage, status, news.cause)

        if skipped := left_out(run):
            screen.warn(skipped)
        config, version = config_of(run), version_path(record.load_record(run).data[0])
        for doubt in (*doubts(config, version), *doubtful_classes(config, version)):
            screen.warn(doubt)
        started = begun or ownership.start_or_adopt(run, "train")
        adopted = ownership.is_adopted(run, started)
        if started.changes:
            screen.warn(f"not as in the run's last attempt: {', '.join(started.changes)}")
        try:
            status = launch.wait_for_training(run, progress)
        except DataError as error:
            events.emit_run("failed", run, config.name, first_line(error))
            raise
        news.report(status)
        summary = _summary(run, status)
        if not started.is_up_to_date:
            events.emit_run("trained", run, config.name, f"trained: {summary}", step=status.step)
            events.emit_checkpoint(look_at_run(run))
        how = "adopted; " if adopted else "up to date: " if started.is_up_to_date else ""
        effect: Effect = "adopted" if adopted else "unchanged" if started.is_up_to_date else "changed"
        return stage.result(how + summary, TrainedRun(run.path, started.changes), effect)


def show_progress(stage: Shown, status: RunStatus, cause: str) -> None:
    """Show where the training stands; `cause` is why it stands still, if it does. Only ranks that are at work
    have a rate and a remaining time."""
    state = status.condition.state
    if state == "queued" and status.reason:
        stage.progress(0, 0, "; ".join(filter(None, (status.silence, status.reason))))
        return
    loss = status.silence or ("" if status.loss is None else f"loss {number(status.loss)}")
    stage.silent(status.silent_s, "none" if status.phase is None else status.phase.phase)
    # A stall shows for how long; everything else but work shows its word.
    idle = "" if state in ("running", "stalled") else state
    detail = " · ".join(filter(None, (loss, idle)))
    is_at_work = status.is_training
    stage.progress(status.step, status.steps, "steps", detail, status.stalled_s, cause, is_at_work)


class _TrainingNews:
    """Puts into the flow run's log, once each, why a training waits or stands still, and what is wrong
    with it or makes it slow. Events report a stall and its end to people who do not look at the page."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self._reported: set[str] = set()
        self._doubts = 0
        self.cause = ""
        """What a stalled training was found to wait for, in a few words; empty while it is not stalled."""
        self._is_silent = False

    def report(self, status: RunStatus) -> None:
        for finding in status.doubts[self._doubts :]:
            screen.warn("\n".join([f"{self._run.name}: look at this training", *finding.lines()]))
        self._doubts = len(status.doubts)
        if self.cause and status.state != "stalled":
            if status.state == "running":
                says = f"goes on at step {status.step:,} after {self.cause}"
                events.emit_run("goes-on", self._run, status.record.name, says, step=status.step)
            self.cause = ""
        if bool(status.silence) != self._is_silent:
            self._is_silent = not self._is_silent
            screen.warn(f"{self._run.name}: {status.silence or 'Slurm answers again'}")
        if not status.reason or status.reason in self._reported:
            return
        if status.state in ("queued", "running"):  # a running one was restarted
            screen.warn(f"{self._run.name}: {status.reason}")
        elif status.state == "stalled":
            self.cause = _report_stall(self._run, status)
        else:
            return
        self._reported.add(status.reason)


def _report_stall(run: RunFolder, status: RunStatus) -> str:
    """Put the agent's verdict into the flow run's log, with the evidence, into an event, and on the run's
    page, which is otherwise written at the end; returns the cause in a few words. For private data it shows
    codes only: a quoted log may name samples."""
    from tasks.reporting import summary  # imports what draws pages

    found, reason = findings_of(run, status.record.trained), status.reason
    sentence = reason.partition(": ")[2]  # it begins with the code, unless the training is only paused
    cause = re.split("[:;]", sentence)[0] or "unknown"
    if config_of(run).dataset.private:
        reason = f"stalled: {cause}"
        found = []
    lines = [line for finding in found for line in finding.lines()]
    screen.warn("\n".join([f"{run.name}: {reason}; tarmac doctor --run {run.handle}", *lines]))
    events.emit_run("stalled", run, status.record.name, reason, step=status.step, code=cause)
    page = summary.of_run(run, None, None, gathering.url(run))
    best_effort(create_markdown_artifact, page, key=artifact_key("run", run.id), description=reason)
    return cause


def _summary(run: RunFolder, status: RunStatus) -> str:
    """Return steps, loss, and the share of time spent waiting for data."""
    rows, _ = metrics.read_metrics(run.metrics)
    totals = summarize(rows)
    early = (
        "" if not status.record.stopped_early else f"; stopped early of {status.steps:,} ({status.reason})"
    )
    if totals is None:
        return f"{status.step:,} steps{early}"
    loss = "" if totals.first_loss is None else f", loss {totals.first_loss:.2f} → {totals.last_loss:.2f}"
    waiting = "" if totals.waiting is None else f", waiting for data {100 * totals.waiting:.1f} %"
    return f"{status.step:,} steps{loss}{waiting}{early}"
