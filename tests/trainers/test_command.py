"""What is understood of a command line without running it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from tasks.trainers.command import Command


def command(text: str, folder: Path = Path("/here")) -> Command:
    return Command.of(shlex.split(text), folder)


@pytest.mark.parametrize(
    ("text", "python", "program", "ranks", "first"),
    [
        ("python -m open_clip_train.main --lr 1", "python", "open_clip_train.main", 1, "--lr"),
        (
            "env A=1 /opt/e/bin/python3.11 -u -X dev train.py --lr 1",
            "/opt/e/bin/python3.11",
            "train.py",
            1,
            "--lr",
        ),
        (
            "torchrun --nproc_per_node 4 -m open_clip_train.main --lr 1",
            "python",
            "open_clip_train.main",
            4,
            "--lr",
        ),
        (
            "/e/bin/torchrun --standalone --nproc-per-node=2 --nnodes 3 src/train.py --lr 1",
            "/e/bin/python",
            "train.py",
            6,
            "--lr",
        ),
        (
            "srun python -m torch.distributed.run --nproc_per_node=8 train.py --lr 1",
            "python",
            "train.py",
            8,
            "--lr",
        ),
        ("accelerate launch --multi_gpu --num_processes 2 train.py --lr 1", "python", "train.py", 2, "--lr"),
        ("./train --lr 1", "", "train", 1, "--lr"),
    ],
)
def test_a_launcher_an_interpreter_and_a_program(
    text: str, python: str, program: str, ranks: int, first: str
) -> None:
    found = command(text)
    assert (found.python, found.program, found.ranks, found.arguments[0]) == (python, program, ranks, first)
    assert " ".join(found.words) == text


def test_options() -> None:
    found = command("python t.py --lr 1e-3 --name=a=b --lr 2e-3 --flag --n x")
    assert found.option("--lr") == "2e-3"
    assert found.option("--name") == "a=b"
    assert found.option("--none") is None
    assert found.has("--flag", "--other")
    assert not found.has("--other")
    assert found.number("--n", default=7) == 7


def test_a_command_without_a_program_is_understood_too() -> None:
    assert command("python -c 'print(1)'").program == ""
    assert command("").program == ""
    assert command("torchrun").program == ""


def test_the_version_of_a_package_is_read_beside_the_interpreter(tmp_path: Path) -> None:
    site = tmp_path / "env/lib/python3.12/site-packages"
    (site / "open_clip_torch-9.1.dist-info").mkdir(parents=True)
    (site / "open_clip_torch-9.1.dist-info/METADATA").write_text("Name: open_clip_torch\nVersion: 9.1\n")
    (site / "open_clip_train").mkdir()
    (site / "open_clip_train/data.py").write_text("x = 1\n")
    (tmp_path / "env/bin").mkdir()
    (tmp_path / "env/bin/python").symlink_to(sys.executable)
    theirs = Command.of(["env/bin/python", "-m", "open_clip_train.main"], tmp_path)
    assert theirs.source("open_clip_train/data.py") is not None
    assert theirs.version("open_clip_torch") == "9.1"
    assert Command.of([sys.executable, "t.py"], tmp_path).version("pytest") is not None
    assert theirs.version("no_such_package") is None
