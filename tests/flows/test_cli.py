"""The command line: every mistake is one line with its fix, every command speaks JSON on request."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flows import cli, commands, datasets
from tests.conftest import ROOT

PASSING = "-dac_override,-dac_read_search,-fowner"
AS_ANYBODY = ["setpriv", f"--bounding-set={PASSING}", f"--inh-caps={PASSING}"] if os.geteuid() == 0 else []
"""Before a command: the rights of files hold for it, although root starts it."""
needs_rights = pytest.mark.skipif(
    bool(AS_ANYBODY) and shutil.which("setpriv") is None, reason="root passes all rights, and no setpriv"
)


def tarmac(
    *arguments: str | Path, cwd: Path, before: list[str] | None = None
) -> subprocess.CompletedProcess[str]:
    command = [*(before or []), sys.executable, "-m", "flows.cli", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)


def test_every_command_has_code_and_every_argument_a_meaning() -> None:
    for name, (_, arguments) in cli.COMMANDS.items():
        assert callable(getattr(datasets if name in cli.ON_DATASETS else commands, name))
        assert set(arguments.split()) <= set(cli.ARGUMENTS)


def test_help_names_every_command(tmp_path: Path) -> None:
    shown = tarmac("--help", cwd=tmp_path).stdout
    assert all(name in shown for name in cli.COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "required: COMMAND; see tarmac --help"),
        (["fly"], "no command is named 'fly'; there are: run, init"),
        (["verfy", "x"], "no command is named 'verfy'; did you mean verify?"),
        (["build"], "required: CONFIG; see tarmac build --help"),
        (["build", "x.yaml", "--sett", "a=1"], "tarmac build: unrecognized arguments: --sett"),
        (["cancel", ""], "tarmac cancel: RUN is empty; see tarmac cancel --help"),
        (["look", ""], "tarmac look: DATASET is empty"),
        (["build", "nowhere.yaml"], "nowhere.yaml: cannot be read"),
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
        (["evaluate", "3f9a", "--step", "x"], "invalid int value: 'x'"),
        (["verify", "nowhere"], "nowhere"),
        (["versions", "nowhere"], "nowhere has no versions; build it first"),
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
    told = capsys.readouterr()
    assert told.out == "" and told.err.count("\n") == 1 and says in told.err, told


@needs_rights
@pytest.mark.parametrize("closed", ["", "versions", "versions/VERSION"])
@pytest.mark.parametrize("command", ["repair", "look", "versions"])
def test_a_folder_that_may_not_be_read_is_one_line(
    digits_dataset: Path, tmp_path: Path, command: str, closed: str
) -> None:
    dataset = shutil.copytree(digits_dataset, tmp_path / "d", symlinks=True)
    folder = dataset / closed.replace("VERSION", Path(os.readlink(dataset / "current")).name)
    folder.chmod(0)
    told = tarmac(command, "d", cwd=tmp_path, before=AS_ANYBODY)
    folder.chmod(0o755)
    assert told.returncode in (1, 2) and told.stderr.count("\n") == 1, told
    assert str(folder.relative_to(tmp_path)) in told.stderr and "Permission denied" in told.stderr
    assert "holds no version" not in told.stderr


@needs_rights
@pytest.mark.parametrize("action", [["rollback", "VERSION"], ["prune"]])
def test_a_dataset_that_may_not_be_written_is_one_line(
    digits_dataset: Path, tmp_path: Path, action: list[str]
) -> None:
    dataset = shutil.copytree(digits_dataset, tmp_path / "d", symlinks=True)
    name = Path(os.readlink(dataset / "current")).name
    dataset.chmod(0o555)
    action = [part.replace("VERSION", name) for part in action]
    told = tarmac("versions", "d", *action, cwd=tmp_path, before=AS_ANYBODY)
    dataset.chmod(0o755)
    assert told.returncode == 2
    assert told.stderr == "✗ DATASET: d cannot be written (Permission denied); mind its rights\n"


@needs_rights
def test_a_version_whose_times_cannot_be_read_says_so(digits_dataset: Path, tmp_path: Path) -> None:
    dataset = shutil.copytree(digits_dataset, tmp_path / "d", symlinks=True)
    build = dataset / "current/build.json"
    build.chmod(0)
    assert (
        "build.json cannot be read: Permission denied"
        in tarmac("versions", "d", cwd=tmp_path, before=AS_ANYBODY).stdout
    )
    build.chmod(0o644)
    for content in ("{", '{"built": "yesterday"}'):
        build.write_text(content)
        shown = tarmac("versions", "d", cwd=tmp_path).stdout
        assert "build.json is damaged: tarmac repair d/versions/" in shown and shown.count("\n") == 1


def test_what_a_prune_leaves_has_its_reason(digits_dataset: Path, tmp_path: Path) -> None:
    others = shutil.ignore_patterns("pins")
    dataset = shutil.copytree(digits_dataset, tmp_path / "d", symlinks=True, ignore=others)
    now = (dataset / "current").resolve()
    newer, pinned = now.with_name("0123456789ab"), now.with_name("ba9876543210")
    for other, built in ((newer, 2e9), (pinned, 1e9)):
        shutil.copytree(now, other)
        os.utime(other / "build.json", (built, built))
    (dataset / "pins").mkdir()
    (dataset / "pins/a1b2").write_text(pinned.name)
    shown = tarmac("versions", "d", "prune", "--keep", "1", cwd=tmp_path).stdout
    assert shown.splitlines() == [
        "✓ removed nothing",
        f"  {newer.name} stays: built after the current version",
        f"  {pinned.name} stays: pinned by a1b2",
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["build", "nowhere.yaml"], "nowhere.yaml"), (["build"], "required: CONFIG"), (["fly"], "'fly'")],
)
def test_an_error_as_json_stays_json(arguments: list[str], says: str, tmp_path: Path) -> None:
    result = tarmac(*arguments, "--json", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (2, "")
    told = json.loads(result.stdout)
    assert told["ok"] is False
    assert says in told["error"]


def test_a_dead_prefect_server_is_named_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    assert tarmac("example", "digits", cwd=tmp_path).returncode == 0
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    refused = tarmac("build", "configs/digits-clip.yaml", cwd=tmp_path)
    says = refused.stderr
    assert (refused.returncode, refused.stdout, says.count("\n")) == (2, "", 1), refused
    assert "http://127.0.0.1:9/api: no Prefect server answers there" in says


def test_the_schema_names_every_block(tmp_path: Path) -> None:
    schema = json.loads(tarmac("schema", cwd=tmp_path).stdout)
    assert set(schema["properties"]) >= {"name", "dataset", "loader", "train", "evaluate", "track", "engine"}
    assert "decoded" in schema["$defs"]["ImageRules"]["properties"]["max_pixels"]["description"]


def test_verify_speaks_both_ways(digits_dataset: Path, tmp_path: Path) -> None:
    told = tarmac("verify", digits_dataset, "--quick", "--json", cwd=tmp_path)
    assert (json.loads(told.stdout)["ok"], json.loads(told.stdout)["findings"]) == (True, [])
    copy = shutil.copytree(digits_dataset / "current", tmp_path / "copy")
    (copy / "val/000001.tar").unlink()
    broken = tarmac("verify", copy, "--quick", cwd=tmp_path)
    assert broken.returncode == 1
    assert "shard.missing" in broken.stdout
    assert "val/000001.tar" in broken.stdout
    assert "Traceback" not in broken.stderr


def test_the_example_is_left_alone_when_it_is_there(tmp_path: Path) -> None:
    assert "1,797 samples" in tarmac("example", "digits", cwd=tmp_path).stdout
    assert "left alone" in tarmac("example", "digits", cwd=tmp_path).stdout
