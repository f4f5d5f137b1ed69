"""What a dataset's size costs: seconds and memory of each operation at 10^3, 10^4 … samples, and of more workers.

    .venv/bin/python -m tests.benchmarks.bench_scale [--quick] [PART…]

A part is `constants`, `workers` or one of the operations, such as `verify`; without one all are measured. Each point is
a process of its own, and the operations take turns. What reads members is not measured beyond 10^6 samples; the
versions for the others have none (see `SIZES`). The figures go to results/scale.json, and from there to docs/scale.md:
`python -m tests.benchmarks.scale_page`. With `--quick` small sizes run once and are only printed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

from tests.benchmarks import build_corpus, results, scale_workers
from tests.benchmarks.scale_probe import LOADING, Probed, probe
from tests.dataset import raw
from tests.soak import billion, many_shards
from tests.system.foreign_env import ROOT

ROUNDS = 3
PER_SHARD = 10_000
SIZES = {"plan": 6, "index": 6, "verify": 8, "preflight": 8, **dict.fromkeys(LOADING, 9)}
"""By operation: the largest power of ten of samples. plan reads a row of a table for each sample, and index its members.
verify (at its level quick) and preflight read no member: they get tars that are holes, with whole tables and a whole
index. The loader gets an index that is a sparse file, with real rows and real members where its batches lie."""
SMALLEST, QUICK = 3, 5
CORPUS = 4000
"""Pictures of which a real version is built, for what a sample takes on the disk."""
CONFIG = """\
name: many
dataset:
  output: {output}
  modality: image_text
  source: {{kind: table, path: {table}, image: file, caption: caption{key}}}
  shard: {{samples: {per_shard}}}
  leak_budget: 1.0
