"""What benchmarks measured, kept as JSON in `results/`, and the tables of docs/benchmarks.md made of it.

.venv/bin/python -m tests.benchmarks.results        writes the page
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).with_name("results")
PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"
PACKAGES = ("torch", "pillow", "simplejpeg", "numpy", "open_clip_torch", "webdataset")
Rows = Mapping[str, Mapping[str, float]]
"""By who was measured: the medians by what was measured."""


def load() -> float:
    return os.getloadavg()[0]


def machine() -> str:
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return f"{len(os.sched_getaffinity(0))} cores of {names[0] if names else platform.machine()}"


def save(benchmark: str, case: str, rows: Rows, rounds: int) -> None:
    """Keep the medians of one case; those of other cases stay."""
    path = FOLDER / f"{benchmark}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    found[case] = {
        "date": date.today().isoformat(),
        "machine": machine(),
        "load": round(load(), 1),
        "rounds": rounds,
        "versions": {name: version(name) for name in PACKAGES},
        "rows": {name: {key: round(value, 3) for key, value in row.items()} for name, row in rows.items()},
    }
    FOLDER.mkdir(exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n")
