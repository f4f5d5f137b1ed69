"""Small tars as other tools write them, and the command that trains on them."""

from __future__ import annotations

import io
import json
import shlex
import tarfile
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

ABSENT = "/nonexistent/python"
"""No trainer is installed there, so that its transcribed rules are used, and no torch is imported."""


def jpeg(side: int = 8) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (side, side), (90, 20, 160)).save(file, "JPEG")
    return file.getvalue()


def write_tars(
    folder: Path, members: Sequence[str], tars: int = 3, each: int = 4, side: int = 8, **contents: bytes
) -> None:
    """`folder/000000.tar` …, with these members of each sample; `json` has a caption."""
    folder.mkdir(parents=True, exist_ok=True)
    image = jpeg(side)
    for number in range(tars):
        with tarfile.open(folder / f"{number:06d}.tar", "w") as tar:
            for key in range(number * each, (number + 1) * each):
                known = {
                    "jpg": image,
                    "png": image,
                    "txt": b"a drawing",
                    "json": json.dumps({"uid": str(key), "caption": f"drawing {key}"}).encode(),
                    "paug.json": b'{"param_aug": [[[0, 0, 4, 4], null]]}',
                    "cls": b"3",
                    "caption": b"a drawing",
                }
                for member in members:
                    content = contents.get(member, known.get(member, b"x"))
                    info = tarfile.TarInfo(f"{key:08d}.{member}")
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))


def open_clip(pattern: str, options: str = "", python: str = ABSENT) -> list[str]:
    return [python, "-m", "open_clip_train.main", "--train-data", pattern, *shlex.split(options)]
