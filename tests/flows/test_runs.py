"""The commands on runs: what `evaluate`, `cancel` and `gather` say, and the last screen of a run."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path

import pytest

from flows import cli
from flows.commands import training
from tasks import gather, stage
from tasks.core.errors import UsageError
from tasks.core.lock import Lease, holder_of
from tasks.runs import record
from tasks.runs.folder import RunFolder
from tasks.supervision.tracking import gathering, wandb_file
from tests.supervision import fakes
from tests.supervision.test_agent import wait_for
from tests.supervision.tracking.test_gatherer import set_mode, write_rows


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """Three rows and one evaluation that nobody has gathered."""
    run = fakes.make_run(tmp_path, track={"mode": "offline"})
    write_rows(run, 1, 3)
    fakes.evaluate(run.path, 20, "zero_shot")
    return run


def test_the_last_screen_names_the_upload_until_it_is_done(
    run: RunFolder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "get_run_logger", logging.getLogger)
    command = f"tarmac gather {run.handle} --sync"

    def last_screen() -> str:
        capsys.readouterr()
        training.show_run(run, [], time.monotonic(), False)
        return capsys.readouterr().out

    says = f"metrics and 1 evaluation in wandb run {record.load_record(run).wandb_id}"
    assert gather.gather.fn(run).summary == f"{says} (offline)"
    assert f"  wandb   {command}\n" in last_screen()
    set_mode(run, "online")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    offline = f"offline, there is no key; {command}"
    assert gather.gather.fn(run).summary == f"{says} ({offline})"
    assert f"  wandb   {offline}\n" in last_screen()
    wandb_file.synced_of(wandb_file.files_of(run.wandb)[0]).touch()
    assert gather.gather.fn(run).summary == f"{says} (online)"
    assert "  wandb  " not in last_screen()


def test_without_wandb_the_last_screen_names_the_event_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "get_run_logger", logging.getLogger)
    run = fakes.make_run(tmp_path, track={"tracker": "tensorboard"})
    write_rows(run, 1, 3)
    assert gather.gather.fn(run).summary == f"metrics and 0 evaluations in {run.tensorboard}"
    training.show_run(run, [], time.monotonic(), False)
    assert "  wandb  " not in capsys.readouterr().out
    with pytest.raises(UsageError, match="online needs a server, which tracker: tensorboard has none of"):
        fakes.make_config(tmp_path, track={"tracker": "tensorboard", "mode": "online"})


def test_the_last_screen_leads_to_own_data_after_an_example_only(
    run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    hint = "Your own data: tarmac init PATH\n"
    training.show_run(run, [], time.monotonic(), False)
    assert hint not in capsys.readouterr().out
    text = run.config.read_text(encoding="utf-8")
    run.config.write_text(text.replace("/raw.csv", "/data/raw/digits/captions.csv"), encoding="utf-8")
    training.show_run(run, [], time.monotonic(), False)
    assert capsys.readouterr().out.endswith(hint)


def test_the_command_reports_what_it_gathered(
    run: RunFolder,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "tasks.py").write_text("a user's own, which has nothing to do with Tarmac's package")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["gather", str(run.path)]) == 0
    upload = f"    tarmac gather {run.handle} --sync\n"
    done = f"✓ {run.name}  gathered 1 evaluation and the metrics: {run.path}"
    assert capsys.readouterr().out == f"{done}\n{upload}"
    assert cli.main(["gather", str(run.path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["uploaded"] is False


def test_a_run_that_goes_on_is_not_waited_for(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    with Lease(run.lease):  # stands for the agent
        began = time.monotonic()
        assert cli.main(["gather", str(run.path)]) == 0
        assert time.monotonic() - began < 30
        assert "goes on, and its own gatherer is at work: 1 evaluation so far" in capsys.readouterr().out
        wait_for(lambda: len(wandb_file.rows_of(run.wandb)) == 4)
        assert cli.main(["gather", str(run.path), "--sync"]) == 1
        assert "upload it once it has ended" in capsys.readouterr().out
    wait_for(lambda: gathering.is_complete(run) and holder_of(run.gatherer_lease) is None)


def test_a_project_that_wandb_would_refuse_is_refused_at_once(tmp_path: Path) -> None:
    for name in ("my/lab", "x" * 129, ""):
        with pytest.raises(UsageError, match=r"track\.project"):
            fakes.make_config(tmp_path, track={"project": name})


def test_evaluating_a_run_without_evaluations_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = fakes.make_run(tmp_path, evaluate=None)
    assert cli.main(["evaluate", str(run.path)]) == 2
    printed = capsys.readouterr().err
    assert (
        printed
        == f"✗ evaluate: the config of {run.name} asks for none; add an evaluate block and run it again\n"
    )


def test_a_cancel_of_an_idle_run_reports_that(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = fakes.make_run(tmp_path)
    assert cli.main(["cancel", str(run.path)]) == 0
    first, again = capsys.readouterr().out.splitlines()
    assert first == f"{run.name} is not running: no process of it lives here"
    assert again == f"  again  tarmac resume {run.path}"
