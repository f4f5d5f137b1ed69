"""The main job on real input: 1,797 digits from PNG files to a report, without a server, and again."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tasks.core.files import read_json
from tests.pipeline.conftest import Project, make_project
from tests.pipeline.evidence import assert_wandb_holds_everything_once, metrics, results

pytestmark = pytest.mark.system
FEWER_STEPS = (
    *("--set", "train.steps=300"),
    *("--set", "train.checkpoint_every=150"),
    *("--set", "evaluate.every=150"),
)
Finished = tuple[Project, subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory, raw_digits: Path) -> Finished:
    """The config as it ships but for half of its steps, run once on Prefect's temporary server."""
    import os

    folder = tmp_path_factory.mktemp("demo")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    project = make_project(folder / "project", {**kept, "PREFECT_HOME": str(folder / "prefect")}, raw_digits)
    return project, project.tarmac("run", "configs/digits-clip.yaml", *FEWER_STEPS)


def test_it_ends_well_with_an_accurate_model(demo: Finished) -> None:
    project, done = demo
    assert done.returncode == 0, done.stderr
    found = results(project.run)
    assert set(found) == {"step_150/zero_shot", "step_300/zero_shot"}
    assert found["step_300/zero_shot"]["top1"] >= 0.90
    assert read_json(project.run / "eval_results/step_300.json")["results"]["zero_shot_top1"] >= 0.90
    assert read_json(project.run / "run.json")["state"] == "succeeded"


def test_its_last_screen_says_what_happened_and_where_things_are(demo: Finished) -> None:
    project, done = demo
    for line in (
        r"✓ build +1,797 read = 1,797 accepted; 10 of 10 shards written",
        r"✓ verify +[0-9a-f]{12}: sound",
        r"✓ tune +[012] workers?: [\d,]+ samples/s( \(([012] workers?: [\d,]+(, )?)+\))?",
        r"✓ train +300 steps, loss \d+\.\d\d → \d+\.\d\d, waiting for data \d+\.\d %",
        r"✓ evaluate +2 checkpoints, 2 of 2 results",
        r"✓ gather +metrics and 2 evaluations in wandb run [0-9a-f]{12}-[0-9a-f]{8} \(offline\)",
        r"✓ report +report.html",
    ):
        assert re.search(line, done.stderr), (line, done.stderr)
    headline = (
        r"Zero-shot accuracy 0\.9\d\d \(0\.\d+ to 0\.9\d\d at 95 %; 258 held-out samples; chance 0\.10\)"
    )
    assert re.search(headline, done.stdout), done.stdout
    for word, place in re.findall(r"  (report|model) +(\S+)", done.stdout):
        assert (project.path / place).exists(), word


def test_its_report_is_one_file_that_holds_everything(demo: Finished) -> None:
    page = (demo[0].run / "report.html").read_text(encoding="utf-8")
    for part in (
        "Zero-shot accuracy",
        "Learning rate",
        "Waiting for data",
        "data:image/png;base64,",
        "1,797",
    ):
        assert part in page
    assert not re.search(r"<script|https?://(?!www\.w3\.org)", page)


def test_wandb_holds_every_row_once(demo: Finished) -> None:
    run = demo[0].run
    assert {row["train/step"] for row in metrics(run)} >= {150, 300}
    assert_wandb_holds_everything_once(run)


def stamps(folder: Path) -> dict[Path, int]:
    """When each file was written, but for the note that the dataset was found up to date."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "fresh.json")
    return {path: path.stat().st_mtime_ns for path in files}


def test_again_nothing_is_redone_and_prefect_is_not_started(demo: Finished) -> None:
    """The command would complain about a server that does not answer, if it asked for one."""
    project, _ = demo
    before = stamps(project.path)
    project.env["PREFECT_API_URL"] = "http://127.0.0.1:9/api"
    again = [
        project.tarmac("run", "configs/digits-clip.yaml", *FEWER_STEPS, "--json"),
        project.tarmac("train", "configs/digits-clip.yaml", *FEWER_STEPS, "--json"),
        project.tarmac("resume", "digits", "--json"),
        project.tarmac("evaluate", "digits", "--json"),
    ]
    no_such_split = ("--set", "evaluate.tasks=[{kind: zero_shot, split: vla}]")
    refused = project.tarmac("run", "configs/digits-clip.yaml", *no_such_split)
    del project.env["PREFECT_API_URL"]
    for done in again:
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["stages"] == []
    assert refused.returncode == 2 and "has no 'vla'; there are: train, val" in refused.stderr, refused.stderr
    assert stamps(project.path) == before


def test_status_lists_it_and_nobody_is_left_running(demo: Finished) -> None:
    project, _ = demo
    shown = project.tarmac("status").stdout
    assert re.search(
        r"✓ digits-clip-[0-9a-f]{12}  succeeded  300/300  loss [\d.]+  goodput \d+\s%  2 of 2 evaluations",
        shown,
    )
    assert project.processes() == []
