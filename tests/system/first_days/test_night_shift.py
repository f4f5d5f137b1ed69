"""The night shift: a training whose data stopped, and one of which everything was killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tasks.core.files import read_json
from tests.conftest import ROOT
from tests.services import until
from tests.system.first_days.person import Person
from tests.system.lab import step_of

pytestmark = pytest.mark.system


def identities(run: Path) -> list[psutil.Process]:
    """The agent, its ranks and whatever shares a session with them."""
    record = read_json(run / "run.json")
    agent = record["attempts"][-1]["pid"]
    ranks = [read_json(path)["pid"] for path in (run / "phases").glob("rank_*.json")]
    sessions = {os.getsid(pid) for pid in (agent, *ranks) if psutil.pid_exists(pid)}
    return [one for one in psutil.process_iter() if _session(one.pid) in sessions]


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


def _pauses_and_goes_on(person: Person, run: Path) -> None:
    (worker,) = read_json(run / "phases/rank_0.json")["workers"]
    psutil.Process(worker).suspend()
    shown = person.types("doctor", "--run", run.name)
    assert f"paused by a signal (state T); nothing is wrong. Let it go on: kill -CONT {worker}" in shown
    (command,) = re.findall(r"Let it go on: (kill -CONT \d+)", shown)
    stood = step_of(run)
    subprocess.run(command.split(), check=True)
    until("the next step", lambda: step_of(run) > stood, 60, pause_s=0.02)


@pytest.mark.parametrize("on_crash", ["restart", "stop"])
@pytest.mark.proof
def test_a_run_that_was_killed_is_named_and_goes_on(person: Person, on_crash: str) -> None:
    """First its data stops, as a worker of its loader is paused: `doctor` prints what makes it go on. Then
    everything is killed: `doctor` names it; `status` starts it again, or prints the command that does, if the
    config leaves that to a person."""
    person.types("example", "digits")
    config: dict[str, Any] = {"train.steps": 200, "train.checkpoint_every": 20, "evaluate.every": 200}
    config |= {"loader.workers": 1, "loader.prefetch": 2, "train.on_crash": on_crash}
    pairs = [part for key, value in config.items() for part in ("--set", f"{key}={value}")]
    (person.folder / "digits.yaml").write_text((ROOT / "configs/digits-clip.yaml").read_text())
    process = person.start("run", "digits.yaml", *pairs)
    deadline = time.monotonic() + 300
    while not list(person.folder.glob("runs/*/checkpoints/step_*/meta.json")):
        assert time.monotonic() < deadline and process.poll() is None, process.communicate()
        time.sleep(0.2)
    (record,) = person.folder.glob("runs/*/run.json")
    run = record.parent
    _pauses_and_goes_on(person, run)
    process.kill()  # first, as the flow would start its agent again
    for one in identities(run):
        one.send_signal(signal.SIGKILL)
    process.communicate(timeout=120)

    assert "process.gone" in person.types("doctor", "--run", run.name, expecting=1)
    shown = person.types("status")
    if on_crash == "restart":
        assert re.search(r"its agent was killed at step \d+ of 200; started again \(1 of \d\)", shown)
        until("its end", lambda: read_json(record)["state"] == "succeeded", 300, pause_s=1)
    else:
        (command,) = {line.split("tarmac ", 1)[1] for line in shown.splitlines() if "tarmac resume" in line}
        person.types(*command.split())
    assert read_json(record)["state"] == "succeeded"
    assert [path.parent for path in person.folder.glob("runs/*/run.json")] == [run], (
        "a second run was started"
    )
