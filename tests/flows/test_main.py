"""How a command ends: interrupted, refused by a disk, on a poor terminal, and what the commands on runs say."""

from __future__ import annotations

import errno
import importlib
import io
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows import cli, datasets
from flows.output import say
from tasks.core.lock import Lease
from tasks.runs import record
from tasks.runs.record import State
from tests.supervision.fakes import make_run


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every command is interrupted at its start."""

    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib, "import_module", interrupt)
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["verify", "nowhere"], "and the same command goes on with it"),
        (["run", "a.yaml", "--fresh"], "the same command without --fresh goes on with the run that is there"),
    ],
)
def test_an_interrupt_while_a_command_is_loaded_is_one_line(
    interrupted: None, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = cli.main(arguments)
    except KeyboardInterrupt:
        pytest.fail("it is not caught")
    told = capsys.readouterr().err
    assert code == 130 and told.startswith("\ninterrupted") and told.endswith(f"{says}\n")
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN, "the next one breaks the tidying up"


@pytest.mark.parametrize(
    ("number", "file", "says"),
    [
        (errno.ENOSPC, "runs/a", "✗ runs/a: No space left on device; make room and run it again\n"),
        (errno.ENOSPC, None, "✗ No space left on device; make room and run it again\n"),
        (errno.EROFS, "runs/a", "✗ runs/a: Read-only file system; mind its rights and its disk\n"),
        (errno.EACCES, "runs/a", "✗ runs/a: Permission denied; mind its rights and its disk\n"),
    ],
)
def test_what_a_disk_refuses_is_one_line(
    number: int,
    file: str | None,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refused(_: object) -> int:
        raise OSError(number, os.strerror(number), file)

    monkeypatch.setattr(datasets, "schema", refused)
    assert cli.main(["schema"]) == 1
    assert capsys.readouterr().err == says
    number = errno.ENOENT
    with pytest.raises(FileNotFoundError):
        cli.main(["schema", "--json"])
    assert json.loads(capsys.readouterr().out)["ok"] is False


def test_a_terminal_that_is_not_utf_8_shows_what_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii"))
    monkeypatch.setattr(datasets, "schema", lambda _: say("✓ done"))
    assert cli.main(["schema"]) == 0
    sys.stdout.flush()
    assert shown.getvalue() == b"? done\n"


def test_a_run_that_evaluates_nothing_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path, evaluate=None)
    assert cli.main(["evaluate", str(run.path)]) == 2
    told = capsys.readouterr().err
    assert (
        told
        == f"✗ evaluate: the config of {run.name} asks for none; add an evaluate block and run it again\n"
    )


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ("running", "stops at its next step, with a checkpoint"),
        ("succeeded", "stops evaluating; tarmac evaluate"),
    ],
)
def test_a_cancel_says_what_stops(
    state: State, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path)
    record.save(run, record.load(run).having(state=state))
    with Lease(run.lease):
        assert cli.main(["cancel", str(run.path)]) == 0
    assert capsys.readouterr().out.startswith(f"{run.name} {says}")
