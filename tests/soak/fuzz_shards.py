"""One flipped bit, one cut, one file of random bytes at a time: verify finds and names each of them.

Small real datasets (scikit-learn's digits as PNG, JPEGs, volumes) are built, damaged at one random place,
judged at the default level in this process, and mended. A flip within a sample must name its key, a cut must
be a truncation, and no bytes at all make verify crash, hang, or call sound what is not.
`python -m tests.soak.fuzz_shards [FLIPS=10000] [CUTS=2000] [SEED]`, and as many random files and
garbled tars of other tools as cuts; the test suite does some of each.
"""

from __future__ import annotations

import io
import random
import shutil
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from PIL import Image

from tasks.core.findings import Finding
from tasks.dataset.building.builder import build
from tasks.dataset.version.index import read_index
from tests.dataset import raw, tampering
from tests.dataset.raw import shards
from tests.dataset.verify.judging import as_lines, judged

SAMPLES = {"digits": 40, "jpegs": 24, "volumes": 12}
LEVELS = ("quick", "default", "full")


def make(folder: Path) -> list[Path]:
    """Three sound versions, which weigh about 200 KB in all."""
    made = [_digits(folder / "digits"), _jpegs(folder / "jpegs"), _volumes(folder / "volumes")]
    versions = []
    for version in made:
        versions.append(version.rename(folder / version.parents[2].name / "version"))
        assert judged(versions[-1], "full").ok
    return versions


def _digits(folder: Path) -> Path:
    from sklearn.datasets import load_digits

    rows: list[tuple[Any, ...]] = []
    (folder / "raw").mkdir(parents=True)
    data = load_digits()
    for number, (pixels, digit) in enumerate(zip(data.images, data.target, strict=True)):
        if number < SAMPLES["digits"]:
            image = Image.fromarray((pixels * 15).astype(np.uint8)).resize((32, 32), Image.Resampling.NEAREST)
            image.save(folder / "raw" / f"{number:04d}.png")
            rows.append((f"{number:04d}.png", f"the digit {digit}", int(digit)))
    raw.write_table(folder / "raw", rows)
    return build(raw.config(folder / "raw", folder / "out", splits={"val": 0.3})).version


def _jpegs(folder: Path) -> Path:
    rows: list[tuple[Any, ...]] = []
    for number in range(SAMPLES["jpegs"]):
        rows.append((f"{number}.jpg", f"größe {number}", number))
        (folder / "raw").mkdir(parents=True, exist_ok=True)
        (folder / "raw" / f"{number}.jpg").write_bytes(raw.png(number, kind="JPEG"))
    raw.write_table(folder / "raw", rows)
    return build(raw.config(folder / "raw", folder / "out", splits={"val": 0.3})).version


def _volumes(folder: Path) -> Path:
    raw.volumes(folder / "raw", SAMPLES["volumes"])
    return build(raw.volume_config(folder / "raw", folder / "out", splits={"val": 0.3})).version


@dataclass(frozen=True)
class Shard:
    """A sound shard: its bytes, and where its samples lie."""

    version: Path
    name: str
    data: bytes
    spans: list[tuple[int, int, str]]

    @property
    def path(self) -> Path:
        return self.version / self.name

    def key_at(self, offset: int) -> str | None:
        """None in the end blocks."""
        return next((key for start, stop, key in self.spans if start <= offset < stop), None)


def shards_of(version: Path) -> list[Shard]:
    found = []
    for folder in sorted(path.parent for path in version.glob("*/sizes.json")):
        index = read_index(version, folder.name)
        keys = pq.read_table(version / "samples" / f"{folder.name}.parquet")["key"].to_pylist()
        for number, tar in enumerate(sorted(folder.glob("*.tar"))):
            spans = [
                (int(row["offset"]), int(row["offset"] + row["length"]), key)
                for row, key in zip(index, keys, strict=True)
                if row["shard"] == number
            ]
            found.append(Shard(version, f"{folder.name}/{tar.name}", tar.read_bytes(), spans))
    return found


