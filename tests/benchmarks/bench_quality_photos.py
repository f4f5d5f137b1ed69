"""How often the findings of quality are right, on photographs of your own: precision and recall by kind.

FOLDER holds photographs. First they are assessed as they are, and every picture that is named is printed:
look at them, and name those that are rightly named in FOLDER/faulty.txt, one a line; the next run leaves them
out. Then all kinds of `planted.py` are planted, each in 3 % of the photographs, SEEDS times, and counted by
sample. Last, copies are changed by more and more, and pairs are looked for. Each line of CAPTIONS is the
caption of a photograph; without it, captions are made of the files' names.

cleanvision, imagehash and imagededup judge the same files, in an environment of their own.

    .venv/bin/python -m tests.benchmarks.bench_quality_photos FOLDER [CAPTIONS] [SEEDS]
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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
from tasks.dataset.quality.columns import read_columns
from tasks.dataset.version.manifest import read_manifest
from tasks.dataset.version.tables import read_pieces
from tests.benchmarks import quality_peer
from tests.dataset.quality.planted import CHANGES, FOUND_AS, PLANTS, Sample, all_planted, opened, write
from tests.system.foreign_env import foreign_env

SEEDS, SHARE, CHANGED = 3, 0.03, 300
COPIES = ("exact copies", "near copies")
BESIDE = {"blurred": ("enlarged",), "enlarged": ("blurred",)}
PEERS = {"one colour": "low_information", "blurred": "blurry", "enlarged": "blurry"}
"""The kinds that cleanvision knows besides copies, by its words for them."""
THRESHOLDS = (("imagehash", 4), ("imagehash", 8), ("imagededup", 10))
"""Hashes, and how many bits of a copy's may differ; 10 is imagededup's default."""

Pairs = set[frozenset[str]]
Scores = dict[tuple[str, str], "Count"]
"""By kind and tool."""


@dataclass
class Count:
    """How many were planted, found of these, and named wrongly."""

    planted: int = 0
    found: int = 0
    wrong: int = 0

    def add(self, truth: set[Any], named: set[Any], known: set[Any]) -> None:
        self.planted += len(truth)
        self.found += len(truth & named)
        self.wrong += len(named - truth - known)

    def __str__(self) -> str:
        recall, named = self.found / self.planted, self.found + self.wrong
        precision = self.found / named if named else 1.0
        f1 = 2 * self.found / (self.planted + named)
        return f"{precision:9.3f} {recall:7.3f} {f1:6.3f}"


def count_of(scores: Scores, kind: str, tool: str) -> Count:
    return scores.setdefault((kind, tool), Count())


def photographs(folder: Path, captions: Sequence[str]) -> tuple[list[Sample], dict[str, str]]:
    """Return the photographs but the faulty ones as samples, and the names of their files by sample."""
    listed = folder / "faulty.txt"
    faulty = set(listed.read_text().split("\n")) if listed.exists() else set()
    formats = set(Image.registered_extensions())
    paths = [one for one in sorted(folder.iterdir()) if one.suffix.lower() in formats]
    samples, names = [], {}
    for number, path in enumerate(path for path in paths if path.name not in faulty):
        caption = captions[number] if captions else re.sub(r"[\W\d_]+", " ", path.stem)
        samples.append(Sample(f"{number:04d}{path.suffix.lower()}", path.read_bytes(), caption))
        names[samples[-1].name] = path.name
    return samples, names


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


def score(samples: list[Sample], seed: int, folder: Path, scores: Scores) -> None:
    """Plant every kind and count what each tool names of it."""
    count = round(len(samples) * SHARE)
    every, names, originals = all_planted(samples, count, seed)
    _, found = built(every, folder)
    judged = peers(folder, "issues")
    named = named_by(found)
    plain = set(names["one colour"])
    for kind in PLANTS:
        truth = set(names[kind])
        known = {name for one in BESIDE.get(kind, ()) for name in names[one]}
        if kind in FOUND_AS:
            count_of(scores, kind, "tarmac").add(truth, set(named[FOUND_AS[kind][1]]), known)
        if kind in PEERS:
            also = known | (plain if kind != "one colour" else set())
            count_of(scores, kind, "cleanvision").add(truth, set(judged["kinds"][PEERS[kind]]), also)
    repeated = sum(int(times) * many for times, many in found.repeats.items() if int(times) > 1)
    truth = set(range(count))
    count_of(scores, "one caption for many", "tarmac").add(truth, set(range(repeated)), set())
    clusters = [[one.key for one in cluster.members] for cluster in found.clusters]
    by_tool = {"tarmac": pairs_of(clusters), "cleanvision": pairs_of(judged["copies"])}
    for tool, most in THRESHOLDS:
        by_tool[f"{tool} <= {most}"] = close_pairs(hashes_by_tool(judged)[tool], most)
    true = {kind: {frozenset((copy, originals[copy])) for copy in names[kind]} for kind in COPIES}
    for tool, pairs in by_tool.items():
        pairs = {pair for pair in pairs if not pair <= plain}
        for kind, other in (COPIES, COPIES[::-1]):
            count_of(scores, kind, tool).add(true[kind], pairs, true[other])


def print_copies(samples: list[Sample], folder: Path) -> None:
    """Print the recall by change of copies, and the pairs of different photographs that are taken for
    copies."""
    every = list(samples)
    for sample in random.Random(0).sample(samples, min(CHANGED, len(samples))):
        for number, change in enumerate(CHANGES.values()):
            name = f"{sample.name[:4]}-{number}.jpg"
            every.append(Sample(name, change(opened(sample)), f"{sample.caption} {number}"))
    version, found = built(every, folder)
    looks = read_columns(version, found.samples).looks
    hashes = hashes_by_tool(peers(folder))
    assert looks is not None
    tables = [version / "samples" / f"{split}.parquet" for split in found.samples]
    keys = [
        str(key) for path in tables for piece in read_pieces(path, ["original_key"]) for key in keys_of(piece)
    ]
    row = {key: number for number, key in enumerate(keys)}
    own = [row[sample.name] for sample in samples]
    original = {sample.name[:4]: sample.name for sample in samples}
    print(
        f"\n{'recall by change of copies':28}{'tarmac':>9}"
        + "".join(f"{t:>11}<={m:<2}" for t, m in THRESHOLDS)
    )
    for number, change in enumerate(CHANGES):
        copies = {key: original[key[:4]] for key in keys if key.endswith(f"-{number}.jpg")}
        rates = [recall(looks, own, [(row[copy], row[one]) for copy, one in copies.items()])]
        for tool, most in THRESHOLDS:
            close = [bits(hashes[tool][copy], hashes[tool][one]) <= most for copy, one in copies.items()]
            rates.append(sum(close) / len(close))
        print(f"{change:28}{rates[0]:9.3f}" + "".join(f"{rate:15.3f}" for rate in rates[1:]))
    labels = nearly_equal(looks.take(np.array(own)))
    wrong = [sum(n * (n - 1) // 2 for n in Counter(labels.tolist()).values())]
    for tool, most in THRESHOLDS:
        wrong.append(len(close_pairs({one.name: hashes[tool][one.name] for one in samples}, most)))
    pairs = len(own) * (len(own) - 1) // 2
    print(f"{f'wrong of {pairs:,} pairs':28}{wrong[0]:9}" + "".join(f"{one:15}" for one in wrong[1:]))


def keys_of(piece: Any) -> list[Any]:
    keys: list[Any] = piece.column(0).to_pylist()
    return keys


def bits(one: str, other: str) -> int:
    return (int(one, 16) ^ int(other, 16)).bit_count()


def recall(looks: Looks, own: list[int], pairs: list[tuple[int, int]]) -> float:
    """Return the share of the copies that join their originals among all photographs."""
    some = [*own, *(copy for copy, _ in pairs)]
    place = {one: number for number, one in enumerate(some)}
    labels = nearly_equal(looks.take(np.array(some)))
    return sum(labels[place[copy]] == labels[place[one]] for copy, one in pairs) / len(pairs)


def main(folder: str, captions: str = "", seeds: str = str(SEEDS)) -> None:
    examine.SHOWN = examine.MOST_MEMBERS = 1_000_000
    lines = Path(captions).read_text(encoding="utf-8").splitlines() if captions else []
    samples, files = photographs(Path(folder), lines)
    with tempfile.TemporaryDirectory(prefix="tarmac-photos-") as name:
        _, found = built(samples, Path(name) / "alone")
        print(f"{len(samples):,} photographs alone")
        for kind, keys in named_by(found).items():
            print(f"    {kind:12} {len(keys):4}  {', '.join(files[key] for key in keys)}")
        scores: Scores = {}
        for seed in range(int(seeds)):
            score(samples, seed, Path(name) / str(seed), scores)
        if scores:
            print(f"\n{SHARE:.0%} of each kind, {seeds} times     precision  recall     F1")
            for (kind, tool), counted in scores.items():
                print(
                    f"{kind:24} {tool:16} {counted}  {counted.found} of {counted.planted}, {counted.wrong} wrong"
                )
            print_copies(samples, Path(name) / "copies")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        print("give a folder of photographs", file=sys.stderr)
        raise SystemExit(2)
    main(*sys.argv[1:])
