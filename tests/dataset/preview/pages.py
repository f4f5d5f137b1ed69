"""Versions for the tests of their pages, and the pages as text and tags."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tasks.dataset.preview import write_look
from tests.core.test_pages import Tags
from tests.dataset.handmade import Members, write_version

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'\u202egpj.\x1b[31m\x00\ud800"
SECRET = "patient-Meier"


def picture(seed: int, width: int = 90, height: int = 60, kind: str = "JPEG") -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def pairs(count: int, caption: str = "caption", start: int = 0) -> list[tuple[str, Members]]:
    one = picture(1)
    return [
        (f"{SECRET}_{n:04d}", {"jpg": one, "txt": f"{caption} {n}".encode()})
        for n in range(start, start + count)
    ]


def a_version(folder: Path, **options: Any) -> Path:
    """90 samples of train in six shards, 10 of val, and 12 rejects."""
    rejects = [("image.empty", f"{SECRET}_9{n:03d}", "0 bytes", f"secret.csv:{n}") for n in range(12)]
    splits = {"train": pairs(90), "val": pairs(10, start=90)}
    statistics = {"width": [90] * 100, "caption_length": list(range(100))}
    return write_version(folder / "version", "image_text", splits, statistics, rejects, **options)


def page_of(path: Path) -> Tags:
    return Tags(re.sub(r"<style>.*?</style>", "", path.read_text(encoding="utf-8"), flags=re.S))


def page(version: Path, **options: Any) -> Tags:
    return page_of(write_look(version, version.parent / "page.html", **options).path)


def words(tags: Tags) -> str:
    return " ".join(" ".join(tags.pieces).split())


def attributes(tags: Tags, tag: str) -> list[dict[str, str | None]]:
    return [attrs for name, attrs in tags.tags if name == tag]