@dataclass
class Score:
    """What was done, what of it was found, and how what was not found can be done again."""

    done: Counter[str] = field(default_factory=Counter)
    found: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    @contextmanager
    def attempt(self, kind: str, what: str) -> Iterator[None]:
        """An AssertionError or any other within it is a failure, and the next attempt follows."""
        self.done[kind] += 1
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a crash of verify is what is looked for
            self.failures.append(f"{kind}, {what}: {type(error).__name__}: {error}")
        else:
            self.found[kind] += 1

    def lines(self) -> Iterator[str]:
        for kind, done in self.done.items():
            yield f"{kind}: {self.found[kind]:,} of {done:,} found and named"
        yield from self.failures[:20]


class Fuzz:
    """Damages one file at a time and puts it right again."""

    def __init__(self, versions: list[Path], seed: int) -> None:
        self.rng = random.Random(seed)
        self.versions = versions
        self.shards = [shard for version in versions for shard in shards_of(version)]
        self._weights = [len(shard.data) for shard in self.shards]
        self.score = Score()
        members = [(f"a/größe_{n}.{suffix}", data) for n in range(9) for suffix, data in FOREIGN.items()]
        self.foreign = {f"format {form}": shards.tar_bytes(members, form) for form in FORMATS}

    def flip(self) -> None:
        """One bit anywhere in all tars."""
        (shard,) = self.rng.choices(self.shards, self._weights)
        offset, bit = self.rng.randrange(len(shard.data)), self.rng.randrange(8)
        key = shard.key_at(offset)
        what = f"{shard.version.parent.name}/{shard.name}: bit {bit} of byte {offset} (key {key})"
        tampering.flip(shard.path, offset, bit)
        try:
            with self.score.attempt("flipped bits", what):
                findings = judged(shard.version).findings
                require(findings, shard.name, ("shard.checksum", "shard.truncated"))
                if key is not None:
                    require(findings, shard.name, ("member.checksum",), key)
                strange = [one for one in findings if one.where.get("shard", shard.name) != shard.name]
                assert not strange, f"blames others:{as_lines(strange)}"
        finally:
            tampering.flip(shard.path, offset, bit)

    def cut(self) -> None:
        """The end of a tar, at any byte."""
        (shard,) = self.rng.choices(self.shards, self._weights)
        size = self.rng.randrange(len(shard.data))
        level = self.rng.choice(LEVELS)
        what = f"{shard.version.parent.name}/{shard.name} cut to {size} bytes, {level}"
        shard.path.write_bytes(shard.data[:size])
        try:
            with self.score.attempt("cuts", what):
                require(judged(shard.version, level).findings, shard.name, ("shard.truncated",))
        finally:
            shard.path.write_bytes(shard.data)

    def garble(self) -> None:
        """Random damage to a tar of which nothing is known: verify need not see it, but must come to an end."""
        name, data = self.rng.choice(sorted(self.foreign.items()))
        how, change = self.rng.choice(sorted(SCRIBBLES.items()))
        level = self.rng.choice(LEVELS)
        path = self.versions[0].parent / "foreign.tar"
        path.write_bytes(change(self.rng, data))
        with self.score.attempt("garbled tars of others", f"{name}, {how}, {level}"):
            judged(path, level)
        path.unlink()

    def scribble(self) -> None:
        """Random bytes as or in any file of a version."""
        version = self.rng.choice(self.versions)
        path = self.rng.choice(sorted(path for path in version.rglob("*") if path.is_file()))
        before = path.read_bytes()
        name, data = self.rng.choice(sorted(SCRIBBLES.items()))
        after = data(self.rng, before)
        level = self.rng.choice(LEVELS)
        if after == before or path.name in NO_MATTER:
            return
        path.write_bytes(after)
        kind = f"random bytes as or in {path.name if path.suffix != '.tar' else 'a tar'}"
        try:
            with self.score.attempt(kind, f"{path.relative_to(version.parent)}, {name}, {level}"):
                report = judged(version, level)
                is_seen = level != "quick" or path.suffix != ".tar"
                assert not (is_seen and report.ok), "it is called sound"
        finally:
            path.write_bytes(before)


