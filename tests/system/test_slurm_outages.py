"""A real Slurm that fails around a run: its controller is gone for a while, nodes are drained or killed, and whole
combinations of its daemons and the run's processes are killed at one moment. Whatever is killed, the run and
each evaluation end as done, once, and nothing is left over.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from flows.commands.status import status as status_command
from tasks.core.lock import holder_of
from tasks.runs import ledger, record
from tasks.runs.folder import RunFolder
from tasks.supervision import launch, status, stopping
from tasks.supervision.evaluating.evaluation_jobs import NO_ANSWER
from tasks.supervision.status import look_at_run
from tests.services import until
from tests.slurm_lab import queue
from tests.supervision.test_agent import assert_undisturbed, rank_of
from tests.system.test_slurm_training import finish, impatient, lab, make_run

pytestmark = pytest.mark.system
__all__ = ["impatient", "lab"]
EVERY_TEN = {"every": 10, "tasks": ["zero_shot"]}
STARTER = """
import sys
from pathlib import Path
from tasks.runs.folder import RunFolder
from tasks.supervision import allocation, launch
launch.AGENT = "tests.supervision.fakes:agent_main"
allocation.REVIVER = "tests.supervision.fakes:reviver_main"
run = RunFolder(Path(sys.argv[1]))
launch.start_or_adopt(run)
launch.wait_for_training(run)
launch.wait_for_evaluations(run)
"""


def daemon_of(lab: Path, name: str) -> int:
    return int((lab / f"{name}.pid").read_text())


@pytest.fixture
def daemons(lab: Path) -> Iterator[None]:
    """Starts again what a test has killed, and ends suspensions."""
    yield
    restore(lab)


def restore(lab: Path) -> None:
    for name in ("slurmctld", "slurmd-n1", "slurmd-n2"):
        try:
            process = psutil.Process(daemon_of(lab, name))
            is_alive = process.name() in name and process.status() != psutil.STATUS_ZOMBIE
            process.resume()
        except (psutil.NoSuchProcess, FileNotFoundError, ValueError):
            is_alive = False
        if not is_alive:
            node = ["-N", name.partition("-")[2]] if "-" in name else []
            subprocess.run([name.partition("-")[0], *node], check=True)
    idle = ["sinfo", "-h", "-N", "-p", "main", "-t", "idle,mix,alloc,comp", "-o", "%N"]

    def is_up() -> bool:  # it drains a node that was to start a job a second time
        subprocess.run(["scontrol", "update", "NodeName=n1,n2", "State=RESUME"], capture_output=True)
        done = subprocess.run(idle, capture_output=True, text=True)
        return done.returncode == 0 and len(done.stdout.split()) == 2

    until("both nodes", is_up, 90)


def start_without_memory(lab: Path) -> None:
    """Replace the controller by one that knows of no job."""
    old = psutil.Process(daemon_of(lab, "slurmctld"))
    old.kill()
    until("its end", lambda: not old.is_running() or old.status() == psutil.STATUS_ZOMBIE, 30)
    subprocess.run(["slurmctld", "-c"], check=True)
    until("the new one", lambda: daemon_of(lab, "slurmctld") != old.pid, 30)
    restore(lab)


def processes_of(run: RunFolder) -> list[str]:
    """What names the run on its command line, and zombies below this process."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = " ".join(process.info["cmdline"] or [])
        if str(run.path) in words and process.pid != os.getpid():
            found.append(words)
    zombies = [one for one in psutil.Process().children(True) if one.status() == psutil.STATUS_ZOMBIE]
    return [*found, *(f"zombie {one.name()}" for one in zombies)]


def assert_nothing_is_left(run: RunFolder) -> None:
    left = ["squeue", "-h", "-o", "%i %j %T %r"]
    try:
        until("an empty queue", lambda: queue() == [], 60)
    except AssertionError:
        raise AssertionError(subprocess.run(left, capture_output=True, text=True).stdout) from None
    until("the end of all processes", lambda: processes_of(run) == [], 30)


