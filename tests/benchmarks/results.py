"""What benchmarks measured, kept as JSON: a file for each benchmark, in it by case the medians and their ranges, and
under which circumstances they came about. `results/` has the kept figures, of which docs/benchmarks.md is made; a quick
run writes below `build/`.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from datetime import date
from importlib.metadata import version
from itertools import takewhile
from pathlib import Path
from typing import Any

from tests.benchmarks.harness import Benchmark, Measured
from tests.system.foreign_env import PINS, ROOT

KEPT = Path(__file__).with_name("results")
QUICK = ROOT / "build" / "benchmarks-quick"


def read(folder: Path, name: str) -> dict[str, Any]:
    """The cases of a benchmark; none where nothing was kept."""
    path = folder / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def seconds_of(folder: Path, name: str) -> float:
    """What the last run took, as far as it is known."""
    return sum(case.get("seconds", 0) for case in read(folder, name).values())


def keep(folder: Path, benchmark: Benchmark, measured: Measured) -> dict[str, Any]:
    """Keep one case; the others stay. Returns what is kept."""
    verdicts = (promise.verdict(measured.case, measured.figures) for promise in benchmark.promises)
    case = {
        "date": date.today().isoformat(),
        "machine": machine(),
        "load_before": measured.load[0],
        "load_after": measured.load[1],
        "rounds": measured.rounds,
        "warm": measured.is_warm,
        "average": benchmark.average,
        "seconds": round(measured.seconds, 1),
        "commit": commit(),
        "versions": versions(benchmark.packages, *benchmark.environments),
        "left_out": dict(measured.left_out),
        "rows": measured.figures.medians,
        "ranges": measured.figures.ranges,
        "promises": [verdict for verdict in verdicts if verdict],
    }
    folder.mkdir(parents=True, exist_ok=True)
    found = {**read(folder, benchmark.name), measured.case: case}
    (folder / f"{benchmark.name}.json").write_text(json.dumps(found, indent=1) + "\n")
    return case


def machine() -> str:
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return f"{len(os.sched_getaffinity(0))} cores of {names[0] if names else platform.machine()}"


def commit() -> str:
    """The commit of the code that is measured, with a + where `tasks` or `flows` differ from it."""
    words = ["git", "-C", str(ROOT), "describe", "--always", "--exclude=*", "--abbrev=8"]
    done = subprocess.run(words, capture_output=True, text=True)
    changes = ["git", "-C", str(ROOT), "status", "--porcelain", "--", "tasks", "flows"]
    return done.stdout.strip() + ("+" if subprocess.run(changes, capture_output=True).stdout else "")


def versions(own: Iterable[str], *environments: str) -> dict[str, str]:
    """The versions of packages of our own, and of those that these environments of others are made for."""
    fixed = dict(_pins((ROOT / "constraints.txt").read_text().splitlines()))
    found = {name: [version(name)] for name in own}
    for environment in environments:
        lines = (PINS / f"{environment}.txt").read_text().splitlines()
        asked = takewhile(lambda line: not line.startswith("# What these need"), lines)
        for name, number in _pins(asked):
            found.setdefault(name, []).append(number or fixed[name])
    return {name: " and ".join(dict.fromkeys(numbers)) for name, numbers in found.items()}


def _pins(lines: Iterable[str]) -> Iterable[tuple[str, str]]:
    for line in lines:
        name, _, number = line.partition("==")
        if name and not name.startswith("#"):
            yield name, number


def at(path: str, folder: Path = KEPT) -> float:
    """A figure by `BENCHMARK/CASE/ROW/KEY`; KeyError where there is none."""
    benchmark, *keys = path.split("/")
    found: Any = read(folder, benchmark)
    for key in [keys[0], "rows", *keys[1:]]:
        found = found[key]
    if isinstance(found, Mapping):
        raise KeyError(path)
    return float(found)
