"""The node of a training is lost: Slurm queues the job again, and the training goes on from its checkpoint.

Slurm takes half a minute to find out.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from tasks.runs import record
from tasks.supervision import launch
from tasks.supervision.status import look_at_run
from tests.services import until
from tests.supervision.test_agent import assert_undisturbed
from tests.system.test_slurm_training import finish, impatient, lab, make_run

pytestmark = pytest.mark.proof
__all__ = ["impatient", "lab"]


def kill_node(lab: Path, job: str, agent: int) -> None:
    """What a power failure does to the node n1: its daemon, the job's keeper and the job die at once."""
    os.kill(int((lab / "slurmd-n1.pid").read_text()), signal.SIGKILL)
    for process in psutil.process_iter(["cmdline"]):
        if " ".join(process.info["cmdline"] or []).startswith(f"slurmstepd: [{job}."):
            process.kill()
    os.kill(agent, signal.SIGKILL)


def test_a_training_outlives_its_node(tmp_path: Path, lab: Path) -> None:
    run = make_run(tmp_path, {"step_s": 0.1}, evaluate={"every": 40, "tasks": ["zero_shot"]})
    job = launch.start_or_adopt(run).job
    assert job is not None
    until("a checkpoint", lambda: look_at_run(run).checkpoints, 60)
    kill_node(lab, job.id, record.load_record(run).attempts[-1].pid)
    assert launch.start_or_adopt(run).adopted
    until("the queue", lambda: look_at_run(run).queue, 120)
    subprocess.run(["scontrol", "update", f"JobId={job.id}", "StartTime=now+3"], check=True)
    finish(run)
    assert_undisturbed(run)
    assert [one.outcome for one in record.load_record(run).attempts] == ["lost", "succeeded", "evaluated"]
