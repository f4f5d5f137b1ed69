"""The gatherer with the real wandb client: every row once, on its axis, whatever is killed and whenever."""

from __future__ import annotations

import itertools
import json
import platform
import random
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from blake3 import blake3

from flows.commands import runs as run_commands
from flows.commands.gather import gather
from tasks.core import config as configs
from tasks.core.errors import TarmacError, UsageError
from tasks.core.files import append_line, link_atomic, read_json, write_atomic, write_json
from tasks.core.lock import Lease
from tasks.core.process import Identity
from tasks.runs import metrics, provenance, record
from tasks.runs.folder import RunFolder
from tasks.runs.plan import plan
from tasks.supervision import launch
from tasks.supervision.attempt.journal import AttemptJournal
from tasks.supervision.tracking import gatherer, gathering, wandb_file
from tasks.supervision.tracking.tensorboard_files import TensorBoardFiles
from tests.supervision import fakes
from tests.supervision.conftest import processes_of
from tests.supervision.fakes import make_config, make_run
from tests.supervision.test_agent import wait_for
from tests.supervision.tracking.test_wandb_file import is_finished
from tests.supervision.tracking.wandb_server import Server, serving


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with serving() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
        yield server


def write_rows(run: RunFolder, first: int, last: int, pause_s: float = 0.0) -> None:
    writer = metrics.MetricsWriter(run.metrics)
    for step in range(first, last + 1):
        writer.append(metrics.make_row("train/step", step, "train", {"train/loss": 1 / step}))
        time.sleep(pause_s)


def write_rows_until(run: RunFolder, is_over: threading.Event) -> None:
    for step in itertools.count(1):
        if is_over.wait(0.1):
            return
        write_rows(run, step, step)


def assert_gathered(run: RunFolder) -> None:
    """The union of the run's `.wandb` files holds every row and every evaluation once."""
    assert gathering.is_complete(run)
    counts = Counter(row["uid"] for row in wandb_file.rows_of(run.wandb))
    assert counts.most_common(1)[0][1] == 1
    evaluations = {row["uid"] for row in gatherer.evaluation_rows(run)}
    assert set(counts) == {row["uid"] for row in metrics.read_metrics(run.metrics)[0]} | evaluations


def assert_reached(run: RunFolder, server: Server) -> None:
    """The server, which keeps one row a `_step`, has every row and every evaluation once."""
    evaluations = [row["uid"] for row in gatherer.evaluation_rows(run)]
    wanted = [*(row["uid"] for row in metrics.read_metrics(run.metrics)[0]), *evaluations]
    assert Counter(server.uids(wandb_id(run))) == Counter(wanted)