def _npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


FORMATS = (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
FOREIGN = {
    "jpg": raw.png(1, kind="JPEG"),
    "json": b'{"a": [1, {"b": null}]}',
    "npz": shards.npz(shards.embeddings(), compressed=True),
    "volume.npy": _npy(raw.volume(1)),
    f"{'long_' * 30}.txt": b"a text",
}
"""Members with a decoder of their own each, of a name in an extended header."""
NO_MATTER = ("inputs.arrow",)
"""Our own note for the next build, which is no part of the dataset."""


def _noise(rng: random.Random, before: bytes) -> bytes:
    return rng.randbytes(rng.randrange(4096))


def _half_noise(rng: random.Random, before: bytes) -> bytes:
    start = rng.randrange(len(before))
    return before[:start] + rng.randbytes(len(before) - start)


def _spots(rng: random.Random, before: bytes) -> bytes:
    data = bytearray(before)
    for _ in range(rng.randrange(1, 9)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def _hole(rng: random.Random, before: bytes) -> bytes:
    start, size = rng.randrange(len(before)), rng.randrange(1, 600)
    return (before[:start] + bytes(size) + before[start + size :])[: len(before)]


def _slice_moved(rng: random.Random, before: bytes) -> bytes:
    start, to, size = rng.randrange(len(before)), rng.randrange(len(before)), rng.randrange(1, 600)
    return (before[:to] + before[start : start + size] + before[to + size :])[: len(before)]


def _slice_lost(rng: random.Random, before: bytes) -> bytes:
    start, size = rng.randrange(len(before)), rng.randrange(1, 600)
    return before[:start] + before[start + size :]


SCRIBBLES: dict[str, Callable[[random.Random, bytes], bytes]] = {
    "noise": _noise,
    "noise from somewhere on": _half_noise,
    "some flipped bits": _spots,
    "a hole": _hole,
    "a part elsewhere": _slice_moved,
    "a part lost": _slice_lost,
}


def require(findings: Any, shard: str, codes: tuple[str, ...], key: str | None = None) -> None:
    """One finding has one of the codes and names the shard, and the key if one is given."""
    for one in findings:
        is_named = one.where.get("shard") == shard and (key is None or one.where.get("key") == key)
        if isinstance(one, Finding) and one.code in codes and is_named:
            return
    raise AssertionError(f"no {'|'.join(codes)} of {shard} {key or ''} among{as_lines(findings)}")


def fuzz(versions: list[Path], flips: int, cuts: int, files: int, seed: int) -> Score:
    """Damage the versions so often; afterwards they are sound again."""
    made = Fuzz(versions, seed)
    for _ in range(flips):
        made.flip()
    for _ in range(cuts):
        made.cut()
    for _ in range(files):
        made.scribble()
        made.garble()
    for version in versions:
        assert judged(version, "full").ok
    return made.score


def main(arguments: list[str]) -> None:
    given = [int(argument) for argument in arguments]
    flips, cuts, seed = [*given, *(10_000, 2_000, int(time.time()))[len(given) :]]
    print(f"seed {seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="tarmac-fuzz-"))
    versions = make(folder)
    size = sum(path.stat().st_size for version in versions for path in version.glob("*/*.tar"))
    began = time.monotonic()
    score = fuzz(versions, flips, cuts, cuts, seed)
    print(f"{size:,} bytes of tars, {time.monotonic() - began:.0f} s")
    print(*score.lines(), sep="\n")
    shutil.rmtree(folder)
    if score.failures:
        sys.exit(f"{len(score.failures)} were missed")


if __name__ == "__main__":
    main(sys.argv[1:])
