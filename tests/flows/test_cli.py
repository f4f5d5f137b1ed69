"""The command line as a whole: its help, its mistakes in one line each, and how a command ends."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flows import cli
from flows.commands.arguments import AsJson
from flows.commands.output import say
from tasks.core.errors import TarmacError
from tests.conftest import ROOT

PASSING = "-dac_override,-dac_read_search,-fowner"
AS_ANYBODY = ["setpriv", f"--bounding-set={PASSING}", f"--inh-caps={PASSING}"] if os.geteuid() == 0 else []
"""Before a command: the permissions of files hold for it, although root starts it."""
needs_rights = pytest.mark.skipif(
    bool(AS_ANYBODY) and shutil.which("setpriv") is None, reason="root passes all permissions, and no setpriv"
)

Register = Callable[[Callable[..., int]], str]


def tarmac(
    *arguments: str | Path, cwd: Path, before: list[str] | None = None
) -> subprocess.CompletedProcess[str]:
    command = [*(before or []), sys.executable, "-m", "flows.cli", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)


@pytest.fixture
def register() -> Iterator[Register]:
    """Makes a function a command for the time of the test; returns the command's name."""
    names = []

    def register(function: Callable[..., int]) -> str:
        cli.app.command(function, name=function.__name__)
        names.append(function.__name__)
        return function.__name__

    yield register
    for name in names:
        del cli.app[name]


def test_help_lists_every_command_in_plain_lines(tmp_path: Path) -> None:
    code = "import sys; from flows.cli import main; main(['--help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    for name in cli.NAMES:
        assert re.search(rf"^│ {name} +[A-Z].* │$", done.stdout, re.MULTILINE), name
    assert "\x1b" not in done.stdout and max(map(len, done.stdout.splitlines())) <= 80
    heavy = {"torch", "prefect", "numpy", "pyarrow", "pydantic", "omegaconf", "PIL"}
    assert not heavy & set(done.stderr.split()), "which would take the time of a command"


def test_without_a_command_its_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    shown = capsys.readouterr().out
    assert cli.main(["--help"]) == 0
    assert shown == capsys.readouterr().out and shown.startswith("Usage: tarmac COMMAND")


@pytest.mark.parametrize("name", cli.NAMES)
def test_the_help_of_a_command_explains_its_arguments(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"Usage: tarmac {name} [OPTIONS]" in shown and "--json" in shown
    assert f"For example:\n  tarmac {name}" in shown
    unexplained = re.findall(r"│ +\*? *(--[a-z-]+|[A-Z]+)( [A-Z]+)? +(?:\[.*)?│", shown)
    assert not unexplained


def test_the_completion_for_a_shell_knows_commands_and_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    script = tmp_path / "completion"
    assert cli.main(["--install-completion", "--shell", "bash", "--output", str(script)]) == 0
    assert {"versions", "rollback", "--accept-loss"} <= set(re.findall(r"[\w-]+", script.read_text()))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["fly"], "tarmac: no command is named 'fly'; there are: example, init"),
        (["biuld", "x"], "tarmac: no command is named 'biuld'; did you mean build?"),
        (["--quick", "verify"], "tarmac: unknown option --quick; options come after the command"),
        (["build"], "tarmac build: CONFIG is missing; see tarmac build --help"),
        (["build", "x.yaml", "--sett", "a=1"], "tarmac build: unknown option --sett; did you mean --set?"),
        (["build", "x.yaml", "y.yaml"], "tarmac build: 'y.yaml' is one argument too many"),
        (["build", "x.yaml", "--set"], "tarmac build: --set needs a value"),
        (["build", "x.yaml", "--rehash", "--rehash"], "tarmac build: --rehash is given twice"),
        (["build", "x.yaml", "--rehash=no?"], "--rehash: 'no?' is too much: the option takes no value"),
        (
            ["versions", "x", "rolback"],
            "ACTION: 'rolback' is none of list, diff, rollback, prune; did you mean rollback?",
        ),
        (["cancel", ""], "tarmac cancel: RUN is empty; see tarmac cancel --help"),
        (["look", ""], "tarmac look: DATASET is empty"),
        (["build", "nowhere.yaml"], "nowhere.yaml: cannot be read"),
        (["plan", "."], ".: cannot be read (Is a directory); give the path of a config file"),
        (
            ["build", "digits-clip.yaml", "--set", "dataset.sorce=1"],
            "dataset.sorce: unknown key; did you mean source?",
        ),
        (["build", "digits-clip.yaml"], "dataset.source.path: there is no file data/raw/digits/captions.csv"),
        (["run", "digits-clip.yaml", "--set", "train=null", "--set", "evaluate=null"], "train: is required"),
        (["run", "digits-clip.yaml", "--set", "evaluate.tasks=[zero_shott]"], "did you mean zero_shot?"),
        (
            ["build", "digits-clip.yaml", "--set", "train.model.name=ViT-B-23"],
            "train.model.name: unknown model 'ViT-B-23'; did you mean ViT-B-32?",
        ),
        (["report", "3f9a"], "no run in runs starts with '3f9a'"),
        (["cancel", "3f9a", "--runs", "elsewhere"], "no run in elsewhere starts with '3f9a'"),
        (["evaluate", "3f9a", "--step", "x"], "tarmac evaluate: --step: 'x' is not a whole number"),
        (["verify", "nowhere"], "nowhere"),
        (["versions", "nowhere"], "nowhere has no versions; build it first"),
        (["deploy", "--write", "x.yaml", "--dry-run"], "--write: registers nothing; leave out"),
        (["versions", "nowhere", "rollback"], "VERSION: rollback needs the version"),
        (["versions", "nowhere", "rollback", "9c41"], "no version of nowhere starts with '9c41'"),
        (
            ["versions", "nowhere", "prune", "9c41"],
            "VERSION: prune takes none, and '9c41' is given; it keeps",
        ),
        (["versions", "nowhere", "rollback", "9c41", "--keep", "2"], "--keep: rollback removes no version"),
        (["plan", "digits-clip.yaml"], "dataset.source.path: there is no file"),
        (["init", "nowhere"], "nowhere"),
        (["example", "dogs"], "no example is named 'dogs'; there are: digits"),
    ],
)
def test_a_wrong_command_is_one_line(
    arguments: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copy(ROOT / "configs/digits-clip.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1 and says in printed.err, printed


CONFIGURED = ("run", "build", "train", "bench", "plan", "preflight", "fetch", "reinforce")


@pytest.mark.parametrize("command", CONFIGURED)
def test_a_change_without_a_value_is_one_line(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command, str(ROOT / "configs/digits-clip.yaml"), "--set", "train.lr"]) == 2
    assert capsys.readouterr().err == "✗ --set train.lr: needs KEY=VALUE, such as --set train.lr=1e-4\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["build", "nowhere.yaml"], "nowhere.yaml: cannot be read"),
        (["build"], "CONFIG is missing"),
        (["fly"], "no command is named 'fly'"),
        (["cancel", ""], "RUN is empty"),
    ],
)
def test_a_mistake_is_one_json_object_when_asked_for(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*arguments, "--json"]) == 2
    printed = capsys.readouterr()
    value = json.loads(printed.out)
    assert (value["ok"], value["findings"], printed.err) == (False, [], "") and says in value["error"]