train: {{recipe: clip, model: {{name: tarmac/digits}}, batch_size: 64, steps: 10, lr: 1.0e-3, checkpoint_every: 10}}
engine: {{build: {{kind: local, workers: 1}}}}
"""


def shards_of(samples: int) -> int:
    return max(samples // PER_SHARD, 1)


def write_table(folder: Path, samples: int) -> Path:
    """A table of so many captions, all of one picture."""
    folder.mkdir()
    (folder / "a.png").write_bytes(raw.png(1, side=8))
    table = folder / "captions.csv"
    with table.open("w") as file:
        file.write("file,caption,key\n")
        file.writelines(f"a.png,picture {number},k{number:09d}\n" for number in range(samples))
    return table


def _config(folder: Path, output: Path, table: Path, key: str = "") -> Path:
    path = folder / "many.yaml"
    path.write_text(CONFIG.format(output=output, table=table, key=key, per_shard=PER_SHARD))
    return path


def prepared(folder: Path, operation: str, samples: int) -> Callable[[], Probed]:
    """Write what the operation needs, unless it is there, and return what measures it once."""
    kind = {"plan": "table", "index": "tars", "verify": "outside", "preflight": "outside"}.get(
        operation, "sparse"
    )
    place = folder / f"{kind}-{samples}"
    if not place.exists():
        write(place, kind, samples)
    version = place / "version"
    if operation == "index":

        def index() -> Probed:
            made = tempfile.mkdtemp(prefix="indexed-", dir=folder)
            try:
                return probe(place, "command", "index", f"{version}/train", f"{made}/out", "--json")
            finally:
                shutil.rmtree(made)

        return index
    if operation == "verify":
        return lambda: probe(place, "command", "verify", str(version), "--quick", "--json")
    if operation in ("plan", "preflight"):
        return lambda: probe(place, "command", operation, str(place / "many.yaml"), "--json")
    tiny = folder / f"sparse-{10**SMALLEST}/version"
    return lambda: probe(version, operation, str(tiny), str(samples))


def write(place: Path, kind: str, samples: int) -> None:
    """Write a dataset of so many samples, as far as the operations of its kind look at it."""
    place.mkdir()
    version, shards, per_shard = place / "version", shards_of(samples), min(samples, PER_SHARD)
    if kind == "table":
        _config(place, place / "out", write_table(place / "raw", samples), ", key: key")
    elif kind == "tars":
        many_shards.make(version, shards, per_shard)
    elif kind == "outside":
        many_shards.make_outside(version, shards, per_shard)
        _config(place, version, place / "none.csv")
    else:
        version.mkdir()
        billion.write(version, samples, shards)


def curves(folder: Path, operations: list[str], most: int, rounds: int) -> dict[str, results.Rows]:
    """By operation and number of samples: the medians, and the fastest and the slowest of all rounds."""
    found: dict[str, dict[str, dict[str, float]]] = {name: {} for name in operations}
    for power in range(SMALLEST, min(max(SIZES[name] for name in operations), most) + 1):
        samples = 10**power
        asked = [name for name in operations if power <= SIZES[name]]
        measures = {name: prepared(folder, name, samples) for name in asked}
        taken: dict[str, list[Probed]] = {name: [] for name in asked}
        for _ in range(rounds):
            for name, measure in measures.items():
                taken[name].append(measure())
        for name, all_of_it in taken.items():
            row = found[name][str(samples)] = _row(samples, all_of_it)
            print(
                f"{samples:>13,} samples, {name}: {row['seconds']:.2f} s, {row['peak_mb']:.0f} MB", flush=True
            )
        for place in folder.glob(f"*-{samples}"):
            if power > SMALLEST:
                shutil.rmtree(place)
    return found


def _row(samples: int, taken: list[Probed]) -> dict[str, float]:
    seconds = [one.seconds for one in taken]
    row = {
        "samples": samples,
        "shards": shards_of(samples),
        "seconds": median(seconds),
        "fastest_s": min(seconds),
        "slowest_s": max(seconds),
        "peak_mb": median(one.peak_mb for one in taken),
        "highest_mb": max(one.peak_mb for one in taken),
    }
    grown = [one.grown_mb for one in taken if one.grown_mb is not None]
    return {**row, "grown_mb": median(grown)} if grown else row


def constants(folder: Path, pictures: int) -> results.Rows:
    """What a sample of 256 x 256 pixels takes in a real version of `tests.benchmarks.build_corpus`."""
    corpus, output = folder / "corpus", folder / "built"
    build_corpus.make(corpus, pictures)
    config = _config(folder, output, corpus / build_corpus.TABLE)
    command = [str(Path(sys.executable).with_name("tarmac")), "build", str(config), "--json"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    version = (output / "current").resolve()
    sizes = {path.relative_to(version): path.stat().st_size for path in version.rglob("*") if path.is_file()}
    per_sample = {
        "tar_bytes": sum(size for path, size in sizes.items() if path.suffix == ".tar"),
        "samples_bytes": sum(size for path, size in sizes.items() if path.parent.name == "samples"),
        "inputs_bytes": sizes[Path("inputs.arrow")],
        "raw_bytes": sum(path.stat().st_size for path in corpus.rglob("*.jpg")),
    }
    row = {"pictures": float(pictures), **{name: size / pictures for name, size in per_sample.items()}}
    print(f"constants: {row}", flush=True)
    return {"256 x 256": row}


def measured(folder: Path, parts: list[str], is_quick: bool) -> Iterator[tuple[str, results.Rows, int]]:
    """Each case with its rows and rounds."""
    rounds = 1 if is_quick else ROUNDS
    if "constants" in parts:
        yield "constants", constants(folder, 500 if is_quick else CORPUS), 1
    if operations := [name for name in SIZES if name in parts]:
        for name, rows in curves(folder, operations, QUICK if is_quick else 99, rounds).items():
            yield name, rows, rounds
    if "workers" in parts:
        busy, empty = (8, 50) if is_quick else (16, 500)
        for kind, engine in scale_workers.measure(folder, rounds, busy, empty).items():
            yield f"workers, {kind}", engine, rounds


def main(*words: str) -> None:
    parts = [word for word in words if word != "--quick"] or [*SIZES, "constants", "workers"]
    is_quick = "--quick" in words
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tarmac-scale-") as place:
        os.chmod(place, 0o755)  # munge insists
        loads = [results.load()]
        for case, rows, rounds in measured(Path(place), parts, is_quick):
            loads.append(results.load())
            if not is_quick:
                results.save("scale", case, rows, rounds, loads)
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main(*sys.argv[1:])
