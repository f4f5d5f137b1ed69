"""How often the findings of quality are right, on photographs of your own.

TARMAC_PHOTOS names a folder of photographs. `captions.txt` in it has a line for each, in the order of their names;
without it, captions are made of the names. First see what is named as they are, look at it, and write the names of
those that are rightly named into `faulty.txt`, one a line: they are left out from then on.

    python -m tests.benchmarks.bench_quality_photos     what is named of the photographs as they are

Then all kinds of `planted.py` are planted, each in 3 % of the photographs, and counted by sample (copies by pair), and
copies are changed by more and more. cleanvision, imagehash and imagededup judge the same files.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tasks.core.config import validate
from tasks.core.tokens import caption_counter
from tasks.dataset.building.builder import build
from tasks.dataset.duplicates import Looks, nearly_equal
from tasks.dataset.quality import examine
from tasks.dataset.quality.assessment import Assessment
from tasks.dataset.quality.columns import read_statistics
from tasks.dataset.version.manifest import read_manifest
from tasks.dataset.version.tables import read_pieces
from tests.benchmarks import quality_peer
from tests.benchmarks.harness import Absent, Benchmark, Case, Column, Row, Setup, round_number
from tests.dataset.quality.planted import CHANGES, FOUND_AS, PLANTS, Sample, all_planted, opened, write
from tests.system.foreign_env import foreign_env

PHOTOS = "TARMAC_PHOTOS"
SHARE, CHANGED = 0.03, 300
COPIES = ("exact copies", "near copies")
BESIDE = {"blurred": ("enlarged",), "enlarged": ("blurred",)}
PEERS = {"one colour": "low_information", "blurred": "blurry", "enlarged": "blurry"}
"""The kinds that cleanvision knows besides copies, by its words for them."""
THRESHOLDS = (("imagehash", 4), ("imagehash", 8), ("imagededup", 10))
"""Hashes, and how many bits of a copy's may differ; 10 is imagededup's default."""

WRONG = "wrong of all pairs"
"""The row of how many pairs of different photographs are taken for copies."""

Pairs = set[frozenset[str]]
Scores = dict[str, Row]
"""By kind and tool."""


def figures(truth: set[Any], named: set[Any], known: set[Any]) -> Row:
    """Precision and recall of what is named, of which `known` is neither right nor wrong."""
    found, wrong = len(truth & named), len(named - truth - known)
    precision = found / (found + wrong) if found + wrong else 1.0
    return {
        "precision": precision,
        "recall": found / len(truth),
        "f1": 2 * found / (len(truth) + found + wrong),
    }


@cache
def photographs() -> tuple[list[Sample], dict[str, str]]:
    """The photographs but the faulty ones as samples, and the names of their files by sample."""
    if not os.environ.get(PHOTOS):
        raise Absent(f"{PHOTOS} names no folder of photographs")
    folder = Path(os.environ[PHOTOS])
    captions, faulty = lines_of(folder / "captions.txt"), lines_of(folder / "faulty.txt")
    formats = set(Image.registered_extensions())
    paths = [one for one in sorted(folder.iterdir()) if one.suffix.lower() in formats]
    samples, names = [], {}
    for number, path in enumerate(path for path in paths if path.name not in faulty):
        caption = captions[number] if captions else re.sub(r"[\W\d_]+", " ", path.stem)
        samples.append(Sample(f"{number:04d}{path.suffix.lower()}", path.read_bytes(), caption))
        names[samples[-1].name] = path.name
    return samples, names


def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def built(samples: list[Sample], folder: Path) -> tuple[Path, Assessment]:
    """Write and build the samples; return the version and what was found of it, with all examples."""
    source = {"kind": "table", "path": str(write(samples, folder / "raw")), "image": "file"}
    block = {"output": str(folder / "out"), "modality": "image_text", "reject_budget": 0}
    config = validate(
        {"name": "photos", "dataset": {**block, "source": {**source, "caption": "caption"}}}, ""
    )
    version = build(config).version
    return version, examine.examine(version, read_manifest(version), caption_counter())


def named_by(found: Assessment) -> dict[str, list[str]]:
    everything = {**found.pictures, **found.captions}
    clusters = [one.key for cluster in found.clusters for one in cluster.members]
    return {"copies": clusters, **{name: [one.key for one in f.examples] for name, f in everything.items()}}


def pairs_of(sets: Iterable[Iterable[str]]) -> Pairs:
    return {frozenset(pair) for one in sets for pair in combinations(one, 2)}


def close_pairs(hashes: Mapping[str, str], most: int) -> Pairs:
    names = list(hashes)
    bits = np.array([int(one, 16) for one in hashes.values()], np.uint64)
    found: Pairs = set()
    for row, one in enumerate(bits):
        near = np.flatnonzero(np.bitwise_count(bits[row + 1 :] ^ one) <= most)
        found |= {frozenset((names[row], names[row + 1 + other])) for other in near}
    return found


def hashes_by_tool(judged: Any) -> dict[str, dict[str, str]]:
    tools = ("imagehash", "imagededup")
    return {tool: {name: one[n] for name, one in judged["hashes"].items()} for n, tool in enumerate(tools)}


def peers(folder: Path, *more: str) -> Any:
    out = folder / "peers.json"
    python = foreign_env("quality") / "python"
    command = [python, quality_peer.__file__, folder / "raw", out, *more]
    subprocess.run([str(part) for part in command], check=True, capture_output=True)
    return json.loads(out.read_text())


@cache
def planted(seed: int, folder: Path) -> Scores:
    """Plant every kind, and judge what each tool names of it."""
    samples, _ = photographs()
    every, names, originals = all_planted(samples, count := round(len(samples) * SHARE), seed)
    _, found = built(every, folder / str(seed))
    judged = peers(folder / str(seed), "issues")
    named, plain, scores = named_by(found), set(names["one colour"]), {}
    for kind in PLANTS:
        truth = set(names[kind])
        known = {name for one in BESIDE.get(kind, ()) for name in names[one]}
        if kind in FOUND_AS:
            scores[f"{kind}: tarmac"] = figures(truth, set(named[FOUND_AS[kind][1]]), known)
        if kind in PEERS:
            also = known | (plain if kind != "one colour" else set())
            scores[f"{kind}: cleanvision"] = figures(truth, set(judged["kinds"][PEERS[kind]]), also)
    repeated = sum(int(times) * many for times, many in found.repeats.items() if int(times) > 1)
    scores["one caption for many: tarmac"] = figures(set(range(count)), set(range(repeated)), set())
    clusters = [[one.key for one in cluster.members] for cluster in found.clusters]
    by_tool = {"tarmac": pairs_of(clusters), "cleanvision": pairs_of(judged["copies"])}
    for tool, most in THRESHOLDS:
        by_tool[spelled(tool, most)] = close_pairs(hashes_by_tool(judged)[tool], most)
    true = {kind: {frozenset((copy, originals[copy])) for copy in names[kind]} for kind in COPIES}
    for tool, pairs in by_tool.items():
        pairs = {pair for pair in pairs if not pair <= plain}
        for kind, other in (COPIES, COPIES[::-1]):
            scores[f"{kind}: {tool}"] = figures(true[kind], pairs, true[other])
    return scores


def spelled(tool: str, most: int) -> str:
    return f"{tool}, {most} bits"


def judged_kinds() -> Iterator[str]:
    """The rows of `planted`, ours of a kind first."""
    tools = ["tarmac", "cleanvision", *(spelled(*one) for one in THRESHOLDS)]
    for kind in PLANTS:
        yield f"{kind}: tarmac"
        yield from (f"{kind}: {tool}" for tool in tools[1:] if kind in COPIES)
        if kind in PEERS:
            yield f"{kind}: cleanvision"


@cache
def changed(folder: Path) -> dict[str, Row]:
    """The share of the copies that is found by change and tool, and the pairs of different photographs that are
    taken for copies."""
    samples, _ = photographs()
    every = list(samples)
    for sample in random.Random(0).sample(samples, min(CHANGED, len(samples))):
        for number, change in enumerate(CHANGES.values()):
            name = f"{sample.name[:4]}-{number}.jpg"
            every.append(Sample(name, change(opened(sample)), f"{sample.caption} {number}"))
    version, found = built(every, folder)
    looks = read_statistics(version, found.samples).looks
    hashes = hashes_by_tool(peers(folder))
    assert looks is not None
    tables = [version / "samples" / f"{split}.parquet" for split in found.samples]
    keys = [
        str(key) for path in tables for piece in read_pieces(path, ["original_key"]) for key in keys_of(piece)
    ]
    row = {key: number for number, key in enumerate(keys)}
    own = [row[sample.name] for sample in samples]
    original = {sample.name[:4]: sample.name for sample in samples}
    rows: dict[str, Row] = {}
    for number, change in enumerate(CHANGES):
        copies = {key: original[key[:4]] for key in keys if key.endswith(f"-{number}.jpg")}
        rates = {"tarmac": recall(looks, own, [(row[copy], row[one]) for copy, one in copies.items()])}
        for tool, most in THRESHOLDS:
            close = [bits(hashes[tool][copy], hashes[tool][one]) <= most for copy, one in copies.items()]
            rates[spelled(tool, most)] = sum(close) / len(close)
        rows[change] = rates
    labels = nearly_equal(looks, np.array(own))
    wrong: dict[str, float] = {"tarmac": sum(n * (n - 1) // 2 for n in Counter(labels.tolist()).values())}
    for tool, most in THRESHOLDS:
        theirs = {one.name: hashes[tool][one.name] for one in samples}
        wrong[spelled(tool, most)] = len(close_pairs(theirs, most))
    rows[WRONG] = wrong
    return rows


def keys_of(piece: Any) -> list[Any]:
    keys: list[Any] = piece.column(0).to_pylist()
    return keys


def bits(one: str, other: str) -> int:
    return (int(one, 16) ^ int(other, 16)).bit_count()


def recall(looks: Looks, own: list[int], pairs: list[tuple[int, int]]) -> float:
    """Return the share of the copies that join their originals among all photographs."""
    some = [*own, *(copy for copy, _ in pairs)]
    place = {one: number for number, one in enumerate(some)}
    labels = nearly_equal(looks, np.array(some))
    return sum(labels[place[copy]] == labels[place[one]] for copy, one in pairs) / len(pairs)


def findings(setup: Setup) -> Iterator[Case]:
    samples, _ = photographs()
    show_everything()
    folder = setup.new_folder()
    rows = {name: lambda name=name: planted(round_number(), folder)[name] for name in judged_kinds()}
    yield Case(f"{len(samples):,} photographs", rows)


def copies(setup: Setup) -> Iterator[Case]:
    samples, _ = photographs()
    show_everything()
    folder = setup.new_folder()
    rows = {name: lambda name=name: changed(folder)[name] for name in (*CHANGES, WRONG)}
    yield Case(f"{min(CHANGED, len(samples))} photographs among {len(samples):,}", rows)


def show_everything() -> None:
    examine.SHOWN = examine.MOST_MEMBERS = 1_000_000


BENCHMARKS = (
    Benchmark(
        "findings",
        "How often the findings of quality are right",
        "14 kinds of faults, each planted in 3 % of the photographs of a folder that `TARMAC_PHOTOS` names, once a "
        "round; [quality.md](quality.md#how-often-it-is-right) says which photographs these were. Precision, recall "
        "and F1 of the samples that are named, of copies: the pairs. imagehash and imagededup compare hashes, of "
        "which so many bits may differ.",
        findings,
        (
            Column("precision", "precision", ".2f"),
            Column("recall", "recall", ".2f"),
            Column("f1", "F1", ".2f"),
        ),
        environments=("quality",),
        rounds=3,
        is_warm=False,
        average="mean",
    ),
    Benchmark(
        "copies",
        "How far a copy may be changed",
        "The share of the copies that is found, by what was done to them; of the last row the number of pairs of "
        "different photographs that are taken for copies.",
        copies,
        tuple(
            Column(tool, tool, ".2f")
            for tool in ("tarmac", *(spelled(tool, most) for tool, most in THRESHOLDS))
        ),
        environments=("quality",),
        rounds=1,
        is_warm=False,
    ),
)


def main() -> None:
    """Print what is named of the photographs as they are."""
    samples, files = photographs()
    show_everything()
    with tempfile.TemporaryDirectory(prefix="tarmac-photos-") as name:
        _, found = built(samples, Path(name))
    print(f"{len(samples):,} photographs alone")
    for kind, keys in named_by(found).items():
        print(f"    {kind:12} {len(keys):4}  {', '.join(files[key] for key in keys)}")


if __name__ == "__main__":
    try:
        main()
    except Absent as reason:
        print(reason, file=sys.stderr)
        raise SystemExit(2) from None
