"""Files of weights that no trainer wrote, whole and torn, of a few bytes."""

from __future__ import annotations

import json
import struct
import zipfile
from pathlib import Path


def save_weights(path: Path, value: int = 0) -> Path:
    """A whole file of safetensors, or one of torch's archives by its outside alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".safetensors":
        header = json.dumps({"w": {"dtype": "U8", "shape": [64], "data_offsets": [0, 64]}}).encode()
        path.write_bytes(struct.pack("<Q", len(header)) + header + bytes([value]) * 64)
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", bytes([value]) * 64)
    return path


def tear(path: Path) -> Path:
    """Take away the file's last third."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    return path