def gather_quickly(run: RunFolder, finish_s: float = 1) -> None:
    """As the gatherer does, but with short waits for a server, and of `finish_s` for the end of an upload."""
    code = (
        "import sys; from tasks.supervision.tracking import gatherer, wandb_run\n"
        f"wandb_run.INIT_TIMEOUT_S = 2; wandb_run.FINISH_TIMEOUT_S = {finish_s}\n"
        f"gatherer.REST_TIMEOUT_S = {finish_s}\n"
        f"sys.exit(gatherer.main({str(run.path)!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def set_mode(run: RunFolder, mode: str) -> None:
    config = configs.reload(run.config)
    track = config.track.model_copy(update={"mode": mode})
    write_atomic(run.config, configs.dump(config.model_copy(update={"track": track})))


def test_the_best_checkpoint_is_what_wandbs_summary_ends_with(tmp_path: Path) -> None:
    evaluate = {"every": 20, "tasks": ["zero_shot"], "best": "zero_shot_top1"}
    run = make_run(tmp_path, track={"mode": "offline"}, evaluate=evaluate)
    for step in (20, 40):
        fakes.save(run, step, b"weights")
        fakes.evaluate(run.path, step, "zero_shot")
        write_json(run.eval_result(step), {"global_step": step, "results": {"zero_shot_top1": step / 100}})
    for step in (40, 20):
        link_atomic(run.best, run.checkpoint(step).name)
        assert not gathering.is_complete(run), "another choice is to be gathered too"
        gathering.complete(run)
    rows = [row for row in wandb_file.rows_of(run.wandb) if "best/step" in row]
    assert [(row["best/step"], row["best/zero_shot_top1"]) for row in rows] == [(40, 0.4), (20, 0.2)]


@pytest.mark.proof
def test_the_goodput_of_each_life_is_gathered_once(tmp_path: Path) -> None:
    run = make_run(tmp_path, {"die_at": 12, "says": "x"}, track={"mode": "offline"})
    launch.start_or_adopt(run)
    launch.follow(run, lambda status: not status.agent_is_alive)
    (run.path / "fake.json").write_text("{}")
    launch.start_or_adopt(run)
    launch.wait_for_evaluations(run)
    gathering.complete(run)
    rows = [row for row in wandb_file.rows_of(run.wandb) if "goodput/share" in row]
    assert [row["train/step"] for row in rows] == [12, 40]
    first, last = (row["goodput/training_s"] for row in rows)
    assert 0 < first < last and 0 < rows[1]["goodput/share"] < 1 and rows[1]["goodput/restarting_s"] > 0
    assert gathering.is_complete(run)


def test_rows_and_evaluations_lie_on_their_axes(tmp_path: Path) -> None:
    run = make_run(tmp_path, track={"mode": "offline", "project": "numbers"})
    write_rows(run, 1, 3)
    validation = metrics.make_row("train/step", 3, "val", {"val/loss": float("nan")})
    metrics.MetricsWriter(run.metrics).append(validation)
    fakes.evaluate(run.path, 20, "zero_shot")
    gathering.complete(run)
    assert_gathered(run)
    (path,) = wandb_file.files_of(run.wandb)
    found = wandb_file.read_wandb_file(path)
    assert path.name == f"run-{wandb_id(run)}.wandb" and is_finished(path)
    assert found.axes == {
        "train/step": "",
        "eval/step": "",
        "train/*": "train/step",
        "val/*": "train/step",
        "data/*": "train/step",
        "val/loss": "train/step",
        "system/*": "train/step",
        "eval/*": "eval/step",
        "best/*": "eval/step",
        "goodput/*": "train/step",
    }
    by_uid = {row["uid"]: row for row in found.rows}
    assert by_uid["train/step:2:train"]["train/loss"] == 0.5
    assert by_uid["train/step:3:val"]["val/loss"] is None
    (uid,) = (uid for uid in by_uid if uid.startswith("eval/step:20:eval/zero_shot:"))
    evaluation = by_uid[uid]
    assert (evaluation["eval/step"], evaluation["eval/zero_shot/top1"]) == (20, 0.2)
    assert found.config["data/accepted"] == 100 and found.config["data/rejects"] == 2
    assert found.config["batch_size"] == 4
    assert not list(run.wandb.glob("*/files/*")), "no code, no requirements, no system facts are kept"


def test_gathered_again_nothing_is_written(tmp_path: Path) -> None:
    run = make_run(tmp_path, track={"mode": "offline"})
    write_rows(run, 1, 3)
    gathering.complete(run)
    files = wandb_file.files_of(run.wandb)
    gathering.start_gatherer(run).wait(timeout=120)
    assert wandb_file.files_of(run.wandb) == files
    write_rows(run, 4, 4)
    assert not gathering.is_complete(run)
    gathering.complete(run)
    assert_gathered(run)


@pytest.mark.proof
def test_sigkill_at_many_moments_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """Killed while it starts, right after a flush, and with rows that wait for the next flush."""
    run = make_run(tmp_path, track={"mode": "offline"})
    writing = threading.Thread(target=write_rows, args=(run, 1, 160, 0.05))
    with Lease(run.lease):  # stands for the agent: the gatherer stays as long as it
        writing.start()
        for after_flush_s in (None, 0.0, 0.6):
            before = len(wandb_file.rows_of(run.wandb))
            process = gathering.start_gatherer(run)
            if after_flush_s is None:
                time.sleep(0.2)
            else:
                wait_for(lambda before=before: len(wandb_file.rows_of(run.wandb)) > before)
                time.sleep(after_flush_s)
            process.kill()
            process.wait()
        process = gathering.start_gatherer(run)
        writing.join()
    assert process.wait(timeout=120) == 0
    assert_gathered(run)
    assert len(metrics.read_metrics(run.metrics)[0]) == 160
    assert len(wandb_file.files_of(run.wandb)) > 1


@pytest.mark.proof
@pytest.mark.parametrize(
    ("mode", "kills"),
    [
        ("offline", 20),
        ("online", 20),
    ],
)
def test_killed_at_random_moments_with_a_late_evaluation_the_server_has_every_row_once(
    tmp_path: Path, server: Server, mode: str, kills: int
) -> None:
    """The server keeps one row a `_step`, whichever file it is from; half of the kills hit a working gatherer."""
    run = make_run(tmp_path, track={"mode": mode})
    moments = random.Random(20)
    is_over = threading.Event()
    writing = threading.Thread(target=write_rows_until, args=(run, is_over))
    with Lease(run.lease):
        writing.start()
        for number in range(kills):
            before = len(wandb_file.rows_of(run.wandb))
            process = gathering.start_gatherer(run)
            if number % 2:
                wait_for(lambda before=before: len(wandb_file.rows_of(run.wandb)) > before)
            time.sleep(moments.uniform(0.0, 1.2))
            process.kill()
            process.wait()
        process = gathering.start_gatherer(run)
        is_over.set()
        writing.join()
    assert process.wait(timeout=120) == 0
    fakes.evaluate(run.path, 20, "zero_shot")
    gathering.complete(run)
    assert_gathered(run)
    assert len(wandb_file.files_of(run.wandb)) > kills / 2
    gathering.sync(run)
    assert_reached(run, server)


@pytest.mark.proof
def test_a_row_with_a_null_that_is_mended_later_reaches_wandb(tmp_path: Path, server: Server) -> None:
    run = make_run(tmp_path, track={"mode": "offline"})
    writer = metrics.MetricsWriter(run.metrics)
    write_rows(run, 1, 2)
    for loss in (float("nan"), float("nan"), 0.25):  # a step that a resumed training did again
        writer.append(metrics.make_row("train/step", 3, "train", {"train/loss": loss}))
        gathering.complete(run)
    gathering.start_gatherer(run).wait(timeout=120)
    gathering.sync(run)
    rows = [row for _, row in sorted(server.rows[wandb_id(run)].items())]
    assert [row["train/loss"] for row in rows] == [1.0, 0.5, None, 0.25]
    assert rows[2]["uid"] == rows[3]["uid"]


@pytest.mark.proof
def test_a_gatherer_that_dies_again_and_again_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "PAUSE_S", 0.05)
    monkeypatch.setattr(gathering, "LONGEST_PAUSE_S", 0.5)
    run = make_run(tmp_path, track={"mode": "offline"})
    keeper = gathering.GathererKeeper(run, is_wanted=True)
    run.wandb.mkdir()
    with Lease(run.lease):
        for _ in range(7):
            wait_for(lambda: keeper.keep() or processes_of(run.path))
            for process in processes_of(run.path):
                process.kill()
                wait_for(lambda process=process: not process.is_running() or process.status() == "zombie")
        write_rows(run, 1, 3)
        wait_for(lambda: keeper.keep() or len(wandb_file.rows_of(run.wandb)) == 3)
    wait_for(lambda: gathering.is_complete(run))