def test_what_follows_two_dashes_is_another_commands(
    register: Register, capsys: pytest.CaptureFixture[str]
) -> None:
    def supervise(*command: str, as_json: AsJson = False) -> int:
        return say(f"{command} {as_json}")

    name = register(supervise)
    assert cli.main([name, "--json", "--", "python", "-m", "train", "--json", "--lr=1"]) == 0
    assert capsys.readouterr().out == "('python', '-m', 'train', '--json', '--lr=1') True\n"

    def fail(*command: str) -> int:
        raise TarmacError("it failed")

    assert cli.main([register(fail), "--", "python", "--json"]) == 1
    assert capsys.readouterr().err == "✗ it failed\n", "its --json is not ours"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "and the same command goes on with it"),
        (["--fresh"], "the same command without --fresh goes on with the present run"),
    ],
)
def test_an_interrupt_is_one_line(
    register: Register, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*, fresh: bool = False) -> int:
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    try:
        assert cli.main([register(interrupted), *arguments]) == 130
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN, "the next one breaks the tidying up"
    finally:
        signal.signal(signal.SIGINT, before)
    printed = capsys.readouterr().err
    assert printed.startswith("\ninterrupted") and printed.endswith(f"{says}\n")


@pytest.mark.parametrize(
    ("number", "file", "says"),
    [
        (errno.ENOSPC, "runs/a", "✗ runs/a: No space left on device; make room and run it again\n"),
        (errno.ENOSPC, None, "✗ No space left on device; make room and run it again\n"),
        (errno.EROFS, "runs/a", "✗ runs/a: Read-only file system; check its permissions and its disk\n"),
        (errno.EACCES, "runs/a", "✗ runs/a: Permission denied; check its permissions and its disk\n"),
    ],
)
def test_what_a_disk_refuses_is_one_line(
    register: Register, number: int, file: str | None, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused() -> int:
        raise OSError(number, os.strerror(number), file)

    assert cli.main([register(refused)]) == 1
    assert capsys.readouterr().err == says


def test_a_defect_keeps_its_traceback_and_is_json_as_well(
    register: Register, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*, as_json: AsJson = False) -> int:
        raise FileNotFoundError("x")

    with pytest.raises(FileNotFoundError):
        cli.main([register(broken), "--json"])
    assert json.loads(capsys.readouterr().out)["ok"] is False


def test_a_reader_who_has_read_enough_ends_the_command(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "flows.cli", "schema"]
    done = subprocess.run(command, cwd=tmp_path, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_terminal_that_is_not_utf_8_shows_what_it_can(
    register: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    def done() -> int:
        return say("✓ done")

    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii"))
    assert cli.main([register(done)]) == 0
    sys.stdout.flush()
    assert shown.getvalue() == b"? done\n"


def test_a_dead_prefect_server_is_named_at_once(birds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    refused = tarmac("build", "birds.yaml", cwd=birds)
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1), refused
    assert "http://127.0.0.1:9/api: no Prefect server answers there" in refused.stderr
