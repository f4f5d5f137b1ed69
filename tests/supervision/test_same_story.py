"""Whoever reads a run's folder reports the same about it, at every moment of its life: `tarmac status` and its
JSON, the progress on Prefect's page, and the page of the run.

The moments are copies of the folders of real runs, recorded while they go through what may happen to them; and
combinations of what such folders may hold, drawn with a fixed seed.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from flows.commands.status import _Overview, _row
from tasks.core.errors import TarmacError
from tasks.core.files import write_json
from tasks.core.lock import Lease
from tasks.core.pace import Pace
from tasks.evaluation.expected import wanted_of
from tasks.reporting import evidence, summary
from tasks.runs import ledger, metrics, record
from tasks.runs.folder import RunFolder
from tasks.runs.jobs import agent_is_alive
from tasks.runs.ledger import LedgerEntry
from tasks.runs.phases import PhaseWriter
from tasks.runs.record import OVER, Attempt
from tasks.stage import Shown
from tasks.supervision import launch, stopping
from tasks.supervision.status import RunStatus, config_of, look_at_run
from tasks.train import show_progress
from tests.supervision import fakes
from tests.supervision.fakes import make_run
from tests.supervision.test_agent import rank_of, rows

COMMAND = re.compile(r"tarmac (?:resume|doctor|evaluate) [^|`\n)]*")
PROMISE = re.compile(r"\bleft\b|\d/s\b")


class _Stage:
    """What the stage shows on Prefect's page, without a server; its clock runs a second per look."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pace = Pace(lambda: self.now)

    def silent(self, seconds: float, phase: str) -> None:
        return

    def progress(
        self, done: int, total: int, note: str, detail: str = "", stalled_s: float = 0.0, cause: str = "",
        is_at_work: bool = True,
    ) -> None:  # fmt: skip
        self.now += 5.0
        self.pace.update(done, total, note, detail, stalled_s > 0 or not is_at_work)


def _progress_of(status: RunStatus) -> str:
    """The progress of a flow run that has seen the training at a good pace before this moment."""
    stage = _Stage()
    for step in range(5):
        stage.pace.update(step, status.steps, "steps")
        stage.now += 1.0
    show_progress(cast(Shown, stage), status, "")
    return str(stage.pace)


