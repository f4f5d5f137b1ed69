"""Killing it anywhere loses nothing: the same command again ends in the same weights, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.core.files import read_json
from tests.pipeline.conftest import Project, make_project
from tests.pipeline.evidence import assert_wandb_holds_everything_once, metrics, results, weights

pytestmark = pytest.mark.system  # beside a real Prefect server, which is what outlives the killed

SHORT = (
    "train.steps=36",
    "train.checkpoint_every=12",
    "train.log_every=4",
    "evaluate.every=12",
    "train.batch_size=32",
)
ONE_EVALUATION = "evaluate.every=36"
"""Where evaluations are not what a test is about: each costs a process and its imports."""
COMMAND = ("run", "configs/digits-clip.yaml")


def steps_done(project: Project) -> int:
    return (
        max((row["train/step"] for row in metrics(project.run)), default=0)
        if project.has("runs/*/run.json")
        else 0
    )


def state(project: Project) -> str:
    return str(read_json(project.run / "run.json")["state"]) if project.has("runs/*/run.json") else ""


MOMENTS: dict[str, Callable[[Project], object]] = {
    "build": lambda project: project.has("data/digits/staging/*.tar"),
    "tune": lambda project: project.has("runs/*/run.json") and not project.has("runs/*/loader.json"),
    "train": lambda project: steps_done(project) >= 16,
    "evaluate": lambda project: state(project) == "succeeded" and len(results(project.run)) < 3,
    "gather": lambda project: state(project) == "succeeded" and len(results(project.run)) == 3,
}
"""How the disk shows that a stage is at work."""


@pytest.fixture(scope="module")
def undisturbed(
    server: dict[str, str], tmp_path_factory: pytest.TempPathFactory, raw_digits: Path
) -> Project:
    project = make_project(tmp_path_factory.mktemp("undisturbed") / "project", server, raw_digits, *SHORT)
    done = project.tarmac(*COMMAND)
    assert done.returncode == 0, done.stderr
    return project


@pytest.mark.proof
def test_sigkill_of_everything_in_every_stage(
    undisturbed: Project, server: dict[str, str], tmp_path: Path, raw_digits: Path
) -> None:
    project = make_project(tmp_path / "project", server, raw_digits, *SHORT)
    for stage, is_at_work in MOMENTS.items():
        process = project.start(*COMMAND)
        project.wait_for(stage, lambda moment=is_at_work: moment(project), process)  # type: ignore[misc]
        project.kill_everything()
        process.communicate()
    done = project.tarmac(*COMMAND)
    assert done.returncode == 0, done.stderr

    assert weights(project.run) == weights(undisturbed.run)
    assert len(weights(project.run)) == 3
    assert results(project.run) == results(undisturbed.run)
    assert [row["uid"] for row in metrics(project.run)] == [row["uid"] for row in metrics(undisturbed.run)]
    assert_wandb_holds_everything_once(project.run)
    assert_wandb_holds_everything_once(undisturbed.run)
    assert "Zero-shot accuracy" in done.stdout
    versions = [path.name for path in (project.path / "data/digits/versions").iterdir()]
    assert versions == [path.name for path in (undisturbed.path / "data/digits/versions").iterdir()]
    assert project.processes() == []


@pytest.mark.proof
def test_sigkill_of_the_command_alone_leaves_the_training_to_be_adopted(
    undisturbed: Project, server: dict[str, str], tmp_path: Path, raw_digits: Path
) -> None:
    project = make_project(tmp_path / "project", server, raw_digits, *SHORT, ONE_EVALUATION)
    process = project.start(*COMMAND)
    project.wait_for("train", lambda: steps_done(project) >= 4, process)
    process.kill()
    process.communicate()
    # The loader's processes have the rank's command line, as its forks.
    of_rank = {found.pid: found for found in project.processes() if "tasks.training.rank" in found.cmdline()}
    (rank,) = [found for found in of_rank.values() if found.ppid() not in of_rank]
    rank.suspend()  # or it might be over before the next command is that far
    again = project.start(*COMMAND)
    assert again.stderr is not None
    shown = ""
    while "✓ tune" not in shown:
        shown += again.stderr.readline()
    rank.resume()
    shown += again.communicate(timeout=120)[1]
    assert again.returncode == 0, shown
    assert "✓ train     adopted; 36 steps" in shown
    assert len(read_json(project.run / "run.json")["attempts"]) == 1
    assert weights(project.run) == weights(undisturbed.run)


@pytest.mark.proof
def test_ctrl_c_stops_the_watching_only(
    undisturbed: Project, server: dict[str, str], tmp_path: Path, raw_digits: Path
) -> None:
    project = make_project(tmp_path / "project", server, raw_digits, *SHORT, ONE_EVALUATION)
    process = project.start(*COMMAND)
    project.wait_for("train", lambda: steps_done(project) >= 1, process)
    process.send_signal(2)
    _, shown = process.communicate(timeout=60)
    assert process.returncode == 130, shown
    assert "Training goes on as job" in shown
    assert f"tarmac cancel {project.run.name}" in shown
    assert "Traceback" not in shown
    assert project.tarmac("cancel", "digits").returncode == 0
    resumed = project.tarmac(*COMMAND)
    assert resumed.returncode == 0, resumed.stderr
    assert weights(project.run)["step_00000036"] == weights(undisturbed.run)["step_00000036"]


@pytest.mark.proof
def test_stages_that_are_up_to_date_say_so(undisturbed: Project) -> None:
    """Only what is missing is done: here the report, which was deleted."""
    before = weights(undisturbed.run)
    (undisturbed.run / "report.html").unlink()
    again = undisturbed.tarmac(*COMMAND)
    assert again.returncode == 0, again.stderr
    assert again.stderr.count("up to date") == 3
    assert (undisturbed.run / "report.html").exists()
    assert weights(undisturbed.run) == before


@pytest.mark.proof
def test_a_lost_evaluation_is_done_again(undisturbed: Project) -> None:
    (result,) = undisturbed.run.glob("evaluations/step_24/zero_shot.json")
    before = read_json(result)["metrics"]
    done = undisturbed.tarmac("evaluate", "digits", "--step", "24", "--task", "zero_shot")
    assert done.returncode == 0, done.stderr
    assert read_json(result)["metrics"] == before


@pytest.mark.proof
def test_fresh_starts_anew_and_keeps_the_old(undisturbed: Project) -> None:
    done = undisturbed.tarmac("train", "configs/digits-clip.yaml", "--fresh")
    assert done.returncode == 0, done.stderr
    assert undisturbed.has("runs/archive/digits-clip-*/run.json")
    assert len(read_json(undisturbed.run / "run.json")["attempts"]) == 1


@pytest.mark.proof
def test_evaluations_that_are_asked_for_again_are_all_done(undisturbed: Project) -> None:
    before = results(undisturbed.run)
    stamps = {
        path: path.stat().st_mtime_ns for path in undisturbed.run.glob("evaluations/step_*/zero_shot.json")
    }
    done = undisturbed.tarmac("evaluate", "digits", "--task", "zero_shot")
    assert done.returncode == 0, done.stderr
    assert results(undisturbed.run) == before
    assert all(path.stat().st_mtime_ns > stamp for path, stamp in stamps.items())


@pytest.mark.proof
def test_a_config_that_asks_for_more_is_not_up_to_date(undisturbed: Project) -> None:
    trained, measured = weights(undisturbed.run), (undisturbed.run / "loader.json").read_bytes()
    more = "evaluate.tasks=[zero_shot, {kind: zero_shot, name: plain, templates: ['{}']}]"
    done = undisturbed.tarmac(*COMMAND, "--set", more, "--set", "loader.workers=2")
    assert done.returncode == 0, done.stderr
    assert "step_36/plain" in results(undisturbed.run)
    assert (undisturbed.run / "loader.json").read_bytes() == measured, "those that it was trained with"
    assert weights(undisturbed.run) == trained
    assert_wandb_holds_everything_once(undisturbed.run)


@pytest.mark.proof
def test_a_users_own_tasks_module_is_not_in_the_way(undisturbed: Project) -> None:
    (undisturbed.path / "tasks.py").write_text("raise RuntimeError('not for Tarmac')")
    (undisturbed.path / "flows.py").write_text("raise RuntimeError('not for Tarmac')")
    for made in (undisturbed.run / "report.html", undisturbed.run / "loader.json"):
        made.unlink()
    done = undisturbed.tarmac(*COMMAND)
    assert done.returncode == 0, done.stderr
