"""A folder of images with a caption file beside each, or with a folder a class."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tasks.core.schema import Config
from tests.dataset import raw


def make(folder: Path) -> Config:
    for number in range(6):
        image = folder / ("train" if number < 4 else "val") / f"{number}.png"
        image.parent.mkdir(parents=True, exist_ok=True)
        image.write_bytes(raw.png(number))
        image.with_suffix(".txt").write_text(f"picture {number}\n")
    return config(folder)


def make_of_json(folder: Path) -> Config:
    config_of_txt = make(folder)
    for path in folder.rglob("*.txt"):
        path.with_suffix(".json").write_text(json.dumps({"caption": path.read_text(), "seed": 1}))
        path.unlink()
    del config_of_txt
    return config(folder, captions="json", field="caption")


def make_of_classes(folder: Path) -> Config:
    for number in range(6):
        image = folder / ("tabby_cat" if number % 2 else "dog") / f"{number}.png"
        image.parent.mkdir(parents=True, exist_ok=True)
        image.write_bytes(raw.png(number))
    return config(folder, captions="folder", templates=["a photo of a {}", "a {}."])


def config(folder: Path | str, output: Path | None = None, dataset: Any = None, **source: Any) -> Config:
    block = {"kind": "image_folder", "path": str(folder), **source}
    output = output or Path(str(folder)).parent / "out"
    return raw.config(Path("unused"), output, source=block, **(dataset or {}))
