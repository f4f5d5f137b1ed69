"""What a map on Slurm writes down, submits and concludes; nothing here needs a Slurm."""

from __future__ import annotations

import functools
import json
import logging
import os
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tasks.core.engines import map_groups, slurm_job, slurm_queue
from tasks.core.engines.slurm import MapShare, MapTally
from tasks.core.engines.slurm_job import MapPlan, _done, packed
from tasks.core.engines.slurm_queue import Queue, SlurmJob
from tasks.core.errors import UsageError
from tasks.core.files import append_line
from tasks.core.process import HOME
from tasks.core.schema.engine import BuildEngine, Engines
from tests.core.engines.functions import Job, environment, note, work
from tests.services import until

GOLDEN = """\
#!/bin/bash

# Parameters
#SBATCH --account=lab
#SBATCH --array=0-1%2
#SBATCH --cpus-per-task=8
#SBATCH --exclusive
#SBATCH --job-name=tarmac-build-1
#SBATCH --mem=30518M
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --output={logs}/%A_%a_0_log.out
#SBATCH --partition=cpu
#SBATCH --qos='low prio'
#SBATCH --requeue
#SBATCH --signal=B:USR2@90
#SBATCH --time=360

# setup
trap '' USR2
export PYTHONPATH="${{TARMAC_USERS_PYTHONPATH-$PYTHONPATH}}"
module load cuda
export TARMAC_USERS_PYTHONPATH="$PYTHONPATH" TARMAC_USERS_PYTHONSAFEPATH= PYTHONSAFEPATH=1
export PYTHONPATH={HOME}${{PYTHONPATH:+:$PYTHONPATH}}

# command
export SUBMITIT_EXECUTOR=slurm
exec PYTHON -u -m submitit.core._submit {logs}
"""

ONE = """\
#!/bin/bash

# Parameters
#SBATCH --account=lab
#SBATCH --cpus-per-task=32
#SBATCH --gres=gpu:4
#SBATCH --job-name=tarmac-train-1
#SBATCH --mem=381470M
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --output={logs}/%j_0_log.out
#SBATCH --partition=gpu
#SBATCH --requeue
#SBATCH --signal=B:USR2@90
#SBATCH --time=2880

# setup
trap '' USR2
export PYTHONPATH="${{TARMAC_USERS_PYTHONPATH-$PYTHONPATH}}"
module load cuda
export TARMAC_USERS_PYTHONPATH="$PYTHONPATH" TARMAC_USERS_PYTHONSAFEPATH= PYTHONSAFEPATH=1
export PYTHONPATH='/a b:{HOME}'${{PYTHONPATH:+:$PYTHONPATH}}

# command
export SUBMITIT_EXECUTOR=slurm
exec PYTHON -u -m submitit.core._submit {logs}
"""


@pytest.fixture
def sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs that take a job and keep its script; the script's path."""
    kept = tmp_path / "kept.sh"
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, body in {"srun": "", "sbatch": f'cp "$1" {kept}; echo Submitted batch job 17'}.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr("sys.executable", "PYTHON")
    return kept


def plan(folder: Path, items: Any, jobs: int = 2, function: Any = work) -> MapPlan:
    return MapPlan.write(folder / "map", function, items, jobs, workers=1)


def submit(made: MapPlan, engine: BuildEngine, name: str = "x") -> list[SlurmJob]:
    calls = [functools.partial(slurm_job.enter, made, share, 0) for share in range(2)]
    return Queue(name).submit(calls, made.logs, engine, "engine.build")


def test_the_script_says_what_the_config_says(sbatch: Path, tmp_path: Path) -> None:
    engines = Engines.model_validate(
        {
            "slurm": {
                "account": "lab",
                "partition": "gpu",
                "setup": ["module load cuda"],
                "extra": {"qos": "x"},
            },
            "build": {
                "kind": "slurm",
                "partition": "cpu",
                "cpus": 8,
                "memory": "32GB",
                "time": "6h",
                "extra": {"qos": "low prio", "exclusive": True},
            },
        }
    )
    made = plan(tmp_path, [])
    assert [job.id for job in submit(made, engines.for_build(), "tarmac-build-1")] == ["17_0", "17_1"]
    assert sbatch.read_text().rstrip() == GOLDEN.format(logs=made.logs, HOME=HOME).rstrip()


