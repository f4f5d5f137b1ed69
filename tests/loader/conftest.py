"""A small dataset version in the format of the dataset folder, written with plain tarfile and numpy."""

import io
import json
import signal
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

INDEX = np.dtype([("shard", "<u4"), ("offset", "<u8"), ("length", "<u8"), ("crc32c", "<u4")])
MakeVersion = Callable[..., Path]


def members_of(number: int, **extra: bytes) -> dict[str, bytes]:
    """A 8x8 picture whose grey value is the sample's number, its caption and its label."""
    picture = io.BytesIO()
    Image.new("RGB", (8, 8), (number % 256,) * 3).save(picture, "PNG")
    return {
        "json": json.dumps({"label": str(number % 10)}).encode(),
        "png": picture.getvalue(),
        "txt": f"caption {number}".encode(),
        **extra,
    }


def write_tar(path: Path, samples: dict[str, dict[str, bytes]]) -> list[tuple[int, int]]:
    """Write a shard; the offset and length of every sample's span."""
    spans = []
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file, tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for key, members in samples.items():
            start = tar.offset
            for suffix, content in sorted(members.items()):
                info = tarfile.TarInfo(f"{key}.{suffix}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
            spans.append((start, tar.offset - start))
    return spans


def flip(path: Path, needle: bytes, at: int = 0, bit: int = 1) -> None:
    """Change one bit of a file, `at` bytes behind where `needle` stands."""
    data = bytearray(path.read_bytes())
    data[data.index(needle) + at] ^= bit
    path.write_bytes(data)


def write_table_of_samples(version: Path, split: str, shards: list[int]) -> None:
    """`samples/<split>.parquet` as far as the loader looks at it, in small row groups."""
    (version / "samples").mkdir(exist_ok=True)
    columns = {
        "key": [f"k{number:06d}" for number in range(len(shards))],
        "shard": pa.array(shards, pa.uint32()),
        "row": pa.array(range(len(shards)), pa.uint64()),
    }
    pq.write_table(pa.table(columns), version / "samples" / f"{split}.parquet", row_group_size=4)


@pytest.fixture(autouse=True)
def _deadline() -> Iterator[None]:
    """A hang is a failure of its test, not of the whole run."""

    def expire(number: int, frame: object) -> None:
        raise AssertionError("hangs for 90 s")

    before = signal.signal(signal.SIGALRM, expire)
    signal.alarm(90)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def make_version(tmp_path: Path) -> MakeVersion:
    """Writes a version: `make_version(train=[10, 10, 3], val=[4])` gives the samples of each shard.

    Samples count on through the shards of a split; `change` replaces the members of one by number.
    """

    def make(change: dict[int, dict[str, bytes]] | None = None, **splits: list[int]) -> Path:
        version = tmp_path / "version"
        for split, shards in splits.items():
            rows: list[Any] = []
            sizes, number = {}, 0
            for shard, size in enumerate(shards):
                samples = {
                    f"k{n:06d}": (change or {}).get(n, members_of(n)) for n in range(number, number + size)
                }
                path = version / split / f"{shard:06d}.tar"
                spans = write_tar(path, samples)
                data = path.read_bytes()
                rows += [(shard, o, n, google_crc32c.value(data[o : o + n])) for o, n in spans]
                sizes[path.name] = size
                number += size
            (version / "index").mkdir(exist_ok=True)
            np.save(version / "index" / f"{split}.npy", np.array(rows, INDEX))
            write_table_of_samples(version, split, [row[0] for row in rows])
            (version / split / "sizes.json").write_text(json.dumps(sizes))
        return version

    return make
