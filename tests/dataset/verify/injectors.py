"""Ways to damage tars at a place; each returns what verify must name afterwards."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.dataset.version.tables import write_table
from tests.dataset import raw, tampering
from tests.dataset.tampering import Entry, Sample, flip, overwrite, taken_apart
from tests.dataset.verify.places import Hit, Inject, Place

ZEROS = 16_000
"""More than the one record of zeros that tar programs write behind the end."""

# Bytes of a shard.


def _sample(version: Path, at: Place) -> tuple[Path, Sample, Hit]:
    tar = version / at.shard
    sample = tampering.read(tar)[at.row]
    return tar, sample, Hit((at.shard,), (sample[0].key,))


def _content(sample: Sample, *suffixes: str) -> Entry:
    return next(entry for entry in sample if entry.suffix in suffixes)


def bit(of: Callable[[Sample], int], number: int = 0) -> Inject:
    """Turn a bit of the byte at this offset."""

    def inject(version: Path, at: Place) -> Hit:
        tar, sample, hit = _sample(version, at)
        flip(tar, of(sample), number)
        return hit

    return inject


def of_image(sample: Sample) -> int:
    entry = _content(sample, "png")
    return entry.offset + 512 + len(entry.content) // 2


def of_caption(sample: Sample) -> int:
    return _content(sample, "txt").offset + 512


def of_padding(sample: Sample) -> int:
    return of_caption(sample) + len(_content(sample, "txt").content) + 9


def bit_of_end(version: Path, at: Place) -> Hit:
    tar = version / at.shard
    flip(tar, tar.stat().st_size - 700)
    return Hit((at.shard,))


def cut(where: Callable[[Path, Sample], int]) -> Inject:
    def inject(version: Path, at: Place) -> Hit:
        tar, sample, _ = _sample(version, at)
        os.truncate(tar, where(tar, sample))
        return Hit((at.shard,))

    return inject


def zeros(where: Callable[[Path, Sample], int]) -> Inject:
    """Zeros from there to the end, as a loss of power leaves them."""

    def inject(version: Path, at: Place) -> Hit:
        tar, sample, _ = _sample(version, at)
        start, size = where(tar, sample), tar.stat().st_size
        os.truncate(tar, start)
        os.truncate(tar, size)
        return Hit((at.shard,))

    return inject


def hole(version: Path, at: Place) -> Hit:
    """A page of zeros over headers and contents, with sound bytes behind it."""
    tar, sample, hit = _sample(version, at)
    overwrite(tar, sample[0].offset, bytes(4096))
    return Hit((at.shard,), hit.keys)


def appended(data: Callable[[Path, Place], bytes]) -> Inject:
    def inject(version: Path, at: Place) -> Hit:
        with (version / at.shard).open("ab") as file:
            file.write(data(version, at))
        return Hit((at.shard,))

    return inject


def middle_of_content(tar: Path, sample: Sample) -> int:
    return sample[0].offset + 512 + len(sample[0].content) // 2


def second_member(tar: Path, sample: Sample) -> int:
    return sample[1].offset


def first_header(tar: Path, sample: Sample) -> int:
    return sample[0].offset


def within_header(tar: Path, sample: Sample) -> int:
    return sample[1].offset + 100


def before_end(size: int) -> Callable[[Path, Sample], int]:
    return lambda tar, sample: tar.stat().st_size - size


def start_of_last(tar: Path, sample: Sample) -> int:
    return tampering.read(tar)[-1][0].offset


# Shards as a whole.


def missing_shard(version: Path, at: Place) -> Hit:
    (version / at.shard).unlink()
    return Hit((at.shard,))


def extra_shard(version: Path, at: Place) -> Hit:
    """One more of new samples, with the next free number."""
    folder = (version / at.shard).parent
    name = f"{max(int(tar.stem[:6]) for tar in folder.glob('*.tar')) + 1:06d}.tar"
    members = {"png": raw.png(5000), "txt": b"new", "json": b"{}"}
    sample = [Entry(f"new{folder.name}.{suffix}", content) for suffix, content in sorted(members.items())]
    tampering.write(folder / name, [sample])
    return Hit((f"{folder.name}/{name}",))


def renamed_shard(version: Path, at: Place) -> Hit:
    tar = version / at.shard
    name = f"{tar.stem} (copy).tar"
    tar.rename(tar.with_name(name))
    return Hit((at.shard, f"{tar.parent.name}/{name}"))


def swapped_shards(version: Path, at: Place) -> Hit:
    one, other, aside = version / at.shard, version / at.other, version / "aside"
    one.rename(aside)
    other.rename(one)
    aside.rename(other)
    return Hit((at.shard, at.other))


def copied_shard(version: Path, at: Place) -> Hit:
    shutil.copyfile(version / at.other, version / at.shard)
    keys = tuple(sample[0].key for sample in tampering.read(version / at.other))
    return Hit((at.shard, at.other), keys)


def filled(data: bytes) -> Inject:
    def inject(version: Path, at: Place) -> Hit:
        (version / at.shard).write_bytes(data)
        return Hit((at.shard,))

    return inject


def folder_for_a_shard(version: Path, at: Place) -> Hit:
    (version / at.shard).unlink()
    (version / at.shard).mkdir()
    return Hit((at.shard,))


def link_to_nowhere(version: Path, at: Place) -> Hit:
    (version / at.shard).unlink()
    (version / at.shard).symlink_to("nowhere.tar")
    return Hit((at.shard,))


def pipe_for_a_shard(version: Path, at: Place) -> Hit:
    """A program that opens it waits for ever."""
    (version / at.shard).unlink()
    os.mkfifo(version / at.shard)
    return Hit((at.shard,))


def one_row_for_two(version: Path, at: Place) -> Hit:
    """All tables count two samples as one."""
    tampering.forge(version)
    split, name = at.shard.split("/")
    number = int(name.removesuffix(".tar"))
    path = version / "index" / f"{split}.npy"
    index = np.load(path)
    row = int(np.flatnonzero(index["shard"] == number)[at.row])
    index["length"][row] += index["length"][row + 1]
    offset, length = int(index["offset"][row]), int(index["length"][row])
    data = (version / at.shard).read_bytes()[offset : offset + length]
    index["crc32c"][row] = google_crc32c.value(data)
    np.save(path, np.delete(index, row + 1))
    path = version / "samples" / f"{split}.parquet"
    rows = pq.read_table(path).to_pylist()
    del rows[row + 1]
    schema = pq.read_schema(path)
    write_table(path, pa.Table.from_pylist([{**r, "row": n} for n, r in enumerate(rows)], schema))
    path = version / at.shard
    sizes = json.loads((path.parent / "sizes.json").read_text())
    (path.parent / "sizes.json").write_text(json.dumps({**sizes, name: sizes[name] - 1}))
    table = pq.read_table(version / "shards.parquet")
    shards = [{**r, "samples": r["samples"] - (r["name"] == at.shard)} for r in table.to_pylist()]
    write_table(version / "shards.parquet", pa.Table.from_pylist(shards, table.schema))
    tampering.forge_manifest(version, shards)
    return Hit((at.shard,))


# Samples and members.


def changed(change: Callable[[list[Sample], int], tuple[str, ...]]) -> Inject:
    """`change` works on the samples of the shard and returns the members that must be named."""

    def inject(version: Path, at: Place) -> Hit:
        with taken_apart(version / at.shard) as samples:
            key = samples[at.row][0].key
            members = change(samples, at.row)
            keys = {key, samples[at.row][0].key}
        return Hit((at.shard,), tuple(keys), members)

    return inject


def content(suffix: str, data: bytes, name: str | None = None) -> Inject:
    """Give a member another content, and perhaps another suffix."""

    def change(samples: list[Sample], row: int) -> tuple[str, ...]:
        entry = _content(samples[row], suffix)
        entry.content = data
        entry.name = f"{entry.key}.{name or suffix}"
        return (suffix, name or suffix)

    return changed(change)


def lacking(*suffixes: str, named: tuple[str, ...] = ()) -> Inject:
    def change(samples: list[Sample], row: int) -> tuple[str, ...]:
        samples[row] = [entry for entry in samples[row] if entry.suffix not in suffixes]
        return named or suffixes

    return changed(change)


def added(suffix: str, data: bytes, **header: Any) -> Inject:
    def change(samples: list[Sample], row: int) -> tuple[str, ...]:
        samples[row].append(Entry(f"{samples[row][0].key}.{suffix}", data, **header))
        return (suffix,)

    return changed(change)


def half(suffix: str) -> Inject:
    def change(samples: list[Sample], row: int) -> tuple[str, ...]:
        entry = _content(samples[row], suffix)
        entry.content = entry.content[: len(entry.content) // 2]
        return (suffix,)

    return changed(change)


def instead(kind: bytes, linkname: str = "") -> Inject:
    """A caption that is no plain file."""

    def change(samples: list[Sample], row: int) -> tuple[str, ...]:
        entry = _content(samples[row], "txt")
        entry.kind, entry.linkname, entry.content = kind, linkname, b""
        return ("txt",)

    return changed(change)


def placed(prefix: str) -> Inject:
    """The sample's names lead out of the folder."""

    def change(samples: list[Sample], row: int) -> tuple[str, ...]:
        for entry in samples[row]:
            entry.name = prefix + entry.name
        return tuple(entry.suffix for entry in samples[row])

    return changed(change)


