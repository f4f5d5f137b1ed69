"""What a release consists of, built from the checkout as it is, and installed beside this environment's packages.

A new environment with torch would take minutes and gigabytes. This one holds the wheel alone, as installed by
uv, and finds its dependencies where the tests have them; the checkout's editable install is not among them,
because a folder that a .pth file names has its own .pth files ignored.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(
    *command: str | Path, cwd: Path, env: dict[str, str] | None = None, timeout_s: float = 300
) -> subprocess.CompletedProcess[str]:
    """A command whose output is kept; it must succeed."""
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout_s
    )
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done


def copy_checkout(place: Path) -> Path:
    """The files of the checkout that git knows or would add, as they are now, in a new folder."""
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT).stdout
    for name in filter(None, listed.split("\0")):
        source, target = ROOT / name, place / name
        if source.is_symlink() or source.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    return place


def build(kind: str, source: Path, out: Path) -> Path:
    """The `sdist` or `wheel` of a source folder."""
    before = set(out.glob("*"))
    run(sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", out, cwd=source)
    (made,) = set(out.glob("*")) - before
    return made


def install_beside(wheel: Path, place: Path) -> Path:
    """The console script of a new environment that holds the wheel, and borrows its dependencies from here."""
    run(sys.executable, "-m", "venv", "--without-pip", place, cwd=ROOT)
    python = place / "bin/python"
    uv = Path(sys.executable).with_name("uv")
    run(uv, "pip", "install", "-q", "--no-deps", "--python", python, wheel, cwd=ROOT)
    known = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=place)
    (Path(known.stdout.strip()) / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    for script in ("py-spy", "torchrun"):  # which commands look for beside the interpreter
        if (here := Path(sys.executable).with_name(script)).exists():
            (place / "bin" / script).symlink_to(here)
    return place / "bin/tarmac"


def plain_environment(home: Path) -> dict[str, str]:
    """This process's environment without settings of Prefect's or Python's, with a home of its own."""
    ours = ("PREFECT_", "PYTHON", "TARMAC_", "HF_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {**kept, "HOME": str(home), "PREFECT_HOME": str(home / "prefect"), "COLUMNS": "200"}


def resolved(extras: list[str]) -> dict[str, str]:
    """What uv would install for Tarmac with these extras, by name, with the version."""
    uv = Path(sys.executable).with_name("uv")
    words = [word for extra in extras for word in ("--extra", extra)]
    quiet = ["--no-header", "--no-annotate", "--quiet", "--python", sys.executable]
    listed = run(
        uv, "pip", "compile", "pyproject.toml", "-c", "constraints.txt", *words, *quiet, cwd=ROOT
    ).stdout
    return dict(line.split("==", 1) for line in listed.splitlines())
