"""What the base costs somebody who only wants to verify a dataset or to examine a training: seconds and megabytes.

Each install is pip's in a clean Debian (tests/system/clean_root.py), of the packages that constraints.txt pins. It takes
root.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.harness import Benchmark, Case, Column, Failed, Promise, Row, Setup, value
from tests.system.clean_root import CleanRoot, clean_root, wheel
from tests.system.foreign_env import ROOT

OURS = "pip install"
PACKAGES = "root/v/lib/python3.11/site-packages"


def cases(setup: Setup) -> Iterator[Case]:
    with clean_root() as root:
        made = wheel(setup.new_folder())
        root.put(made, "/root/")
        root.put(ROOT / "constraints.txt", "/root/")
        packages, wheels = root.folder / PACKAGES, root.folder / "root/wheels"
        asked = f"--quiet --no-cache-dir --constraint constraints.txt ./{made.name}"

        def install() -> Row:
            """pip in a new environment; its own time is that of the processor, whatever else the machine does."""
            _bash(root, "rm -rf v; python3 -m venv v")
            before, held = _bytes(packages), len(list(packages.glob("*.dist-info")))
            spent = _bash(root, f"TIMEFORMAT='%R %U %S'; time v/bin/pip install {asked}").splitlines()[-1]
            seconds, user, system = map(float, spent.split())
            row = {
                "seconds": seconds,
                "cpu_s": user + system,
                "packages": len(list(packages.glob("*.dist-info"))) - held,
                "installed_mb": (_bytes(packages) - before) / 1e6,
            }
            _bash(root, f"rm -rf wheels; v/bin/pip download --dest wheels {asked}")
            return {**row, "downloaded_mb": _bytes(wheels) / 1e6}

        yield Case("base", {OURS: install})


def _bash(root: CleanRoot, line: str) -> str:
    done = root.run(line, timeout=600)
    if done.code:
        raise Failed(f"{line}: {done.output[-2000:]}")
    return done.output


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


BENCHMARKS = (
    Benchmark(
        name="install",
        title="Installing the base",
        text=(
            "pip installs the wheel without extras into a new environment of a clean Debian 12, with the packages that "
            "constraints.txt pins, without a cache; this is enough for `verify`, `watch`, `doctor` and `preflight`. The "
            "seconds depend on the network. Downloaded are the wheels, installed is what the environment has grown by, "
            "with the bytecode."
        ),
        cases=cases,
        columns=(
            Column("seconds", "s"),
            Column("cpu_s", "s of the processor"),
            Column("packages", "packages"),
            Column("downloaded_mb", "MB downloaded"),
            Column("installed_mb", "MB installed"),
        ),
        promises=(
            Promise("time", value(OURS, "seconds"), "at most", 20.0, unit="s"),
            Promise("download", value(OURS, "downloaded_mb"), "at most", 60.0, unit="MB"),
        ),
        packages=("numpy", "pyarrow", "pillow", "pydantic"),
        is_warm=False,
    ),
)