def member_twice(samples: list[Sample], row: int) -> tuple[str, ...]:
    samples[row].append(Entry(samples[row][-1].name, samples[row][-1].content))
    return ()


def sample_twice(samples: list[Sample], row: int) -> tuple[str, ...]:
    samples.append(list(samples[row]))
    return ()


def apart(samples: list[Sample], row: int) -> tuple[str, ...]:
    """The caption stands behind the next sample."""
    caption = samples[row].pop()
    samples.insert(row + 2, [caption])
    return ()


def interleaved(samples: list[Sample], row: int) -> tuple[str, ...]:
    """All images of two samples, then all captions."""
    pairs = [*samples[row], *samples[row + 1]]
    pairs.sort(key=lambda entry: entry.suffix)
    samples[row : row + 2] = [[entry] for entry in pairs]
    return ()


def sample_of(which: Literal["other", "across"]) -> Inject:
    """The sample is also in another shard."""

    def inject(version: Path, at: Place) -> Hit:
        name = getattr(at, which)
        sample = tampering.read(version / at.shard)[at.row]
        with taken_apart(version / name) as samples:
            samples.append(sample)
        return Hit((at.shard, name), (sample[0].key,))

    return inject


def image_of_another(samples: list[Sample], row: int) -> tuple[str, ...]:
    """A JPEG under the name of a PNG."""
    _content(samples[row], "png").content = raw.png(1, kind="JPEG")
    return ("png",)


def in_json(change: Callable[[dict[str, Any]], object]) -> Inject:
    """Change the content of the sample's JSON."""

    def of(samples: list[Sample], row: int) -> tuple[str, ...]:
        entry = _content(samples[row], "json")
        value = json.loads(entry.content)
        change(value)
        entry.content = json.dumps(value).encode()
        return ("json",)

    return changed(of)


def of_another(suffix: str) -> Inject:
    """The member of another sample."""

    def change(samples: list[Sample], row: int) -> tuple[str, ...]:
        _content(samples[row], suffix).content = _content(samples[row - 1], suffix).content
        return (suffix,)

    return changed(change)


EXECUTED = "executed"
"""A file that appears in the working folder when a pickle of ours is loaded."""


class _Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (EXECUTED, "w"))


def pickled(suffix: str = "npy") -> bytes:
    """A file that executes code in a program that unpickles it."""
    stream = io.BytesIO()
    value = np.array([_Bomb(), None], dtype=object)
    if suffix == "npz":
        np.savez(stream, image_emb=value)
    elif suffix == "npy":
        np.save(stream, value, allow_pickle=True)
    else:
        pickle.dump(_Bomb(), stream)
    return stream.getvalue()
