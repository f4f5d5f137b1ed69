"""What a dataset's size costs: seconds and memory of each operation at 10^3, 10^4 … samples; the same work on more
workers; and what a sample takes on the disk. docs/scale.md is computed from what is kept (`scale_page.py`).

No version of 10^9 samples is written here. What reads members, or a row for each sample, is measured up to 10^6; what
reads none gets tars that are holes, or an index that is a sparse file, and its case says so.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from tests import slurm_lab
from tests.benchmarks import build_corpus, scale_workers
from tests.benchmarks.harness import (
    Absent,
    Benchmark,
    Case,
    Column,
    Contestant,
    Figures,
    Promise,
    Row,
    Setup,
    value,
)
from tests.benchmarks.scale_probe import LOADING, TINY, Probed, forked, probe
from tests.dataset import raw
from tests.soak import billion, many_shards
from tests.system.foreign_env import ROOT

PER_SHARD = 10_000
SMALLEST, QUICK = 3, 5
MOST = {"plan": 6, "index": 6, "verify --quick": 8, "preflight": 8, **dict.fromkeys(LOADING, 9)}
"""By operation: the largest power of ten of samples."""
CORPUS = 4000
WORKERS = (1, 2, 4)
CONFIG = """\
name: many
dataset:
  output: {output}
  modality: image_text
  source: {{kind: table, path: {table}, image: file, caption: caption{key}}}
  shard: {{samples: {per_shard}}}
  splits: {{}}