@pytest.mark.proof
def test_a_core_that_outlives_its_gatherer_does_not_write_behind_the_next(tmp_path: Path) -> None:
    run = make_run(tmp_path, track={"mode": "offline"})
    with Lease(run.lease):
        write_rows(run, 1, 5)
        first = gathering.start_gatherer(run)
        wait_for(lambda: len(wandb_file.rows_of(run.wandb)) == 5)
        core = Identity.from_json(read_json(run.wandb_core))
        process = psutil.Process(core.pid)
        process.suspend()  # so it does not notice its gatherer's death
        wait_for(lambda: process.status() == psutil.STATUS_STOPPED)
        write_rows(run, 6, 10)
        time.sleep(1.0)
        first.kill()
        first.wait()
        assert core.is_alive()
        second = gathering.start_gatherer(run)
        wait_for(lambda: not core.is_alive())
    assert second.wait(timeout=120) == 0
    assert_gathered(run)


@pytest.mark.proof
def test_two_gatherers_at_once_write_once(tmp_path: Path) -> None:
    run = make_run(tmp_path, track={"mode": "offline"})
    with Lease(run.lease):
        first, second = gathering.start_gatherer(run), gathering.start_gatherer(run)
        write_rows(run, 1, 20)
        wait_for(lambda: run.gatherer_lease.exists())
    assert (first.wait(timeout=120), second.wait(timeout=120)) == (0, 0)
    assert_gathered(run)


