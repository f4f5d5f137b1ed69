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
from textwrap import fill
from typing import Any, NamedTuple

FOLDER = Path(__file__).with_name("results")
PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"
WIDTH = 120
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


class Column(NamedTuple):
    """What a table shows: the key of a row, its heading, and how its values are written."""

    key: str
    heading: str
    form: str


class Section(NamedTuple):
    """How the results of one benchmark are shown. `ratio` is the key of which ours is set against theirs."""

    title: str
    text: str
    columns: tuple[Column, ...]
    ratio: str | None = None


RATE = Column("samples_per_s", "samples/s", ",.0f")
SECTIONS = {
    "clip_loading": Section(
        "Loading for a CLIP",
        "Batches for a ViT-B-32 (random crop of 0.9 to 1.0 of the picture, 224 pixels, normalised float32, tokens) "
        "from JPEGs of each size, with two workers, or two threads for Grain, SPDL and DALI. webdataset, litData, "
        "MDS and Grain run open_clip's transform; SPDL decodes and resizes by FFmpeg, DALI by its own kernels. The "
        "first batch of 64 is counted from the making of the loader.",
        (
            RATE,
            Column("cpu_ms", "ms of CPU a sample", ".2f"),
            Column("first_batch_s", "first batch, s", ".2f"),
        ),
        "samples_per_s",
    ),
    "clip_training": Section(
        "Training a CLIP",
        "Steps of whole trainings, beside `open_clip_train.main`: the same small model, shards, batch of 256, one "
        "worker and one thread. Pictures of 256 x 256 pixels make loading the limit.",
        (RATE,),
        "samples_per_s",
    ),
    "pixels": Section(
        "What quick pixels cost",
        "Zero-shot accuracy of small CLIPs that trained on Tarmac's crops, and on the same crops by Pillow.",
        (
            Column("accuracy", "accuracy", ".3f"),
            Column("lowest", "lowest seed", ".3f"),
            Column("highest", "highest seed", ".3f"),
        ),
    ),
}


def table(section: Section, case: Mapping[str, Any]) -> str:
    rows: Rows = case["rows"]
    headings = ["", *(column.heading for column in section.columns)]
    first = next(iter(rows))
    if section.ratio:
        headings.append(f"{first} is … x as fast")
    lines = [f"| {' | '.join(headings)} |", "|---" * len(headings) + "|"]
    for name, row in rows.items():
        cells = [name, *(format(row[column.key], column.form) for column in section.columns)]
        if section.ratio:
            cells.append("" if name == first else f"{rows[first][section.ratio] / row[section.ratio]:.2f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def page() -> str:
    parts = [
        "# Benchmarks\n\nMedians of several processes of their own, measured in turns with the page cache warm. "
        "`tests/benchmarks/results` holds the figures as JSON, and `python -m tests.benchmarks.results` makes this "
        "page of them."
    ]
    for name, section in SECTIONS.items():
        path = FOLDER / f"{name}.json"
        if not path.exists():
            continue
        parts += [f"## {section.title}", fill(section.text, WIDTH)]
        for title, case in json.loads(path.read_text()).items():
            versions = ", ".join(f"{package} {number}" for package, number in case["versions"].items())
            parts += [f"### {title}", table(section, case)]
            parts.append(
                f"{case['rounds']} rounds, {case['machine']}, load {case['load']}, {case['date']}; {versions}."
            )
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
