"""Versions taken apart and put together again: tars by member, and tables that agree with them once more.

What a tar holds is read by Python's tarfile, not by this project, so that a fault of its parser cannot hide
itself.
"""

from __future__ import annotations

import json
import os
import tarfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.core.files import blake3_file, digest
from tasks.dataset.version.build_info import seal_files
from tasks.dataset.version.index import INDEX
from tasks.dataset.version.manifest import SplitSummary, content_digest, read_manifest
from tasks.dataset.version.tables import write_table
from tests.dataset.raw import shards

END = shards.END


@dataclass
class Entry:
    """A member; `kind` is tar's letter."""

    name: str
    content: bytes
    kind: bytes = tarfile.REGTYPE
    linkname: str = ""
    offset: int = 0

    @property
    def key(self) -> str:
        folder, slash, name = self.name.rpartition("/")
        return folder + slash + name.partition(".")[0]

    @property
    def suffix(self) -> str:
        return self.name.rpartition("/")[2].partition(".")[2]

    def to_bytes(self) -> bytes:
        return shards.entry(self.name, self.content, type=self.kind, linkname=self.linkname)


Sample = list[Entry]


def read(tar: Path) -> list[Sample]:
    """Adjacent members of one key are a sample."""
    samples: list[Sample] = []
    with tarfile.open(tar) as archive:
        for info in archive:
            file = archive.extractfile(info) if info.isreg() else None
            content = file.read() if file else b""
            # tarfile strips a leading slash nowhere, but it does read a trailing one as a folder's
            entry = Entry(info.name, content, info.type, info.linkname, info.offset)
            if samples and samples[-1][0].key == entry.key:
                samples[-1].append(entry)
            else:
                samples.append([entry])
    return samples


def write(tar: Path, samples: list[Sample]) -> None:
    tar.write_bytes(b"".join(entry.to_bytes() for sample in samples for entry in sample) + END)


@contextmanager
def taken_apart(tar: Path) -> Iterator[list[Sample]]:
    """The tar's samples, which may be changed and are written again."""
    samples = read(tar)
    yield samples
    write(tar, samples)


def flip(path: Path, offset: int, bit: int = 6) -> None:
    """Turn one bit; a second time turns it back."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 1 << bit]))


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def make_foreign(version: Path) -> None:
    """Leave nothing but the tars."""
    for path in sorted(version.rglob("*"), reverse=True):
        if path.is_dir():
            if not any(path.iterdir()):
                path.rmdir()
        elif path.suffix != ".tar":
            path.unlink()


def forge(version: Path) -> None:
    """Write all tables, the index, the manifest and build.json's record of them so that they agree with the
    tars as they are now: what is wrong is then to be seen in the tars alone."""
    made = [_forge_split(version, path.parent) for path in sorted(version.glob("*/sizes.json"))]
    rows = [row for split in made for row in split]
    old = pq.read_table(version / "shards.parquet")
    digests = dict(zip(old["name"].to_pylist(), old["input_digest"].to_pylist(), strict=True))
    table = [{**row, "input_digest": digests[row["name"]]} for row in rows]
    write_table(version / "shards.parquet", pa.Table.from_pylist(table, old.schema))
    forge_manifest(version, rows)


def forge_manifest(version: Path, rows: list[dict[str, Any]]) -> None:
    """Make the manifest and build.json agree with these rows of `shards.parquet`."""
    manifest = read_manifest(version)
    count, size = Counter[str](), Counter[str]()
    for row in rows:
        count[row["split"]] += row["samples"]
        size[row["split"]] += row["bytes"]
    numbers = Counter(row["split"] for row in rows)
    accepted = sum(count.values())
    update = {
        "splits": {
            split: SplitSummary(shards=numbers[split], samples=count[split], bytes=size[split])
            for split in sorted(numbers)
        },
        "digest": content_digest((row["name"], row["blake3"]) for row in rows),
        "read": accepted + manifest.filtered + manifest.rejected,
        "accepted": accepted,
    }
    (version / "manifest.json").write_bytes(replace(manifest, **update).to_bytes())
    record(version)


def record(version: Path) -> None:
    """Let build.json keep the checksums of the other files as they are now."""
    path = version / "build.json"
    reseal(path, files={name: asdict(seal) for name, seal in seal_files(version).items()})


def _forge_split(version: Path, folder: Path) -> list[dict[str, Any]]:
    split, rows = folder.name, []
    keys: list[str] = []
    index = []
    for number, tar in enumerate(sorted(folder.glob("*.tar"))):
        data = tar.read_bytes()
        spans = _spans(read(tar), len(data) - len(END))
        for key, start, stop in spans:
            index.append((number, start, stop - start, google_crc32c.value(data[start:stop])))
            keys.append(key)
        name = f"{split}/{tar.name}"
        facts = {"blake3": blake3_file(tar), "bytes": len(data), "samples": len(spans)}
        rows.append({"name": name, "split": split, **facts})
    np.save(version / "index" / f"{split}.npy", np.array(index, INDEX))
    _forge_samples(version / "samples" / f"{split}.parquet", keys, [row[0] for row in index])
    sizes = {row["name"].rpartition("/")[2]: row["samples"] for row in rows}
    (folder / "sizes.json").write_text(json.dumps(sizes))
    return rows


def _spans(samples: list[Sample], end: int) -> list[tuple[str, int, int]]:
    """A row of the index for each sample. Members that stand apart from the rest of their sample go with the
    one before them; a whole sample of a known key is a row of its own."""
    starts: list[tuple[str, int]] = []
    seen: dict[str, set[str]] = {}
    for sample in samples:
        key, suffixes = sample[0].key, {entry.suffix for entry in sample}
        if key not in seen or suffixes & seen[key]:
            starts.append((key, sample[0].offset))
        seen.setdefault(key, set()).update(suffixes)
    stops = [*(start for _, start in starts[1:]), end]
    return [(key, start, stop) for (key, start), stop in zip(starts, stops, strict=True)]


def _forge_samples(path: Path, keys: list[str], numbers: list[int]) -> None:
    """Rows of known keys keep their other columns; new ones take those of the first row."""
    table = pq.read_table(path)
    rows = {row["key"]: row for row in table.to_pylist()}
    template = table.slice(0, 1).to_pylist()[0]
    made = [
        {**template, "original_key": key, **rows.get(key, {}), "key": key, "shard": number, "row": row}
        for row, (key, number) in enumerate(zip(keys, numbers, strict=True))
    ]
    os.unlink(path)
    write_table(path, pa.Table.from_pylist(made, table.schema))


def reseal(build: Path, **changes: Any) -> None:
    """Change a build.json as a forger would: its own checksum is right again."""
    facts = {**json.loads(build.read_text()), **changes}
    facts.pop("digest", None)
    build.write_text(json.dumps({**facts, "digest": digest(facts)}))
