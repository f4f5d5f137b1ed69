"""What a map on Slurm writes down, submits and concludes; nothing here needs a Slurm."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tasks.core.engines import map_groups, slurm
from tasks.core.engines.slurm import Share, Tally
from tasks.core.engines.slurm_job import Call, Plan, _done, silence_s
from tasks.core.engines.slurm_queue import Queue
from tasks.core.errors import UsageError
from tasks.core.files import append_line
from tasks.core.schema.engine import BuildEngine, Engines
from tests.core.engines.functions import Done, Job, environment, note, work

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
#SBATCH --signal=USR2@90
#SBATCH --time=360

# setup
module load cuda
export PYTHONSAFEPATH=1

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --output {logs}/%A_%a_%t_log.out --cpus-per-task=8 PYTHON -u -m submitit.core._submit {logs}
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


def plan(folder: Path, items: Any, jobs: int = 2, function: Any = work) -> Plan:
    return Plan.write(folder / "map", Call.of(function), items, jobs, workers=1, silence_s=1.0)


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
    assert Queue("tarmac-build-1").submit(made, engines.for_build(), [(0, 0), (1, 0)]) == ["17_0", "17_1"]
    assert sbatch.read_text().rstrip() == GOLDEN.format(logs=made.logs).rstrip()


def test_without_limits_the_partitions_hold(sbatch: Path, tmp_path: Path) -> None:
    Queue("x").submit(plan(tmp_path, []), BuildEngine(kind="slurm"), [(0, 0)])
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
    Queue("x").submit(plan(tmp_path, []), BuildEngine(kind="slurm"), [(0, 0)])
    seen = [line for line in sbatch.read_text().splitlines() if line.startswith("SLURM_")]
    assert seen == ["SLURM_CONF=/etc/slurm.conf"]
    assert {name: os.environ.get(name) for name in outer} == outer


def test_an_attempt_skips_what_earlier_ones_left_and_does_torn_lines_again(tmp_path: Path) -> None:
    made = plan(tmp_path, range(12), 3, functools.partial(note, folder=tmp_path))
    (made.folder / "rows").mkdir()
    for attempt, items in enumerate(((1, 4), (7,))):
        for item in items:
            append_line(made.rows_of(1, attempt), json.dumps({"begun": item}))
            append_line(made.rows_of(1, attempt), json.dumps({"item": item, "result": item}))
    made.rows_of(1, 2).write_text('{"began": "9"}\n{"item": 10, "result": {"a":')
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
        ({"kind": "slurm", "extra": {"--qos": "x"}}, "'--qos' is no long option"),
        ({"kind": "slurm", "extra": {"qos": "x\nrm"}}, "more than one line"),
        ({"kind": "slurm", "extra": {"exclusive": False}}, "extra"),
    ],
)
def test_each_mistake_is_named(block: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError) as caught:
        BuildEngine.model_validate(block)
    assert says in str(caught.value)


@pytest.mark.parametrize("items", [range(3, 30, 3), [Job(n, Path("/x"), 0.5) for n in range(9)]])
def test_shares_hold_every_item_once_and_come_back_typed(items: Any, tmp_path: Path) -> None:
    function = work if isinstance(items, list) else functools.partial(note, folder=tmp_path)
    plan(tmp_path, items, 4, function)
    read = Plan.read(tmp_path / "map")
    assert (read.count, read.shares) == (9, 4)
    found = dict(pair for share in range(4) for pair in read.items_of(share))
    assert [read.call.item.validate_python(found[number]) for number in range(9)] == list(items)
    assert [read.size_of(share) for share in range(4)] == [3, 2, 2, 2]


def test_a_call_travels_as_json(tmp_path: Path) -> None:
    call = Call.of(functools.partial(note, folder=tmp_path))
    assert call == Call("tests.core.engines.functions:note", {"folder": str(tmp_path)})
    assert call.function(4) == 16
    done = Done(1, tmp_path, 2)
    kind = Call.of(work).result
    assert kind.validate_python(kind.dump_python(done, mode="json")) == done
    for nameless in (lambda x: x, functools.partial(work, Job(1, tmp_path))):
        with pytest.raises(TypeError):
            Call.of(nameless)


def test_a_job_counts_as_lost_only_after_its_last_rows_had_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "GRACE_S", 10.0)
    share = Share(0, left=3)
    share.begin("17_0")
    assert share.state("PENDING", 0.0) == "waiting"
    assert share.state("RUNNING", 1.0) == "running"
    assert share.state(None, 2.0) == "running"
    assert share.state("REQUEUED", 11.0) == "running"
    assert [share.state(None, now) for now in (20.0, 29.0, 30.0)] == ["running", "running", "lost"]
    share.take_row({"end": "time"})
    assert share.state("COMPLETING", 31.0) == "spent"


def test_only_work_that_ends_three_jobs_is_given_up() -> None:
    tally, share = Tally(10), Share(0, left=10)
    outcomes = []
    for item in range(6):
        share.begin(str(item))
        share.take_row({"begun": item})
        share.take_row({"begun": 9})
        share.take_row({"item": item, "result": None})
        assert tally.add_result(item)
        outcomes.append(tally.add_end(share))
        if item == 1:
            assert tally.add_result(9)
    assert outcomes == [False] * 6
    assert not tally.add_result(9)
    share.begin("a")
    for attempt in range(3):
        share.begin(str(attempt))
        share.take_row({"begun": 7})
        share.take_row({"item": 8, "result": None})
        assert tally.add_end(share) == (attempt == 2)
    idle = Share(1, left=10)
    assert [tally.add_end(idle) for _ in range(3)] == [False, False, True]


def test_a_starters_silence_is_told_by_the_file_systems_clock(tmp_path: Path) -> None:
    heartbeat, alive = tmp_path / "heartbeat", tmp_path / "alive"
    heartbeat.write_text(".")
    assert silence_s(heartbeat, alive) < 1
    heartbeat.unlink()
    assert silence_s(heartbeat, alive) == float("inf")
    assert silence_s(heartbeat, tmp_path / "gone/alive") == float("inf")