train: {{recipe: clip, model: {{name: tarmac/digits}}, batch_size: 64, steps: 10, lr: 1.0e-3, checkpoint_every: 10}}
"""


def operations(setup: Setup) -> Iterator[Case]:
    """A case for each operation, whose contestants are numbers of samples."""
    yield points(setup, "plan", write_table, planned)
    yield points(setup, "index", write_tars, indexed)
    seen_outside = setup.new_folder()
    for operation in ("verify --quick", "preflight"):
        yield points(setup, operation, write_outside, partial(commanded, *operation.split()), seen_outside)
    shutil.rmtree(seen_outside)
    sparse = setup.new_folder()
    for operation in LOADING:
        yield points(setup, operation, write_sparse, partial(loaded, operation), sparse)


def points(
    setup: Setup,
    operation: str,
    write: Callable[[Path, int], None],
    measure: Callable[[Path, int], Probed],
    folder: Path | None = None,
) -> Case:
    """The operation on each number of samples; what it works on is written below `folder` unless it is there."""
    folder = folder or setup.new_folder()
    contestants: dict[str, Contestant] = {}
    for power in range(SMALLEST, setup.sized(MOST[operation], min(MOST[operation], QUICK)) + 1):
        samples, place = 10**power, folder / str(10**power)
        if not place.exists():
            place.mkdir()
            write(place, samples)
        contestants[f"{samples:,}"] = partial(row, measure, place, samples)
    return Case(operation, contestants)


def row(measure: Callable[[Path, int], Probed], place: Path, samples: int) -> Row:
    seconds, peak_mb, grown_mb = measure(place, samples)
    return {"seconds": seconds, "peak_mb": peak_mb} | ({} if grown_mb is None else {"grown_mb": grown_mb})


def shards_of(samples: int) -> int:
    return max(samples // PER_SHARD, 1)


def write_table(place: Path, samples: int) -> None:
    """A table of so many captions, all of one picture."""
    (place / "raw").mkdir()
    (place / "raw/a.png").write_bytes(raw.png(1, side=8))
    with (place / "raw/captions.csv").open("w") as file:
        file.write("file,caption,key\n")
        file.writelines(f"a.png,picture {number},k{number:09d}\n" for number in range(samples))
    write_config(place, place / "out", place / "raw/captions.csv", ", key: key")


def write_tars(place: Path, samples: int) -> None:
    many_shards.make(place / "version", shards_of(samples), min(samples, PER_SHARD))


def write_outside(place: Path, samples: int) -> None:
    many_shards.make_outside(place / "version", shards_of(samples), min(samples, PER_SHARD))
    write_config(place, place / "version", place / "none.csv")


def write_sparse(place: Path, samples: int) -> None:
    (place / "version").mkdir()
    billion.write(place / "version", samples, shards_of(samples))


def write_config(place: Path, output: Path, table: Path, key: str = "") -> Path:
    path = place / "many.yaml"
    path.write_text(CONFIG.format(output=output, table=table, key=key, per_shard=PER_SHARD))
    return path


def planned(place: Path, samples: int) -> Probed:
    return probe("plan", str(place / "many.yaml"), "--json")


def indexed(place: Path, samples: int) -> Probed:
    with tempfile.TemporaryDirectory(dir=place) as made:
        return probe("index", f"{place}/version/train", f"{made}/out", "--json")


def commanded(command: str, *options: object) -> Probed:
    """`verify` of a version, or `preflight` of its config; the last two of `options` are the place and the size."""
    *flags, place, _ = options
    assert isinstance(place, Path)
    what = place / ("many.yaml" if command == "preflight" else "version")
    return probe(command, str(what), *map(str, flags), "--json")


def loaded(operation: str, place: Path, samples: int) -> Probed:
    return forked(operation, place / "version", place.parent / str(TINY) / "version", samples)


def engines(setup: Setup) -> Iterator[Case]:
    """A case for each engine, whose contestants are numbers of workers; the clusters run as long as their case."""
    busy, empty = setup.sized((64, 500), (4, 20))
    taken = partial(scale_workers.taken, setup.folder, busy, empty)
    yield Case("local", {named(count): partial(taken, scale_workers.local(count)) for count in WORKERS})
    setup.folder.chmod(0o755)  # munge insists
    with ExitStack() as stack:
        if lacks := slurm_lab.missing():
            yield Case("slurm", {named(1): partial(absent, f"{', '.join(lacks)} not installed")})
        else:
            stack.enter_context(scale_workers.slurm_here(setup.folder / "slurm"))
            yield Case(
                "slurm", {named(count): partial(taken, scale_workers.slurm(count)) for count in WORKERS}
            )
    with ExitStack() as stack:
        found = {
            named(count): partial(taken, scale_workers.dask_here(setup.new_folder(), count, stack))
            for count in WORKERS
        }
        yield Case("dask", found)


def named(workers: int) -> str:
    return "1 worker" if workers == 1 else f"{workers} workers"


def absent(reason: str) -> Row:
    raise Absent(reason)


def room(setup: Setup) -> Iterator[Case]:
    pictures = setup.sized(CORPUS, 500)
    corpus = setup.new_folder()
    build_corpus.make(corpus, pictures)
    yield Case("256 x 256", {"a sample": partial(taken_up, setup, corpus, pictures)})


def taken_up(setup: Setup, corpus: Path, pictures: int) -> Row:
    """Bytes per sample of a version that `tarmac build` makes of the corpus."""
    place = setup.new_folder()
    config = write_config(place, place / "built", corpus / build_corpus.TABLE)
    command = [str(Path(sys.executable).with_name("tarmac")), "build", str(config), "--json"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    version = (place / "built/current").resolve()
    sizes = {path.relative_to(version): path.stat().st_size for path in version.rglob("*") if path.is_file()}
    total = {
        "raw_bytes": sum(path.stat().st_size for path in corpus.rglob("*.jpg")),
        "tar_bytes": sum(size for path, size in sizes.items() if path.suffix == ".tar"),
        "index_bytes": sum(size for path, size in sizes.items() if path.suffix == ".npy"),
        "samples_bytes": sum(size for path, size in sizes.items() if path.parent.name == "samples"),
        "inputs_bytes": sizes[Path("inputs.arrow")],
    }
    return {name: size / pictures for name, size in total.items()}


def growth(figures: Figures) -> float:
    """The peak for the most samples over that for a tenth of them."""
    *_, few, many = (row["peak_mb"] for row in figures.medians.values())
    return many / few


LARGEST = f"{10**9:,}"
SECONDS, PEAK = Column("seconds", "s", ".2f"), Column("peak_mb", "peak, MB")
BENCHMARKS = (
    Benchmark(
        "scale",
        "What the number of samples costs",
        "Each operation on numbers of samples that grow tenfold, 10,000 a shard. plan lists a table, and index reads "
        "tars of 2 KB a sample. verify and preflight get whole tables and a whole index beside tars that are holes, "
        "for they read no member. The loader gets an index that is a sparse file, with real rows and members where its "
        "batches of 8 ranks lie; its seconds and its growth are those after the imports, the others' hold the start of "
        "the command. [Scale](scale.md) shows the curves.",
        operations,
        (SECONDS, PEAK, Column("grown_mb", "growth, MB")),
        promises=(
            Promise(
                "time at 10^9 samples",
                value(LARGEST, "seconds"),
                "at most",
                billion.MOST_BATCH_S,
                unit="s",
                cases=[*LOADING],
            ),
            Promise(
                "growth of the process at 10^9 samples",
                value(LARGEST, "grown_mb"),
                "at most",
                billion.MOST_BYTES / 1e6,
                unit="MB",
                cases=[*LOADING],
            ),
            Promise(
                "peak of the most samples over that of a tenth",
                growth,
                "at most",
                1.1,
                cases=("plan", "index", "verify --quick", "preflight"),
            ),
        ),
        packages=("numpy", "pyarrow", "blake3"),
        rounds=3,
        is_warm=False,
    ),
    Benchmark(
        "workers",
        "The same work on more workers",
        "A map of items that keep a core busy for a tenth of a second each, and one of items that do nothing, by the "
        "engines of a build. Slurm is a real one of two nodes that are this machine, with an array of jobs of one core; "
        "Dask is a scheduler with workers of one thread. Four workers share the cores that there are, and no network "
        "lies between them. The maps start from one process.",
        engines,
        (
            Column("whole_s", "s", ".2f"),
            Column("first_s", "s until the first item begins", ".2f"),
            Column("busy_s", "s from then to the last one's end", ".2f"),
            Column("item_ms", "ms from one empty item to the next", ".2f"),
        ),
        packages=("distributed",),
        rounds=3,
        is_warm=False,
    ),
    Benchmark(
        "room",
        "What a sample takes on the disk",
        "Bytes per sample of a version that `tarmac build` makes of JPEGs of 256 x 256 pixels with a caption.",
        room,
        (
            Column("raw_bytes", "raw"),
            Column("tar_bytes", "tar"),
            Column("index_bytes", "index", ".1f"),
            Column("samples_bytes", "table of samples"),
            Column("inputs_bytes", "inputs.arrow"),
        ),
        packages=("pillow", "pyarrow"),
        rounds=1,
        is_warm=False,
    ),
)
