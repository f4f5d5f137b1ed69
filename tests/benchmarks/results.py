"""What benchmarks measured, kept as JSON in `results/`, and the tables of docs/benchmarks.md made of it.

.venv/bin/python -m tests.benchmarks.results        writes the page
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Mapping
from datetime import date
from importlib.metadata import version
from itertools import groupby, takewhile
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

from tests.system.foreign_env import PINS, ROOT

FOLDER = Path(__file__).with_name("results")
PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"
WIDTH = 120
WHOLE = ",.0f"
"""How large numbers are written; those below ten get a digit more."""
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


def save(benchmark: str, case: str, rows: Rows, rounds: int, loads: Iterable[float] = ()) -> None:
    """Keep the medians of one case, and the load of the machine while they were taken; other cases stay."""
    section, average = SECTIONS[benchmark], [*loads] or [load()]
    path = FOLDER / f"{benchmark}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    found[case] = {
        "date": date.today().isoformat(),
        "machine": machine(),
        "load": [round(min(average), 1), round(max(average), 1)],
        "rounds": rounds,
        "versions": versions(section.packages, *section.environments),
        "rows": {name: {key: round(value, 3) for key, value in row.items()} for name, row in rows.items()},
    }
    FOLDER.mkdir(exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n")


class Column(NamedTuple):
    """What a table shows: the key of a row, its heading, and how its values are written."""

    key: str
    heading: str
    form: str = WHOLE


class Section(NamedTuple):
    """How the results of one benchmark are shown. `ratio` is the key by which the first row is set against each
    other; it is a rate, or a time where `is_time`."""

    title: str
    text: str
    columns: tuple[Column, ...]
    packages: tuple[str, ...]
    environments: tuple[str, ...] = ()
    ratio: str | None = None
    is_time: bool = False


RATE, CPU = Column("samples_per_s", "samples/s"), Column("cpu_ms", "ms of CPU a sample", ".2f")
FIRST = Column("first_batch_s", "first batch, s", ".2f")
PICTURES = ("torch", "pillow", "simplejpeg", "numpy")
SECTIONS = {
    "clip_loading": Section(
        "Loading for a CLIP",
        "Batches for a ViT-B-32 (random crop of 0.9 to 1.0 of the picture, 224 pixels, normalised float32, tokens) "
        "from JPEGs of each size, with two workers, or two threads for Grain, SPDL and DALI. webdataset, litData, "
        "MDS and Grain run open_clip's transform; SPDL decodes and resizes by FFmpeg, DALI by its own kernels. The "
        "first batch of 64 is counted from the making of the loader.",
        (RATE, CPU, FIRST),
        PICTURES,
        ("open_clip", "loaders", "pipelines"),
        ratio="samples_per_s",
    ),
    "same_pixels": Section(
        "Loading the same pixels",
        "The same JPEGs by Pillow to the same uint8 pixels, with two workers, or two threads for Grain: what is left "
        "of a loader where the transform is equal.",
        (RATE, CPU, FIRST),
        PICTURES,
        ("loaders",),
        ratio="samples_per_s",
    ),
    "reads": Section(
        "Single samples at random",
        "The members of one sample of a version, by its number, beside webdataset's own indexed reader.",
        (Column("p50_us", "median, µs", ".1f"), Column("p99_us", "99th percentile, µs", ".1f")),
        ("numpy",),
        ("open_clip",),
        ratio="p99_us",
        is_time=True,
    ),
    "memory": Section(
        "Memory of loading",
        "The most that the process and its two workers have at once while they load the same pixels; a page that "
        "several share counts once.",
        (Column("peak_mb", "MB"),),
        ("torch", "numpy"),
        ("loaders",),
    ),
    "clip_training": Section(
        "Training a CLIP",
        "Steps of whole trainings, beside `open_clip_train.main`: the same small model, shards, batch of 256, one "
        "worker and one thread. Pictures of 256 x 256 pixels make loading the limit.",
        (RATE,),
        (*PICTURES, "open_clip_torch", "webdataset"),
        ratio="samples_per_s",
    ),
    "pixels": Section(
        "What quick pixels cost",
        "Zero-shot accuracy of small CLIPs that trained on Tarmac's crops, and on the same crops by Pillow. The same "
        "seed gives both the same start, samples and crops.",
        (
            Column("accuracy", "accuracy", ".3f"),
            Column("lowest", "lowest seed", ".3f"),
            Column("highest", "highest seed", ".3f"),
        ),
        PICTURES,
    ),
    "crops": Section(
        "Crops of a CT volume",
        "A crop of 240 x 480 x 480 int16 voxels, or all of them, into a batch, by one thread. Ours is what a worker of "
        "the loader does, checksums included; of the others only `zarr ... crc32c` has any.",
        (Column("cpu_ms", "ms of CPU", ".1f"), Column("wall_ms", "ms", ".1f")),
        ("numpy", "blosc2", "google-crc32c"),
        ("volumes",),
        ratio="cpu_ms",
        is_time=True,
    ),
    "verify": Section(
        "Verifying a dataset",
        "`tarmac verify` by default: the seal, the tars and the index, every byte by BLAKE3, on all cores. Beside it "
        "are loops that do nothing but hash the same files, by Python's blake3 (`read`: 256 KB at a time; `page`: 1 MB, "
        "into a buffer that begins at a page; `mapped`; `shared`: mapped, each file by all cores) and by `openssl "
        "sha256`. A map saves the copy of each byte, but ends the process where a file is cut or its disk fails under "
        "it, so `verify` reads.",
        (Column("mb_per_s", "MB/s"), Column("cpu_s", "s of CPU", ".2f")),
        ("blake3",),
        ratio="mb_per_s",
    ),
    "remote": Section(
        "Reading from afar",
        "A web server and a bucket that answer after 20 ms, and fail one request in a hundred; as many requests in "
        "flight for each. Large objects are read as a build reads them (open), by the streaming reader (stream), and "
        "into the node's cache, as a whole (cached) or for single samples (indexed). obstore gets the same ranges and "
        "drops them (obstore), or writes them to a file (obstore_file). s3fs opens and reads one object after the "
        "other (s3fs), or gets each by `cat` (s3fs_own). Small objects are read as a conversion reads images.",
        (
            Column("mb_per_s", "MB/s"),
            Column("cpu_ms", "ms of CPU a MB", ".2f"),
            Column("over_obstore", "x obstore's speed", ".2f"),
        ),
        ("aiohttp",),
        ("stores",),
    ),
    "reencoding": Section(
        "Making pictures smaller in a build",
        "What `max_side` and `encode` do to a picture, beside open, convert, thumbnail by Lanczos and save of the same "
        "quality, on one core; by how many times the picture is larger than `max_side`.",
        (
            Column("tarmac_ms", "tarmac, ms of CPU", ".1f"),
            Column("pillow_ms", "Pillow, ms of CPU", ".1f"),
            Column("times", "x as fast", ".2f"),
        ),
        ("pillow",),
    ),
    "build": Section(
        "Writing shards",
        "Twenty thousand JPEGs and a table of captions. Tarmac lists, plans, checks headers or decodes, hashes, indexes "
        "and flushes to disk; the others only write, and Pillow only decodes.",
        (RATE,),
        ("pillow",),
        ("writers",),
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
        cells = [name, *(_cell(row, column) for column in section.columns)]
        if section.ratio:
            own, other = rows[first][section.ratio], row[section.ratio]
            times = other / own if section.is_time else own / other
            cells.append("" if name == first else f"{times:.2f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(row: Mapping[str, float], column: Column) -> str:
    if (value := row.get(column.key)) is None:
        return ""
    return format(value, ".1f" if column.form == WHOLE and value < 10 else column.form)


def _circumstances(case: Mapping[str, Any]) -> str:
    """How a case was measured, but for the load."""
    numbers = ", ".join(f"{package} {number}" for package, number in case["versions"].items())
    return f"{case['rounds']} rounds, {case['machine']}, {case['date']}; {numbers}"


def _filled(text: str) -> str:
    return fill(text, WIDTH, break_on_hyphens=False)


def page() -> str:
    parts = [
        "# Benchmarks",
        _filled(
            "Medians of several processes of their own, measured in turns with the page cache warm. "
            "`tests/benchmarks/results` holds the figures as JSON, and `python -m tests.benchmarks.results` makes this "
            "page of them. [loader.md](loader.md#how-well-the-samples-are-shuffled) has the quality of shuffling."
        ),
    ]
    for name, section in SECTIONS.items():
        path = FOLDER / f"{name}.json"
        if not path.exists():
            continue
        parts += [f"## {section.title}", _filled(section.text)]
        cases: dict[str, dict[str, Any]] = json.loads(path.read_text())
        for said, group in groupby(cases, key=lambda title: _circumstances(cases[title])):
            loads: list[float] = []
            for title in group:
                parts += [f"### {title}", table(section, cases[title])]
                loads += cases[title]["load"]
            busy = " to ".join(map(str, sorted({min(loads), max(loads)})))
            parts.append(_filled(f"Load {busy}; {said}."))
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
