"""The wheel stands alone: installed without torch and Prefect it starts, verifies, and names what is missing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    # Let the new environment keep its bytecode, or every command compiles what it imports anew.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.run(
        [str(part) for part in command], cwd=cwd, env=env, capture_output=True, text=True, timeout=300
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    copies = re.findall(
        r"^COPY (?!--from)(.+) (\S+)$", (ROOT / "deploy/Dockerfile").read_text(), re.MULTILINE
    )
    for names, place in copies:  # the image is built from this, and from nothing else
        for name in names.split():
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, source / place)
            else:
                (source / place).mkdir(exist_ok=True)
                shutil.copy(ROOT / name, source / place)
    (source / "COMMIT").write_text("585a2809c1f4\n")
    built = run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=source)
    assert built.returncode == 0, built.stderr
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def tarmac(wheel: Path) -> Path:
    """The console script of an environment that holds the wheel and what its base asks for."""
    environment = wheel.parent / "environment"
    assert run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=ROOT).returncode == 0
    python = environment / "bin/python"
    uv = Path(sys.executable).with_name("uv")
    installed = run(
        uv, "pip", "install", "-q", "--python", python, "-c", ROOT / "constraints.txt", wheel, cwd=ROOT
    )
    assert installed.returncode == 0, installed.stderr
    return environment / "bin/tarmac"


def test_it_holds_code_and_templates_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    outside = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert outside == {"tarmac", "zz_tarmac.pth"}
    inside = {name.split("/")[1] for name in names if name.startswith("tarmac/")}
    assert inside == {"__init__.py", "COMMIT", "flows", "tasks"}
    assert "tarmac/tasks/reporting/templates/report.html" in names
    assert "tarmac/tasks/core/templates/base.html" in names


def test_the_base_starts_without_torch_and_prefect(tarmac: Path, tmp_path: Path) -> None:
    python = tarmac.with_name("python")
    for package in ("torch", "prefect", "wandb"):
        assert run(python, "-c", f"import {package}", cwd=tmp_path).returncode == 1
    assert run(tarmac, "--version", cwd=tmp_path).stdout == "tarmac 0.1.0 (585a2809c1f4)\n"
    assert "evaluate" in run(tarmac, "--help", cwd=tmp_path).stdout
    wrong = run(tarmac, "biuld", cwd=tmp_path)
    assert (wrong.returncode, wrong.stderr) == (
        2,
        "✗ tarmac: no command is named 'biuld'; did you mean build?\n",
    )


def test_the_base_says_which_extra_a_command_needs(tarmac: Path, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    example = run(tarmac, "example", "digits", cwd=tmp_path)
    assert (example.returncode, example.stderr) == (
        2,
        "✗ tarmac example needs sklearn: pip install 'tarmac[train]'\n",
    )


def test_it_hides_no_module_of_the_users_and_none_hides_it(
    tarmac: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's project that is installed by a path file has a `tasks` too, and another lies on PYTHONPATH."""
    python, project, here = tarmac.with_name("python"), tmp_path / "project", tmp_path / "here"
    for folder in (project, here):
        folder.mkdir()
        (folder / "tasks.py").write_text(f"print('the tasks of {folder.name}')\n")
    site = Path(
        run(python, "-c", "import site; print(site.getsitepackages()[0])", cwd=tmp_path).stdout.strip()
    )
    (site / "a_project.pth").write_text(f"{project}\n")
    try:
        assert run(python, "-c", "import tasks", cwd=tmp_path).stdout == "the tasks of project\n"
        assert run(tarmac, "schema", cwd=here).returncode == 0
        monkeypatch.setenv("PYTHONPATH", str(here))
        watched = run(tarmac, "watch", "--", python, "-c", "import tasks", cwd=tmp_path)
        assert "the tasks of here" in watched.stdout, watched.stderr
        assert "the tasks of" not in run(tarmac, "schema", cwd=here).stdout
    finally:
        (site / "a_project.pth").unlink()


def test_the_base_verifies(tarmac: Path, digits_dataset: Path, tmp_path: Path) -> None:
    sound = run(tarmac, "verify", digits_dataset, cwd=tmp_path)
    assert sound.returncode == 0, sound.stderr
    copy = tmp_path / "copy"
    shutil.copytree(digits_dataset / "current", copy)
    shard = copy / "train/000001.tar"
    content = bytearray(shard.read_bytes())
    content[2000] ^= 1
    shard.write_bytes(content)
    broken = run(tarmac, "verify", copy, cwd=tmp_path)
    assert broken.returncode == 1
    assert "shard.checksum" in broken.stderr + broken.stdout
    assert "train/000001.tar" in broken.stderr + broken.stdout