def _sections(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    title = ""
    for line in text.splitlines():
        if re.fullmatch("[A-Z ]+", line):
            title = line
        found.setdefault(title, []).append(line)
    return found


def _mask(texts: list[str]) -> list[str]:
    return [" ".join(text.split()) for text in texts]


def assert_same_story(run: RunFolder) -> str:
    """Ask every reader, and return the state that they agree on."""
    status = look_at_run(run)
    row = _row(status, None)
    page = summary.of_run(run, None, None, None)
    shown = _sections(str(_Overview(run.path.parent, [status], {}, {}, (), (), {})))
    needing, everything = (
        shown.get("NEEDS YOU", []),
        "\n".join(line for lines in shown.values() for line in lines),
    )
    state, step, steps = row["state"], row["step"], row["steps"]

    assert state == ("failed" if status.is_abandoned else record.load_record(run).state)
    assert re.search(rf"^{state} at step {step:,} of {steps:,};", page, re.MULTILINE), page
    where = (
        rf"{run.name}  {state}[^\n]*?  {step:,}/{steps:,}|{run.name}  {state} at step {step:,} of {steps:,}"
    )
    lost = [(one["step"], one["task"]) for one in row["evaluations_lost"]]
    if not lost or row["next"][0].startswith(("tarmac resume", "tarmac doctor")):
        assert re.search(where, everything), everything

    assert row["needs_you"] == bool(needing) == (state in ("failed", "stalled") or bool(lost))
    grave = re.findall(r"^- ✗ (The run|Evaluation) (?:failed|lost|is stalled)", page, re.MULTILINE)
    assert len(grave) == len(lost) + (state in ("failed", "stalled")), page

    if row["needs_you"]:
        assert _mask(COMMAND.findall("\n".join(needing))) == _mask(row["next"])
    assert set(_mask(COMMAND.findall(page))) >= set(_mask(row["next"]))

    named = re.findall(r"without a result: step (\d+) (\w+)", everything)
    assert [(int(step), task) for step, task in named] == lost
    paged = re.findall(r"✗ Evaluation (?:failed|lost): (\w+) at step ([\d,]+)", page)
    assert [(int(step.replace(",", "")), task) for task, step in paged] == lost
    assert row["evaluations_done"] == row["evaluations_by_state"].get("done", 0)

    if state == "stalled" and row["goodput"] is not None and status.agent_is_alive and status.stalled_s > 1:
        assert row["goodput"]["seconds"]["stalled"] > 0
        assert re.search(r"^Goodput .*\bstalled \d", page, re.MULTILINE), page

    progress = _progress_of(status)
    is_idle = state in ("queued", "stalled", "planned") or state in OVER or row["silent_s"] > 0
    if is_idle or status.reason.startswith("starts again"):
        assert row["left_s"] is None and " left" not in everything
        assert not PROMISE.search(progress), progress
    if not (state == "queued" and status.reason):
        assert f"{step:,}/{steps:,} steps" in progress
    return str(state)


class Recorder:
    """Copies a run's folder, with the times of its files, whenever it is asked to; each copy is judged at once,
    because nobody can say later whether its agent lived."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self.states: list[str] = []

    def look(self) -> None:
        """Judge the folder as it is. What a reader cannot read twice alike, as it changes or its agent dies
        meanwhile, is read again."""
        for _ in range(5):
            before = _moment(self._run)
            try:
                state = assert_same_story(self._run)
            except (AssertionError, TarmacError):
                if _moment(self._run) == before:
                    raise
                continue
            if not self.states or self.states[-1] != state:
                self.states.append(state)
            return

    def watch(self, until: Callable[[RunStatus], bool], seconds: float = 120.0) -> None:
        deadline = time.monotonic() + seconds
        while not until(look_at_run(self._run)):
            assert time.monotonic() < deadline, self.states
            self.look()
            time.sleep(0.05)
        self.look()


def _moment(run: RunFolder) -> dict[str, int]:
    files = [run.record, run.ledger, run.metrics, run.phase(), run.lease, run.findings, run.dismissed]
    found = {str(path): path.stat().st_mtime_ns for path in files if path.exists()}
    there = [*run.evaluations.glob("*/*.json"), *run.checkpoints.glob("step_*")]
    return {**found, **{str(path): 0 for path in there}, "agent": agent_is_alive(run)}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.proof
def test_a_run_that_is_restarted_and_succeeds(tmp_path: Path) -> None:
    run = make_run(tmp_path, {"step_s": 0.05, "pauses_s": [2.0]}, train={"on_crash": "restart"})
    seen = Recorder(run)
    seen.look()
    launch.start_or_adopt(run)
    seen.watch(lambda _: rows(run) >= 15)
    os.kill(rank_of(run).pid, signal.SIGKILL)
    seen.watch(lambda status: status.agent_has_left)
    assert seen.states[0] == "planned" and seen.states[-2:] == ["running", "succeeded"]


def test_a_run_that_stalls_goes_on_and_is_cancelled(tmp_path: Path) -> None:
    run = make_run(tmp_path, {"step_s": 0.1, "silence_s": 1.0})
    seen = Recorder(run)
    launch.start_or_adopt(run)
    seen.watch(lambda _: rows(run) >= 5)
    rank = rank_of(run)
    os.kill(rank.pid, signal.SIGSTOP)
    seen.watch(lambda status: status.state == "stalled")
    os.kill(rank.pid, signal.SIGCONT)
    seen.watch(lambda status: status.state == "running")
    for goodput in (look_at_run(run).goodput, evidence.collect(run).goodput):
        assert goodput is not None and goodput.spent["stalled"] > 0, "the standstill counts before the end"
    stopping.end(run, "of a test", "user")
    seen.watch(lambda status: not status.agent_is_alive)
    assert seen.states[-3:] == ["stalled", "running", "cancelled"]


@pytest.mark.proof
def test_a_run_whose_agent_is_killed_and_one_whose_evaluation_fails(tmp_path: Path) -> None:
    run = make_run(tmp_path, {"step_s": 0.05, "evaluation_fails_at": 40, "tries": 1})
    seen = Recorder(run)
    launch.start_or_adopt(run)
    seen.watch(lambda _: rows(run) >= 5)
    job = look_at_run(run).record.attempts[-1]
    os.kill(job.pid, signal.SIGKILL)
    seen.watch(lambda status: status.is_abandoned)
    launch.start_or_adopt(run)
    seen.watch(lambda status: status.agent_has_left)
    assert "failed" in seen.states and seen.states[-1] == "succeeded"
    assert [one.state for one in look_at_run(run).condition.lost] == ["failed"]


STATES = ("planned", "queued", "running", "stalled", "succeeded", "failed", "cancelled")


def _drawn(run: RunFolder, drawn: random.Random) -> Iterator[str]:
    """Write into the folder what it may hold at some moment, and yield what that is."""
    known = record.load_record(run)
    state, early = drawn.choice(STATES), drawn.random() < 0.2
    attempts = [_attempt(drawn) for _ in range(drawn.randrange(3))]
    known = known.having(
        state=state,
        reason=drawn.choice(["", "because"]),
        attempts=attempts,
        stopped_early=early and state == "cancelled",
    )
    for path in (run.ledger, run.metrics, run.phase()):
        path.unlink(missing_ok=True)
    for folder in (run.evaluations, run.checkpoints):
        shutil.rmtree(folder, ignore_errors=True)
    if drawn.random() < 0.8:
        writer = metrics.MetricsWriter(run.metrics)
        values = {"train/loss": 0.5, "train/step_s": 0.2}
        writer.append(metrics.make_row("train/step", drawn.randrange(1, 40), "train", values))
    for step in range(10, drawn.choice([10, 20, 50]), 10):
        fakes.save(run, step, b"weights")
    if drawn.random() < 0.5:
        record.save_record(run, known)
    if drawn.random() < 0.8:
        PhaseWriter(run).set(drawn.choice(["start", "first_batch", "step", "validate"]), drawn.randrange(40))
    record.save_record(run, known) if drawn.random() < 0.5 or record.load_record(run) != known else None
    for want in wanted_of(run.id, config_of(run)):
        kind = drawn.choice([None, "submitted", "running", "done", "failed", "lost"])
        if kind is not None:
            uid = want.uid if drawn.random() < 0.8 else "of another question"
            reason = drawn.choice(["", "it ran out of memory"])
            ledger.append(
                run.ledger, LedgerEntry(uid, want.step, want.task, kind, None, 1, 1.0, reason=reason)
            )
        if drawn.random() < 0.6:
            result = {"task": want.task, "step": want.step, "checkpoint": "c", "metrics": {"top1": 0.5}}
            rest: dict[str, Any] = {"intervals": {}, "samples": 20, "seconds": 0.1, "versions": {}}
            write_json(run.evaluation(*want.key), {**result, **rest, "split": "val", "chance": {}})
    yield f"{state}, {len(attempts)} attempts, early {early}"


def _attempt(drawn: random.Random) -> Attempt:
    return Attempt(
        started=1.0, ended=drawn.choice([None, 2.0]), host="h", boot_id="b", pid=1, pid_started=1.0, job=None,
        code_digest="", versions={}, outcome=drawn.choice([None, "lost", "evaluated"]),
        signal=drawn.choice([None, "SIGUSR2"]), stopped=drawn.choice([None, None, "by a person"]),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_all_readers_agree_whatever_a_folder_holds(tmp_path: Path, seed: int) -> None:
    run = make_run(tmp_path, evaluate={"every": 10, "tasks": ["zero_shot"]})
    drawn = random.Random(seed)
    states = set()
    for number in range(60):
        for what in _drawn(run, drawn):
            try:
                states.add(assert_same_story(run))
                with Lease(run.lease):
                    states.add(assert_same_story(run))
            except AssertionError as error:
                raise AssertionError(f"moment {number} of seed {seed}: {what}: {error}") from error
    assert states == set(STATES)
