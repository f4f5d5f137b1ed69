"""Environments of other tools: the real packages at pinned versions, apart from this project's own.

What `other_tools/<name>.txt` does not pin, `constraints.txt` does, so both change together and share files:
uv links them out of its cache, hence a second PyTorch costs neither disk nor a download. An environment is
named by the digest of all its pins and made once.
"""

from __future__ import annotations

import fcntl
import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.services import BIN

ROOT = Path(__file__).parents[2]
PINS = Path(__file__).parent / "other_tools"
CACHE = ROOT / ".cache" / "environments"


def foreign_env(name: str) -> Path:
    """The `bin` folder of the environment that `other_tools/<name>.txt` describes, made when it is not there."""
    folder, wanted, constraints = _described(name)
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_made(name):
            for old in CACHE.glob(f"{name}-*"):
                shutil.rmtree(old)
            make(folder, wanted, constraints)
            (folder / "ready").touch()
    return folder / "bin"


def is_made(name: str) -> bool:
    return (_described(name)[0] / "ready").exists()


def _described(name: str) -> tuple[Path, str, str]:
    """The folder of an environment, the pins of its own, and those of constraints.txt that it shares."""
    wanted = (PINS / f"{name}.txt").read_text()
    constraints = without(named(wanted), (ROOT / "constraints.txt").read_text())
    digest = hashlib.sha256(f"{sys.version}\n{wanted}\n{constraints}".encode()).hexdigest()[:12]
    return CACHE / f"{name}-{digest}", wanted, constraints


def make(folder: Path, wanted: str, constraints: str) -> None:
    uv = str(BIN / "uv")
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, folder], check=True)
    requirements, limits = folder / "requirements.txt", folder / "constraints.txt"
    requirements.write_text(wanted)
    limits.write_text(constraints)
    install = [uv, "pip", "install", "--quiet", "--python", folder / "bin" / "python"]
    subprocess.run([*install, "-r", requirements, "-c", limits], check=True)


def named(pins: str) -> set[str]:
    """The packages that these lines name, spelled in one way."""
    names = (re.match(r"[A-Za-z0-9._-]+", line) for line in pins.splitlines())
    return {re.sub(r"[._-]+", "-", name[0]).lower() for name in names if name}


def without(names: set[str], pins: str) -> str:
    return "".join(f"{line}\n" for line in pins.splitlines() if not named(line) & names)
