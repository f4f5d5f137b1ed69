"""What the base costs somebody who only wants to verify a dataset or to examine a training: seconds and megabytes.

Each install is pip's in a clean Debian (tests/system/clean_root.py), of the packages that constraints.txt pins. The
seconds of the first depend on the network; the second shows what is left without it. It takes root.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.harness import Benchmark, Case, Column, Failed, Promise, Row, Setup, value
from tests.system.clean_root import CleanRoot, clean_root, wheel
from tests.system.foreign_env import ROOT

EMPTY = "with an empty cache of pip"
PIP_CACHE = "root/.cache/pip"
PACKAGES = "root/v/lib/python3.11/site-packages"


def cases(setup: Setup) -> Iterator[Case]:
    with clean_root() as root:
        made = wheel(setup.new_folder())
        root.put(made, "/root/")
        root.put(ROOT / "constraints.txt", "/root/")

        packages = root.folder / PACKAGES

        def install() -> Row:
            """pip in a new environment; its own time is that of the processor, whatever else the machine does."""
            _bash(root, "rm -rf v; python3 -m venv v")
            before, held = _bytes(packages), len(list(packages.glob("*.dist-info")))
            pip = f"v/bin/pip install --quiet --cache-dir /{PIP_CACHE} --constraint constraints.txt ./{made.name}"
            spent = _bash(root, f"TIMEFORMAT='%R %U %S'; time {pip}").splitlines()[-1]
            seconds, user, system = map(float, spent.split())
            return {
                "seconds": seconds,
                "cpu_s": user + system,
                "packages": len(list(packages.glob("*.dist-info"))) - held,
                "installed_mb": (_bytes(packages) - before) / 1e6,
            }

        def first() -> Row:
            _bash(root, f"rm -rf /{PIP_CACHE}")
            row = install()
            return {**row, "downloaded_mb": _bytes(root.folder / PIP_CACHE) / 1e6}

        first()  # fills pip's cache for the second
        yield Case("base", {EMPTY: first, "again, from its cache": install})


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
            "constraints.txt pins; this is enough for `verify`, `watch`, `doctor` and `preflight`. The first row downloads "
            "everything, so its seconds depend on the network; downloaded is what pip's cache holds afterwards, index pages "
            "among it. Installed is what the environment has grown by, with the bytecode."
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
            Promise("time", value(EMPTY, "seconds"), "at most", 20.0, unit="s"),
            Promise("download", value(EMPTY, "downloaded_mb"), "at most", 60.0, unit="MB"),
        ),
        packages=("numpy", "pyarrow", "pillow", "pydantic"),
        is_warm=False,
    ),
)