@pytest.mark.proof
def test_a_controller_that_is_gone_for_a_while_is_one_line_and_stops_nothing(
    lab: Path,
    tmp_path: Path,
    daemons: None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(status, "SLURM_AGE_S", 1.0)
    run = make_run(tmp_path, {"step_s": 0.6}, evaluate=EVERY_TEN)
    launch.start_or_adopt(run)
    until("the training", lambda: look_at_run(run).step >= 3, 60)
    os.kill(daemon_of(lab, "slurmctld"), signal.SIGKILL)

    def shown() -> str:
        status_command(runs=run.path.parent)
        return str(capsys.readouterr().out)

    until("the outage", lambda: "! Slurm does not answer; the training goes on" in shown(), 90)
    until("a checkpoint", lambda: look_at_run(run).checkpoints, 90)
    assert sum("! Slurm " in line for line in shown().splitlines()) == 1
    until("the training's end", lambda: look_at_run(run).training_is_over, 120)
    assert "the run waits for it" in look_at_run(run).silence
    held = [one for one in ledger.read_ledger(run.ledger) if one.reason == NO_ANSWER]
    assert held and len(held) == len({one.key for one in held}), "each is said once"
    restore(lab)
    finish(run)
    assert_undisturbed(run)
    log = "".join(path.read_text() for path in run.logs(1).glob("agent/*_log.out"))
    assert log.count("Slurm does not answer; ") == 1, log
    assert "could not be submitted" not in log and "does not take the job" not in log
    assert_nothing_is_left(run)


def test_what_waits_for_a_drained_node_says_which_and_why(tmp_path: Path) -> None:
    run = make_run(tmp_path, slurm={"extra": {"nodelist": "n2"}})
    change = ["scontrol", "update", "NodeName=n2"]
    subprocess.run([*change, "State=DRAIN", "Reason=bad disk"], check=True)
    try:
        launch.start_or_adopt(run)
        until("the reason", lambda: "n2 is drained (bad disk)" in look_at_run(run).reason, 60)
        assert "waiting in the queue as Slurm job " in look_at_run(run).reason
        stopping.end(run, "enough")
    finally:
        subprocess.run([*change, "State=RESUME"], check=True)


def victims_of(run: RunFolder, lab: Path, starter: int) -> dict[str, Callable[[], int | None]]:
    """How the process of each name is found; None where there is none."""

    def evaluation() -> int | None:
        leases = map(holder_of, run.evaluations.glob("step_*/.*.lease"))
        return next((one.identity.pid for one in leases if one is not None and one.is_alive()), None)

    def gatherer() -> int | None:
        holder = holder_of(run.gatherer_lease)
        return holder.identity.pid if holder is not None and holder.is_alive() else None

    return {
        "starter": lambda: starter,
        "agent": lambda: record.load_record(run).attempts[-1].pid,
        "rank": lambda: rank_of(run).pid,
        "gatherer": gatherer,
        "evaluation": evaluation,
        "slurmd": lambda: daemon_of(lab, "slurmd-n1"),
        "slurmctld": lambda: daemon_of(lab, "slurmctld"),
    }


NAMES = ("starter", "agent", "rank", "gatherer", "evaluation", "slurmd", "slurmctld")


@pytest.mark.proof
@pytest.mark.parametrize("pair", list(itertools.combinations(NAMES, 2)), ids="-".join)
def test_a_run_outlives_any_two_that_are_killed_at_once(
    lab: Path, tmp_path: Path, daemons: None, pair: tuple[str, str]
) -> None:
    """Nobody looks at the run but its starter, if that lives, and the job that Slurm starts for it."""
    behaviour = {"step_s": 0.4, "evaluation_s": 4.0}
    run = make_run(
        tmp_path,
        behaviour,
        evaluate=EVERY_TEN,
        track={"mode": "offline"},
        train={"on_crash": "restart"},
    )
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(run.path)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    victims = victims_of(run, lab, starter.pid)
    try:
        until("a checkpoint", lambda: look_at_run(run).checkpoints, 90)
        if "slurmctld" in pair:
            until("that Slurm has saved its jobs", lambda: is_saved(lab, run), 60)
        until("the victims", lambda: all(victims[name]() for name in pair), 60)
        for pid in [victims[name]() for name in pair]:
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
        time.sleep(3.0)
        restore(lab)
        until("the end", lambda: is_over(run), 240)
        assert_undisturbed(run)
        assert_settled(run)
        if "starter" not in pair:
            assert starter.wait(60) == 0
    finally:
        starter.kill()
        starter.wait()
    assert_nothing_is_left(run)


def is_saved(lab: Path, run: RunFolder) -> bool:
    """Whether a controller that is killed now will still know the agent's job, and its reviver."""
    return (lab / "state/job_state").stat().st_mtime > record.load_record(run).attempts[0].started + 1


@pytest.mark.proof
def test_a_run_that_slurm_has_forgotten_is_started_again_by_who_waits_for_it(
    lab: Path, tmp_path: Path, daemons: None
) -> None:
    """A controller that has lost its state ends the jobs that it finds on the nodes."""
    run = make_run(tmp_path, {"step_s": 0.3}, train={"on_crash": "restart"})
    launch.start_or_adopt(run)
    until("a checkpoint", lambda: look_at_run(run).checkpoints, 90)
    start_without_memory(lab)
    finish(run)
    assert_undisturbed(run)
    assert_nothing_is_left(run)


def is_over(run: RunFolder) -> bool:
    """Whether nothing is left to do; resumes nodes as an administrator does."""
    subprocess.run(["scontrol", "update", "NodeName=n1,n2", "State=RESUME"], capture_output=True)
    seen = look_at_run(run)
    return seen.is_complete and not seen.agent_is_alive


def assert_settled(run: RunFolder) -> None:
    """Each evaluation is done, and no one more than once by the same question."""
    for entry in ledger.fold(ledger.read_ledger(run.ledger)).values():
        assert entry.state == "done", (entry.key, entry.state, entry.reason)
    done = Counter(one.key for one in ledger.read_ledger(run.ledger) if one.state == "done")
    assert set(done.values()) == {1}, done
    evaluated = Counter((run.path / "evaluated").read_text().split())
    assert all(times <= 2 for times in evaluated.values()), evaluated


@pytest.mark.proof
def test_twenty_evaluations_each_end_with_a_reason_or_a_result(lab: Path, tmp_path: Path) -> None:
    """Of 20 some fail, die, are cancelled or vanish; a controller's restart comes on top."""
    behaviour = {
        "step_s": 0.05,
        "evaluation_s": 3.0,
        "evaluations": {"4": "fail", "8": "die", "12": "die", "16": "fail", "20": "wrong"},
        "tries": 2,
    }
    run = make_run(
        tmp_path,
        behaviour,
        train={"checkpoint_every": 2, "on_crash": "restart"},
        evaluate={"every": 2, "tasks": ["zero_shot"]},
        jobs={"jobs": 4},
    )
    launch.start_or_adopt(run)
    cancelled: set[int] = set()

    def cancel_two() -> bool:
        for entry in ledger.fold(ledger.read_ledger(run.ledger)).values():
            is_victim = entry.step in (24, 28) and entry.state == "running" and entry.job is not None
            if is_victim and entry.step not in cancelled:
                subprocess.run(["scancel", str((entry.job or {})["id"])], check=True)
                cancelled.add(entry.step)
        return cancelled == {24, 28}

    until("two cancelled ones", cancel_two, 300)
    seen = launch.wait_for_evaluations(run)
    reasons = {one.step: str(one) for one in seen.evaluations_missing}
    assert sorted(reasons) == [4, 8, 12, 16, 20, 24, 28]
    assert all("the weights do not fit" in reasons[step] for step in (4, 16))
    assert all("ended without a result (FAILED)" in reasons[step] for step in (8, 12))
    assert all("was cancelled in Slurm" in reasons[step] for step in (24, 28))
    assert seen.evaluations_done == 13 and len(seen.evaluations) == 20
    summaries = {json.loads(path.read_text())["global_step"] for path in run.path.glob("eval_results/*.json")}
    assert summaries == set(range(2, 41, 2))
    assert_nothing_is_left(run)


SHIFTED = """\
import time
now, now_ns = time.time, time.time_ns
time.time = lambda: now() + SHIFT
time.time_ns = lambda: now_ns() + SHIFT * 10**9
"""


@pytest.mark.proof
@pytest.mark.parametrize("offset_min", [5, -5])
def test_clocks_that_are_five_minutes_apart_change_nothing(tmp_path: Path, offset_min: int) -> None:
    """The clock of the node of the agent and its ranks is ahead of, or behind, that of this machine, of the
    evaluations and of the file system. (libfaketime breaks Python's time.sleep and its waits.)"""
    shifted = tmp_path / "shifted"
    shifted.mkdir()
    (shifted / "sitecustomize.py").write_text(SHIFTED.replace("SHIFT", f"({60 * offset_min})"))
    slurm = {"setup": [f"export PYTHONPATH={shifted}:$PYTHONPATH"]}
    run = make_run(tmp_path, {"step_s": 0.2}, slurm=slurm, evaluate=EVERY_TEN, train={"on_crash": "restart"})
    launch.start_or_adopt(run)
    until("steps", lambda: look_at_run(run).step >= 5, 60)
    (attempt,) = record.load_record(run).attempts
    assert abs(attempt.started - time.time() - 60 * offset_min) < 60, "its clock is off"
    assert look_at_run(run).agent_is_alive and not look_at_run(run).silent_s
    again = launch.start_or_adopt(run)
    assert again.adopted
    os.kill(attempt.pid, signal.SIGKILL)
    launch.wait_for_training(run)
    launch.wait_for_evaluations(run)
    assert_undisturbed(run)
    assert_settled(run)
    assert_nothing_is_left(run)


LATE = """\
import os, subprocess
now = os.replace
def replace(source, target, **named):
    if "RUN" in str(target) and str(target).endswith((".json", "_result.pkl")):
        late = f".late.{os.path.basename(target)}"
        hidden = os.path.join(os.path.dirname(source), late)
        now(source, hidden)
        subprocess.Popen(["setsid", "sh", "-c", 'sleep 10; mv "$0" "$1"', hidden, target])
    else:
        now(source, target, **named)
os.replace = os.rename = replace
"""


@pytest.mark.proof
def test_results_whose_rename_shows_ten_seconds_later_are_not_evaluated_twice(tmp_path: Path) -> None:
    """As on a shared file system whose clients keep what they know of a folder for a while: the job has left
    the queue, and its last files are not there yet."""
    late = tmp_path / "late"
    late.mkdir()
    (late / "sitecustomize.py").write_text(LATE.replace("RUN", str(tmp_path / "runs")))
    setup = [f"export PYTHONPATH={late}:$PYTHONPATH"]
    run = make_run(tmp_path, {"step_s": 0.1}, jobs={"setup": setup}, evaluate=EVERY_TEN)
    launch.start_or_adopt(run)
    finish(run)
    assert_undisturbed(run)
    assert_settled(run)
    evaluated = Counter((run.path / "evaluated").read_text().split())
    assert set(evaluated.values()) == {1}, evaluated
    assert_nothing_is_left(run)


@pytest.mark.proof
def test_a_job_whose_id_slurm_gave_to_another_is_not_taken_for_it(
    lab: Path, tmp_path: Path, daemons: None
) -> None:
    """The controller has lost its state, and its numbers begin anew."""
    run = make_run(tmp_path, {"step_s": 0.02}, slurm={"extra": {"hold": True}})
    job = launch.start_or_adopt(run).job
    assert job is not None and look_at_run(run).agent_is_alive
    start_without_memory(lab)
    taken = ""
    for _ in range(int(job.id)):
        command = ["sbatch", "--parsable", "-H", "-o", "/dev/null", "--wrap", "sleep 60"]
        taken = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        if taken == job.id:
            break
    assert taken == job.id
    until("what Slurm knows", lambda: not look_at_run(run).agent_is_alive, 30)
    stopping.end(run, "enough")
    assert job.id in queue(), "it is a stranger's"
    subprocess.run(["scancel", "-u", str(os.getuid())], check=True)