CLUSTER = {
    "slurm": {"account": "lab", "setup": ["module load cuda"]},
    "train": {
        "kind": "slurm",
        "partition": "gpu",
        "gpus": 4,
        "cpus": 32,
        "memory": "400GB",
        "time": "48h",
    },
    "evaluate": {"kind": "slurm", "partition": "gpu", "gpus": 1, "jobs": 4},
}


def test_the_script_of_a_training_says_what_the_config_says(sbatch: Path, tmp_path: Path) -> None:
    engine, logs = Engines.model_validate(CLUSTER).for_train(), tmp_path / "logs"
    call = functools.partial(print, "x")
    (job,) = Queue("tarmac-train-1").submit([call], logs, engine, "engine.train", path="/a b")
    assert (job.id, job.name, job.user) == ("17", "tarmac-train-1", os.getuid())
    assert sbatch.read_text().rstrip() == ONE.format(logs=logs, HOME=HOME).rstrip()


def test_a_job_asks_for_no_gpu_or_for_those_of_a_type(sbatch: Path, tmp_path: Path) -> None:
    def asked(**train: Any) -> list[str]:
        engine = Engines.model_validate({"train": {"kind": "slurm", **train}}).for_train()
        Queue("x").submit([functools.partial(print)], tmp_path / "logs", engine, "engine.train")
        return [line for line in sbatch.read_text().splitlines() if "gres" in line]

    assert asked(ranks=2) == []
    assert asked(gpus=2, extra={"gres": "gpu:a100:2"}) == ["#SBATCH --gres=gpu:a100:2"]


