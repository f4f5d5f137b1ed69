"""`tarmac gather`: several runs and folders of runs, what is left of each, and whose gatherer keeps a run."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from flows import cli
from tasks.core import config as configs
from tasks.core.files import read_json, write_atomic, write_json
from tasks.core.lock import STALE_S, Lease, holder_of
from tasks.runs.folder import RunFolder
from tasks.runs.plan import plan
from tasks.supervision.tracking import gathering, wandb_file
from tests.supervision import fakes
from tests.supervision.test_agent import wait_for
from tests.supervision.tracking.test_gatherer import server, set_mode, wandb_id, write_rows  # noqa: F401
from tests.supervision.tracking.wandb_server import Server


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three runs that ended: `bad`, whose record is torn, `fake` and `twin`, which nobody has gathered."""
    monkeypatch.chdir(tmp_path)
    first = fakes.make_run(tmp_path, track={"mode": "offline"})
    for name in ("bad", "twin"):
        config = configs.reload(first.config).model_copy(update={"name": name})
        plan(config, next((tmp_path / "data" / "versions").iterdir()))
    for run in (first, run_of(tmp_path / "runs", "twin")):
        write_rows(run, 1, 3)
    write_atomic(run_of(tmp_path / "runs", "bad").record, '{"id": "9099')
    return tmp_path / "runs"


def run_of(runs: Path, name: str) -> RunFolder:
    [path] = runs.glob(f"{name}-*")
    return RunFolder(path)


def gathered(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = cli.main(["gather", *arguments, "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert printed["ok"] is (code == 0)
    return code, {row["run"].partition("-")[0]: row for row in printed["runs"]}


def test_a_folder_of_runs_is_gathered_and_uploaded_whatever_is_wrong_with_one(
    runs: Path,
    capsys: pytest.CaptureFixture[str],
    server: Server,  # noqa: F811
) -> None:
    code, rows = gathered(capsys, "runs/", "--sync")
    assert code == 1
    assert {name: row["state"] for name, row in rows.items()} == {
        "bad": "failed",
        "fake": "gathered",
        "twin": "gathered",
    }
    assert "is no run record" in rows["bad"]["reason"] and rows["fake"]["uploaded"]
    assert rows["bad"]["left"] == f"once that is mended: tarmac gather {run_of(runs, 'bad').name} --sync"
    for name in ("fake", "twin"):
        assert len(server.uids(wandb_id(run_of(runs, name)))) == 3
    assert cli.main(["gather", "runs"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"✗ {run_of(runs, 'bad').name}  ")
    assert lines[-1] == "3 runs: 2 gathered, 1 failed; 1 with something left"
    code, rows = gathered(capsys, "fake", "twin", run_of(runs, "twin").name)
    assert code == 0 and list(rows) == ["fake", "twin"]
    (runs / "empty").mkdir()
    assert cli.main(["gather", "fake", "runs/empty"]) == 2
    assert capsys.readouterr().err == "✗ RUN: runs/empty is neither a run nor a folder of runs\n"


def test_a_run_that_goes_on_and_one_without_tracking_stop_no_other(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    set_mode(run_of(runs, "twin"), "disabled")
    with Lease(run_of(runs, "fake").lease):  # stands for the agent
        code, rows = gathered(capsys, "fake", "twin")
        assert (code, rows["fake"]["state"], rows["twin"]["state"]) == (0, "going_on", "disabled")
        code, rows = gathered(capsys, "fake", "twin", "--sync")
        assert code == 1 and rows["fake"]["left"].startswith(
            "upload it once it has ended: tarmac gather fake-"
        )
    wait_for(lambda: holder_of(run_of(runs, "fake").gatherer_lease) is None)


def test_what_an_online_run_could_not_upload_is_left_in_one_clause(
    runs: Path,
    capsys: pytest.CaptureFixture[str],
    server: Server,  # noqa: F811
) -> None:
    run = run_of(runs, "fake")
    set_mode(run, "online")
    server.mode = "401"
    assert cli.main(["gather", "fake"]) == 1
    printed = capsys.readouterr()
    assert printed.out.splitlines()[1:] == [
        f"    offline, the key was refused; tarmac gather {run.name} --sync"
    ]
    assert "Traceback" not in printed.out + printed.err
    server.mode = "ok"
    code, rows = gathered(capsys, "fake", "--sync")
    assert code == 0 and rows["fake"]["uploaded"] and len(server.uids(wandb_id(run))) == 3


def test_a_gatherer_of_another_host_keeps_the_run_while_its_heart_beats(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(runs, "fake")
    run.wandb.mkdir()
    with Lease(run.gatherer_lease):
        lease = read_json(run.gatherer_lease)
    write_json(run.gatherer_lease, {**lease, "host": "elsewhere"})
    monkeypatch.setattr(gathering.complete, "__defaults__", (1.0,))
    code, rows = gathered(capsys, "fake")
    assert code == 1 and "on elsewhere" in rows["fake"]["reason"] and not wandb_file.rows_of(run.wandb)
    os.utime(run.gatherer_lease, (time.time() - STALE_S - 60,) * 2)
    monkeypatch.undo()
    code, rows = gathered(capsys, str(run.path))
    assert code == 0 and len(wandb_file.rows_of(run.wandb)) == 3
