"""The checkpoints that a trainer leaves in a folder: their numbers, their files of weights, and whether those
are whole.

All is read from names, sizes and a few bytes, without torch, as whoever follows a folder looks every second.
So a file counts as whole whose own directory of contents is there and fits its size; only the evaluation that
loads it shows whether the weights are the model's.
"""

from __future__ import annotations

import json
import os
import re
import struct
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tasks.runs.followed import Stamps, Unit, stamps_of

NUMBER = re.compile(
    r"(?:^|[-_.=])(?P<unit>global_?step|step|checkpoint|ckpt|iter(?:ation)?|epoch)[-_=]?(?P<number>\d{1,15})"
    r"(?=$|[-_.])",
    re.IGNORECASE,
)
"""A word for what is counted and its number: `epoch_3.pt`, `checkpoint-500`, `step_00000500`,
`epoch=3-step=500.ckpt`."""
SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
NO_WEIGHTS = re.compile(r"^\.|^tmp|optim|sched|scaler|rng|random_state|training_args", re.IGNORECASE)
"""The names of files and folders that hold other state, or are being written under another name."""
WHOLE = (
    "model.safetensors",
    "open_clip_model.safetensors",
    "pytorch_model.bin",
    "open_clip_pytorch_model.bin",
)
INDICES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
HEADER_BYTES = 1 << 27
"""The largest header of safetensors that is read; its own library allows 100 MB."""


@dataclass(frozen=True)
class SavedCheckpoint:
    """A file or a folder that a trainer has saved, whole or not, with what its number counts."""

    number: int
    unit: Unit
    path: Path


def numbered(name: str) -> tuple[int, Unit] | None:
    """Return the number in a checkpoint's name, and what it counts: steps where the name has those, else
    epochs. None for a name without one, such as `latest`."""
    found = [(match["unit"].lower(), int(match["number"])) for match in NUMBER.finditer(name)]
    steps = [number for unit, number in found if unit != "epoch"]
    if steps:
        return steps[-1], "step"
    return (found[-1][1], "epoch") if found else None


def saved_in(folder: Path) -> list[SavedCheckpoint]:
    """Return the numbered checkpoints in a folder and in its `checkpoints`, by number, whole or not.

    OSError where the folder cannot be read.
    """
    below = folder / "checkpoints"
    entries = [*folder.iterdir(), *(below.iterdir() if below.is_dir() else ())]
    found = []
    for path in entries:
        number = None if NO_WEIGHTS.search(path.name) else numbered(path.name)
        if number is not None and (path.suffix in SUFFIXES or path.is_dir()):
            found.append(SavedCheckpoint(*number, path))
    return sorted(found, key=lambda one: (one.number, str(one.path)))


def stamped(path: Path) -> Stamps:
    """Return size and time of each file that holds weights of a checkpoint; empty while it has none."""
    try:
        return stamps_of(path, list(_weight_names(path)))
    except OSError:  # an index names a file that is not written yet, or the trainer removes it just now
        return {}


def _weight_names(path: Path) -> Iterator[str]:
    if not path.is_dir():
        yield "."
        return
    if (whole := next((name for name in WHOLE if (path / name).is_file()), None)) is not None:
        yield whole
    elif (index := next((name for name in INDICES if (path / name).is_file()), None)) is not None:
        yield index
        yield from _indexed(path / index)


def _indexed(index: Path) -> list[str]:
    try:
        named = json.loads(index.read_bytes())["weight_map"].values()
        # A name that leads out of the folder is none that a trainer writes.
        return sorted({name for name in named if os.path.basename(name) == name and name.endswith(SUFFIXES)})
    except (ValueError, LookupError, TypeError, AttributeError):
        return []


def files_of_weights(path: Path) -> list[Path]:
    """Return the files that hold a checkpoint's weights, without the index of several."""
    names = [name for name in _weight_names(path) if name not in INDICES]
    return [path / name for name in names]


def lack_of(path: Path) -> str:
    """Return what is missing for the checkpoint to be whole, such as the end of a file; empty where nothing
    is. OSError where it cannot be read."""
    files = files_of_weights(path)
    if not files:
        return f"{path.name} holds no weights (such as {WHOLE[0]})"
    return next((lack for file in files if (lack := _lack(file))), "")


def _lack(file: Path) -> str:
    size = file.stat().st_size
    if not size:
        return f"{file.name} is empty"
    if file.suffix == ".safetensors":
        return _lack_of_safetensors(file, size)
    with file.open("rb") as opened:
        is_zip = opened.read(2) == b"PK"
    # Torch before 1.6 wrote a stream of pickles, which only shows its end to whoever loads it.
    return f"{file.name} is torn: its end is missing" if is_zip and not zipfile.is_zipfile(file) else ""


def _lack_of_safetensors(file: Path, size: int) -> str:
    """The header's length stands in the first eight bytes, and its offsets give the size of the rest."""
    try:
        with file.open("rb") as opened:
            (length,) = struct.unpack("<Q", opened.read(8))
            header = json.loads(opened.read(length)) if length <= HEADER_BYTES else {}
        tensors = [value for name, value in header.items() if name != "__metadata__"]
        whole = 8 + length + max((tensor["data_offsets"][1] for tensor in tensors), default=0)
    except (struct.error, ValueError, LookupError, TypeError, AttributeError):
        return f"{file.name} is torn: its header cannot be read"
    return "" if tensors and size == whole else f"{file.name} is torn: {size:,} of {whole:,} bytes"