def test_stages_take_the_settings_of_all_and_a_time_limit(tmp_path: Path) -> None:
    engines = Engines.model_validate(CLUSTER)
    assert (engines.for_evaluate().account, engines.for_evaluate().time) == ("lab", 3600)
    assert engines.for_evaluate("lmms_eval").time is None, "its benchmarks may last for hours"
    shared = Engines.model_validate({**CLUSTER, "slurm": {"time": "2h"}})
    assert (shared.for_evaluate().time, shared.for_train().time) == (7200, 48 * 3600)
    local = Engines.model_validate({"slurm": CLUSTER["slurm"]})
    assert (local.for_train().account, local.for_evaluate().time) == (None, 3600)


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        ({"train": {"partition": "gpu"}}, "partition needs kind: slurm"),
        ({"train": {"kind": "dask"}}, "'local' or 'slurm'"),
        ({"train": {"kind": "slurm", "gpus": 1, "ranks": 1}}, "gpus and ranks"),
        ({"train": {"kind": "slurm", "extra": {"gpus-per-node": 1}}}, "is given by the key gpus"),
        ({"evaluate": {"gpus": 1}}, "gpus needs kind: slurm"),
        ({"evaluate": {"memory": "1GB"}}, "memory needs kind: slurm"),
    ],
)
def test_each_mistake_about_training_and_evaluation_is_named(engine: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Engines.model_validate(engine)
    assert says in str(caught.value)


def test_jobs_are_asked_for_together_and_a_new_one_at_once(
    sbatch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, asked, squeue = tmp_path / "rows", tmp_path / "asked", tmp_path / "bin/squeue"
    squeue.write_text(f"#!/bin/sh\necho >> {asked}; cat {rows}\n")
    squeue.chmod(0o755)
    monkeypatch.setattr(slurm_queue, "LOOK_S", 600.0)
    first, second = SlurmJob("7", "a", 1), SlurmJob("8", "b", 1)
    rows.write_text("7|a|PENDING|Resources\n")
    assert first.is_alive() and first.waiting == (
        "waiting in the queue as Slurm job 7 (Resources: no node is free for it yet)"
    )
    assert len(asked.read_text()) == 1
    rows.write_text("7|another|RUNNING|None\n8|b|RUNNING|None\n")
    assert second.is_alive() and second.waiting == "", "the first answer was from before its submission"
    assert not first.is_alive(), "its id was given again"
    assert first.was_just_alive() and len(asked.read_text()) == 2


def test_a_job_is_not_gone_because_squeue_does_not_answer(
    sbatch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    squeue, asked = tmp_path / "bin/squeue", tmp_path / "asked"
    squeue.write_text(f"#!/bin/sh\necho >> {asked}; echo 7 unreachable >&2; exit 1\n")
    squeue.chmod(0o755)
    monkeypatch.setattr(slurm_queue, "_watch", slurm_queue._QueueWatch())
    monkeypatch.setattr(slurm_queue, "LOOK_S", 0.2)
    monkeypatch.setattr(slurm_queue, "LONGEST_LOOK_S", 0.5)
    job, began = SlurmJob("7", "silent", os.getuid()), time.monotonic()
    with caplog.at_level(logging.INFO):
        while time.monotonic() - began < 2.5:
            assert job.is_alive() and job.waiting == "" and slurm_queue.silence() == "Slurm does not answer"
            time.sleep(0.02)
        assert len(asked.read_text()) < 9, "after 0.2, 0.4 and then every 0.5 s"
        squeue.write_text("#!/bin/sh\necho '7|silent|PENDING|Priority'\n")
        until("the answer", lambda: slurm_queue.silence() == "", 5)
    assert job.waiting.endswith("(Priority: jobs of a higher priority come first)")
    assert [message.partition(",")[0].partition(";")[0] for message in caplog.messages] == [
        "Slurm does not answer",
        "Slurm answers again",
    ]
    squeue.write_text("#!/bin/sh\nexit 1\n")
    monkeypatch.setattr(slurm_queue, "UNKNOWN_S", 0.0)
    assert not job.is_alive()


def test_an_outage_of_minutes_is_counted(
    sbatch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin/squeue").symlink_to("/bin/false")
    monkeypatch.setattr(slurm_queue, "_watch", slurm_queue._QueueWatch())
    assert slurm_queue.silence() == "Slurm does not answer"
    began = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: began + 190)
    assert slurm_queue.silence() == "Slurm has not answered for 3 min"


def test_the_end_of_another_job_with_the_same_id_is_not_this_ones(sbatch: Path, tmp_path: Path) -> None:
    scontrol = tmp_path / "bin/scontrol"
    scontrol.write_text("#!/bin/sh\necho 'JobId=3 JobName=new UserId=a(1) JobState=CANCELLED Reason=None'\n")
    scontrol.chmod(0o755)
    assert (SlurmJob("3", "new", 1).ending, SlurmJob("3", "old", 1).ending) == ("CANCELLED", "")


def test_nodes_that_take_no_jobs_are_named_with_the_reason(sbatch: Path, tmp_path: Path) -> None:
    answers = {
        "squeue": "9|c|PENDING|ReqNodeNotAvail, UnavailableNodes:n2",
        "sinfo": "n2|drained|bad disk\nn2|drained|bad disk\nn3|down*|none",
    }
    for name, text in answers.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\nprintf '{text}\\n'\n")
        (tmp_path / "bin" / name).chmod(0o755)
    assert SlurmJob("9", "c", 3).waiting == (
        "waiting in the queue as Slurm job 9 (ReqNodeNotAvail, UnavailableNodes:n2: nodes that it needs are "
        "down, drained or reserved; n2 is drained (bad disk), n3 is down)"
    )


def test_without_limits_the_partitions_hold(sbatch: Path, tmp_path: Path) -> None:
    submit(plan(tmp_path, []), BuildEngine(kind="slurm", cpus=1))
    script = sbatch.read_text()
    assert not [word for word in ("--time", "--mem", "--account", "--partition", "--wckey") if word in script]
    assert "#SBATCH --cpus-per-task=1\n" in script


def test_a_job_that_submits_is_hidden_from_its_jobs(
    sbatch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin/sbatch"
    program.write_text(f"#!/bin/sh\nenv > {sbatch}; echo Submitted batch job 17\n")
    outer = {"SLURM_JOB_ID": "3", "SLURM_MEM_PER_CPU": "9", "SLURM_CONF": "/etc/slurm.conf"}
    for name, value in outer.items():
        monkeypatch.setenv(name, value)
    submit(plan(tmp_path, []), BuildEngine(kind="slurm"))
    seen = [line for line in sbatch.read_text().splitlines() if line.startswith("SLURM_")]
    assert seen == ["SLURM_CONF=/etc/slurm.conf"]
    assert {name: os.environ.get(name) for name in outer} == outer


def test_an_attempt_skips_what_earlier_ones_left_and_does_torn_lines_again(tmp_path: Path) -> None:
    made = plan(tmp_path, range(12), 3, functools.partial(note, folder=tmp_path))
    (made.folder / "rows").mkdir()
    for attempt, items in enumerate(((1, 4), (7,))):
        for item in items:
            append_line(made.rows_of(1, attempt), json.dumps({"begun": item}))
            append_line(made.rows_of(1, attempt), json.dumps({"item": item, "result": packed(item)}))
    made.rows_of(1, 2).write_text('{"began": "9"}\n{"item": 10, "result": "gASV')
    assert _done(made, 1) == bytearray([1, 1, 1, 0])


def test_a_machine_without_slurm_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    engines = Engines.model_validate({"build": {"kind": "slurm"}})
    with pytest.raises(UsageError, match="has no sbatch"):
        list(map_groups(environment, ["A"], engines, folder=tmp_path / "jobs"))


@pytest.mark.parametrize(
    ("block", "says"),
    [
        ({"account": "lab"}, "account needs kind: slurm"),
        ({"kind": "dask"}, "kind: dask and address belong together"),
        ({"kind": "slurm", "address": "tcp://a:1"}, "kind: dask and address belong together"),
        ({"kind": "dask", "address": "a:1"}, "should match pattern"),
        ({"kind": "dask", "address": "tcp://a:1", "workers": 2}, "workers: the Dask cluster has its own"),
        ({"kind": "slurm", "extra": {"time": "1"}}, "extra: time is a key of its own"),
        ({"kind": "slurm", "extra": {"mem": "1"}}, "extra: mem is given by the key memory"),
        ({"kind": "slurm", "extra": {"output": "x"}}, "extra: output is set by Tarmac"),
        ({"kind": "slurm", "extra": {"--qos": "x"}}, "'--qos' is not a long option"),
        ({"kind": "slurm", "extra": {"qos": "x\nrm"}}, "more than one line"),
        ({"kind": "slurm", "extra": {"exclusive": False}}, "extra"),
    ],
)
def test_each_mistake_is_named(block: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError) as caught:
        BuildEngine.model_validate(block)
    assert says in str(caught.value)


def test_shares_hold_every_item_once(tmp_path: Path) -> None:
    items = [Job(n, Path("/x"), 0.5) for n in range(9)]
    made = plan(tmp_path, items, 4)
    assert (made.count, made.shares) == (9, 4)
    found = dict(pair for share in range(4) for pair in made.items_of(share))
    assert [found[number] for number in range(9)] == items
    assert [made.size_of(share) for share in range(4)] == [3, 2, 2, 2]


def test_a_job_counts_as_lost_only_after_its_last_rows_had_time(
    sbatch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that has left the queue before anybody looked."""
    (tmp_path / "bin/squeue").symlink_to("/bin/true")
    monkeypatch.setattr(slurm_queue, "SEEN_S", 1.0)
    first, _ = submit(plan(tmp_path, []), BuildEngine(kind="slurm"))
    assert not first.is_alive() and first.was_just_alive()
    time.sleep(1.1)
    assert not first.was_just_alive()


def test_only_work_that_ends_three_jobs_is_given_up() -> None:
    tally, share = MapTally(10), MapShare(0, left=10)
    outcomes = []
    for item in range(6):
        share.begin(SlurmJob(str(item), "x", 1))
        share.take_row({"begun": item})
        share.take_row({"begun": 9})
        share.take_row({"item": item, "result": None})
        assert tally.add_result(item)
        outcomes.append(tally.add_end(share))
        if item == 1:
            assert tally.add_result(9)
    assert outcomes == [False] * 6
    assert not tally.add_result(9)
    share.begin(SlurmJob("a", "x", 1))
    for attempt in range(3):
        share.begin(SlurmJob(str(attempt), "x", 1))
        share.take_row({"begun": 7})
        share.take_row({"item": 8, "result": None})
        assert tally.add_end(share) == (attempt == 2)
    idle = MapShare(1, left=10)
    assert [tally.add_end(idle) for _ in range(3)] == [False, False, True]
