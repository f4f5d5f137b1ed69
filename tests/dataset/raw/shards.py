"""WebDataset tars as others make them, whole and damaged, and what teachers add to their samples."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tasks.core.schema import Config
from tests.dataset import raw

WIDTH = 8


def tar_bytes(
    members: Iterable[tuple[str | tarfile.TarInfo, bytes]], form: int = tarfile.PAX_FORMAT
) -> bytes:
    """A tar of (name or header, content)."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name) if isinstance(name, str) else name
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


def pair(key: str, seed: int, **fields: Any) -> list[tuple[str, bytes]]:
    """The members of an image-text pair."""
    described = json.dumps({"uid": f"uid-{key}", "caption": f"a picture of {key}", **fields}).encode()
    return [
        (f"{key}.jpg", raw.png(seed, kind="JPEG")),
        (f"{key}.json", described),
        (f"{key}.txt", f"picture {key}".encode()),
    ]


def pairs(first: int, count: int) -> list[tuple[str, bytes]]:
    return [member for n in range(first, first + count) for member in pair(f"{n:09d}", n, score=n)]


def config(path: Path | str, modality: str = "image_text", **dataset: Any) -> Config:
    source = {"kind": "shards", "path": str(path), **dataset.pop("source", {})}
    output = dataset.pop("output", "nowhere")
    return raw.config(Path(), output, modality=modality, source=source, **dataset)


def make(folder: Path) -> Config:
    folder.mkdir(parents=True, exist_ok=True)
    for shard in range(2):
        (folder / f"{shard:05d}.tar").write_bytes(tar_bytes(pairs(3 * shard, 3)))
    return config(folder / "{00000..00001}.tar", output=folder / "out")


def embeddings(augmentations: int = 3, texts: int = 3, width: int = WIDTH, seed: int = 0) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {
        "image_emb": random.standard_normal((augmentations, width)).astype(np.float32),
        "text_emb": random.standard_normal((texts, width)).astype(np.float32),
    }


def npz(arrays: Mapping[str, Any], compressed: bool = False) -> bytes:
    file = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(file, **arrays)
    return file.getvalue()


def pth_gz(value: Any, **options: Any) -> bytes:
    """As torch writes it."""
    import torch

    file = io.BytesIO()
    torch.save(value, file, **options)
    return gzip.compress(file.getvalue(), mtime=0)


def reinforcement(**changes: Any) -> dict[str, bytes]:
    """A teacher's members for an image of 12 x 12 pixels; None in `changes` leaves one out."""
    crops = [[[0, 0, 12, 12], [[6, 0.5], None]], [[1, 2, 3, 4], None], [[2, 2, 10, 10], [[0, 0], [5, -3.0]]]]
    members: dict[str, Any] = {
        "syn.json": {"syn_text": ["one more", "and another"]},
        "paug.json": {"param_aug": crops},
        "npz": npz(embeddings()),
        **changes,
    }
    as_bytes = {
        suffix: json.dumps(value).encode() if isinstance(value, dict) else value
        for suffix, value in members.items()
    }
    return {suffix: value for suffix, value in as_bytes.items() if value is not None}


END = bytes(1024)


def pax_record(key: str, value: str) -> bytes:
    """`LENGTH KEY=VALUE`, where LENGTH counts its own digits too."""
    body = f" {key}={value}\n"
    length = next(n for n in range(len(body), len(body) + 9) if len(str(n)) + len(body) == n)
    return f"{length}{body}".encode()


def entry(name: str, content: bytes = b"", size: bytes | None = None, **header: Any) -> bytes:
    """One member as a block of bytes; `size` replaces the field that tells it."""
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in header.items():
        setattr(info, field, value)
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    if size is not None:
        block[-512 + 124 : -512 + 136] = size
        block[-512 + 148 : -512 + 156] = b" " * 8
        block[-512 + 148 : -512 + 156] = b"%06o\0 " % sum(block[-512:])
    return bytes(block) + content + bytes(-len(content) % 512)