@pytest.mark.proof
def test_a_dead_server_costs_a_bounded_wait_and_leaves_offline_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    run = make_run(tmp_path, track={"mode": "online"})
    write_rows(run, 1, 5)
    began = time.monotonic()
    gather_quickly(run)
    assert time.monotonic() - began < 60
    assert_gathered(run)
    upload = gathering.upload(run)
    assert upload == f"offline, the server cannot be reached; tarmac gather {run.handle} --sync"
    with pytest.raises(TarmacError, match=r"not uploaded, .*; check WANDB_BASE_URL"):
        gathering.sync(run, timeout_s=3)


@pytest.mark.proof
def test_what_reaches_the_server_needs_no_upload(tmp_path: Path, server: Server) -> None:
    run = make_run(tmp_path, track={"mode": "online"})
    write_rows(run, 1, 5)
    gathering.complete(run)
    assert gathering.upload(run) is None
    assert server.uids(wandb_id(run)) == [f"train/step:{step}:train" for step in range(1, 6)]
    assert wandb_id(run) in server.ended and gathering.sync(run) == 0


@pytest.mark.parametrize(
    ("status", "why", "finish_s"),
    [
        (401, "the key was refused", 30),  # which ends the upload at once, on a machine that is not busy
        pytest.param(500, "did not confirm the upload", 1, marks=pytest.mark.proof),
    ],
)
def test_rows_that_the_server_did_not_take_are_told_of_and_uploaded_later(
    tmp_path: Path, server: Server, status: int, why: str, finish_s: float
) -> None:
    run = make_run(tmp_path, track={"mode": "online"})
    write_rows(run, 1, 5)
    server.status = status
    gather_quickly(run, finish_s)
    assert_gathered(run)
    assert server.uids(wandb_id(run)) == []
    assert why in (gathering.upload(run) or "")
    if status == 401:  # the client tries again for long after another
        with pytest.raises(TarmacError, match="not uploaded, the server refused the rows"):
            gathering.sync(run)
    server.status = 200
    assert gathering.sync(run) == 1
    assert len(server.uids(wandb_id(run))) == 5 and wandb_id(run) in server.ended
    assert gathering.upload(run) is None


@pytest.mark.proof
def test_what_was_gathered_offline_is_not_called_online(tmp_path: Path) -> None:
    run = make_run(tmp_path, track={"mode": "offline"})
    write_rows(run, 1, 3)
    gathering.complete(run)
    command = f"tarmac gather {run.handle} --sync"
    assert gathering.upload(run) == command
    set_mode(run, "online")
    assert not gathering.is_complete(run)
    gathering.complete(run)
    assert gathering.upload(run) == f"offline, there is no key; {command}"


def test_what_wandb_refuses_offline_too_is_an_error_and_no_other_try(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    run.wandb.mkdir()
    code = (
        "from pathlib import Path; from tasks.runs.folder import RunFolder; from tasks.supervision.tracking import wandb_run\n"
        f"try: wandb_run.WandbRun(RunFolder(Path({str(run.path)!r})), 'offline', 'my/lab', dict).log({{'uid': 'mine'}})\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith(f"TarmacError wandb cannot open run {run.name}: Invalid project name")


@pytest.mark.proof
def test_an_evaluation_that_is_done_again_is_gathered_again(tmp_path: Path) -> None:
    run = make_run(tmp_path, track={"mode": "offline"})
    fakes.evaluate(run.path, 20, "zero_shot")
    path = run.evaluation(20, "zero_shot")
    whole = path.read_bytes()
    path.write_bytes(whole[:50])
    assert gathering.results_of(run) == {}
    gathering.complete(run)
    write_atomic(path, whole)
    gathering.complete(run)
    write_atomic(path, whole.replace(b'"top1": 0.2', b'"top1": 0.3'))
    assert not gathering.is_complete(run)
    gathering.complete(run)
    rows = wandb_file.rows_of(run.wandb)
    assert [row["eval/zero_shot/top1"] for row in rows] == [0.2, 0.3]
    assert len({row["uid"] for row in rows}) == 2


def test_a_foreign_row_does_not_stop_the_gathering(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path, track={"mode": "offline"})
    write_rows(run, 1, 2)
    append_line(run.metrics, '{"uid": 7, "train/step": 3, "train/loss": 0.5}')
    fakes.evaluate(run.path, 40, "zero_shot")
    write_atomic(run.eval_result(700), '{"global_step": 700, "results": {"mmstar_average": 0.41}}')
    assert gather(run.name, runs=run.path.parent, as_json=True) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["runs"][0]["skipped"] == ["metrics.jsonl line 3: its uid is 7, which is no text"]
    assert gathering.is_complete(run)
    rows = wandb_file.rows_of(run.wandb)
    assert len(rows) == 4 and rows[-1]["eval/mmstar_average"] == 0.41 and rows[-1]["eval/step"] == 700


def test_each_kind_of_unusable_file_is_named_and_the_others_are_gathered(tmp_path: Path) -> None:
    run = make_run(tmp_path, track={"mode": "offline"})
    fakes.evaluate(run.path, 20, "zero_shot")
    whole = run.evaluation(20, "zero_shot").read_text()
    for step, content in {
        30: whole[:50],
        40: "",
        50: "[1]",
        60: whole.replace('"step": 20', '"step": "late"'),
        70: whole,  # a copy of another step's
        80: whole.replace('"step": 20', '"step": 80').replace('"top1": 0.2', '"top1": NaN', 1),
        90: whole.replace('"step": 20', '"step": 90').replace('"top1": 0.2', '"top1": "high"', 1),
        95: re.sub(r'"metrics": \{[^}]*\}', '"metrics": {}', whole.replace('"step": 20', '"step": 95')),
    }.items():
        write_atomic(run.evaluation(step, "zero_shot"), content)
    write_atomic(run.evaluations / "zero_shot.json", whole)
    for name, content in {
        "step_700.json": '{"global_step": 700, "results": {"mmstar_average": 0.41}}',
        "step_701.json": '{"global_step": 702, "results": {"mmstar_average": 0.41}}',
        "step_703.json": '{"global_step": 703, "results": {}}',
        "step_704.json": '{"global_step": 704, "results": {"mmstar_average": "high"}}',
        "step_705.json": '{"global_st',
        "newest.json": '{"global_step": 706, "results": {"mmstar_average": 0.41}}',
    }.items():
        write_atomic(run.eval_results / name, content)
    gathering.complete(run)
    rows = {row["eval/step"]: row for row in wandb_file.rows_of(run.wandb)}
    assert sorted(rows) == [20, 80, 700] and rows[80]["eval/zero_shot/top1"] is None
    assert rows[700]["eval/mmstar_average"] == 0.41
    named = dict(line.split(": ", 1) for line in gathering.faults(run))
    expected = {
        "evaluations/step_30/zero_shot.json": "it is torn or not JSON: ",
        "evaluations/step_40/zero_shot.json": "it is torn or not JSON: ",
        "evaluations/step_50/zero_shot.json": "it is torn or not JSON: ",
        "evaluations/step_60/zero_shot.json": "step: ",
        "evaluations/step_70/zero_shot.json": "it is about zero_shot of step 20, but its path is not",
        "evaluations/step_80/zero_shot.json": "metrics.top1: not finite, so it is null",
        "evaluations/step_90/zero_shot.json": "metrics.top1: ",
        "evaluations/step_95/zero_shot.json": "metrics: is empty",
        "evaluations/zero_shot.json": "it lies in no folder step_<N>",
        "eval_results/step_701.json": "it is about step 702, but its name is not",
        "eval_results/step_703.json": "results: is empty",
        "eval_results/step_704.json": "results.mmstar_average: ",
        "eval_results/step_705.json": "it is torn or not JSON: ",
        "eval_results/newest.json": "its name is not step_<N>.json",
    }
    assert named.keys() == expected.keys()
    assert {name: why[: len(expected[name])] for name, why in named.items()} == expected


def test_a_server_that_is_away_at_the_start_gets_every_row_once_it_answers(
    tmp_path: Path, server: Server
) -> None:
    """While the run goes on; TensorBoard's files have the rows meanwhile."""
    run = make_run(tmp_path, track={"mode": "online"})
    server.mode = "401"
    run.wandb.mkdir()
    code = (
        "import sys, logging; from tasks.supervision.tracking import gatherer\n"
        "logging.basicConfig(); gatherer.RETRY_S = 2.0\n"
        f"sys.exit(gatherer.main({str(run.path)!r}))"
    )
    with Lease(run.lease), run.gatherer_log.open("wb") as log:  # stands for the agent
        write_rows(run, 1, 5)
        process = subprocess.Popen([sys.executable, "-c", code], stderr=log)
        refused = "the next try is in 2 s: the key was refused"
        wait_for(lambda: refused in run.gatherer_log.read_text())
        wait_for(lambda: len(TensorBoardFiles(run).recorded()) == 5)
        server.mode = "ok"
        write_rows(run, 6, 7)
        wait_for(lambda: len(server.rows.get(wandb_id(run), {})) == 7)
        assert process.poll() is None
    assert process.wait(timeout=60) == 0
    assert_reached(run, server)
    assert gathering.upload(run) is None and gathering.is_complete(run)


@pytest.mark.proof
def test_what_a_refused_upload_left_is_uploaded_at_the_runs_end_by_itself(
    tmp_path: Path, server: Server
) -> None:
    run = make_run(tmp_path, track={"mode": "online"})
    with Lease(run.lease):
        write_rows(run, 1, 5)
        server.status = 401
        process = gathering.start_gatherer(run)
        wait_for(lambda: len(wandb_file.rows_of(run.wandb)) == 5)
        time.sleep(3)
        server.status = 200
    assert process.wait(timeout=120) == 0
    assert_reached(run, server)
    assert gathering.upload(run) is None


def test_the_tracked_run_shows_where_it_comes_from(tmp_path: Path) -> None:
    run = make_run(
        tmp_path,
        track={"mode": "offline"},
        engine={"train": {"setup": ["export TOKEN=abc"], "kind": "slurm"}},
    )
    fakes.save(run, 20, b"weights")
    fakes.evaluate(run.path, 20, "zero_shot")
    lease = Lease(run.lease)
    with lease:
        AttemptJournal(run, lease).begin()
    gathering.complete(run)
    (path,) = wandb_file.files_of(run.wandb)
    found = wandb_file.read_wandb_file(path)
    [data] = found.config["data"]
    version = data["version"]
    assert (tmp_path / "data" / "versions" / version).is_dir()
    assert data["samples"] == {"train": 80, "val": 20} and data["accepted"] == 100 and data["rejects"] == 2
    assert found.config["code"] == provenance.code_digest()
    assert found.config["versions"]["python"] == platform.python_version()
    assert found.config["host"] == Identity.mine().host and found.config["attempt"] == 1
    assert found.config["config"]["train"]["lr"] == 1e-3 and found.config["config"]["evaluate"]["tasks"]
    assert b"abc" not in path.read_bytes(), "the set-up lines of a job may hold a key"
    [row] = found.rows
    assert row["eval/zero_shot/weights"] == blake3(b"weights").hexdigest()[:12]


def test_a_run_that_starts_anew_has_a_wandb_run_of_its_own(tmp_path: Path) -> None:
    run = make_run(tmp_path, track={"mode": "offline"})
    (version,) = (tmp_path / "data" / "versions").iterdir()
    before = wandb_id(run)
    plan(configs.reload(run.config), version, fresh=True)
    write_rows(run, 1, 1)
    gathering.complete(run)
    (path,) = wandb_file.files_of(run.wandb)
    assert path.stem == f"run-{wandb_id(run)}" and wandb_id(run) != before


@pytest.mark.proof
def test_two_runs_that_differ_in_name_only_are_two_everywhere(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also in two folders of runs, as two colleagues have them, in one project."""
    monkeypatch.chdir(tmp_path)
    first = make_run(tmp_path, track={"mode": "online"})
    (version,) = (tmp_path / "data" / "versions").iterdir()
    others = [
        plan(make_config(tmp_path, track={"mode": "online"}, name="twin"), version),
        plan(make_config(tmp_path, track={"mode": "online"}, runs=str(tmp_path / "theirs")), version),
    ]
    runs = [first, *others]
    assert len({run.id for run in runs}) == 1
    for run in runs:
        write_rows(run, 1, 2)
        gathering.complete(run)
    assert [len(server.uids(wandb_id(run))) for run in runs] == [2, 2, 2]
    for run in runs:
        assert run_commands.cancel(run.handle) == 0, "the handle that messages give fits one run"
        assert f"{run.name} is not running" in capsys.readouterr().out


def wandb_id(run: RunFolder) -> str:
    found = record.load_record(run).wandb_id
    assert found is not None and found.startswith(run.id)
    return found


def test_a_damaged_file_is_gathered_anew_and_not_in_the_way(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = make_run(tmp_path, track={"mode": "offline"})
    write_rows(run, 1, 3)
    damaged = run.wandb / f"offline-run-20250101_000000-{run.id}" / f"run-{run.id}.wandb"
    write_atomic(damaged, bytes(4096))
    gathering.complete(run)
    assert_gathered(run)
    assert f"{damaged} counts as empty" in caplog.text
    assert damaged not in gathering.not_uploaded(run)


def test_disabled_tracking_writes_nothing(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    write_rows(run, 1, 3)
    assert gathering.start_gatherer(run).wait(timeout=120) == 0
    assert wandb_file.files_of(run.wandb) == []
    assert not run.tensorboard.exists()
    with pytest.raises(UsageError, match=r"track\.mode"):
        gather(run.name, runs=run.path.parent)


def test_the_environment_keeps_the_account_only() -> None:
    base = {"WANDB_API_KEY": "k", "WANDB_RUN_ID": "other", "WANDB_MODE": "disabled", "HOME": "/h"}
    found = gathering.environment(base)
    assert found["WANDB_API_KEY"] == "k" and found["HOME"] == "/h"
    assert "WANDB_RUN_ID" not in found and "WANDB_MODE" not in found
    assert found["WANDB_HTTP_TIMEOUT"] == "5"
