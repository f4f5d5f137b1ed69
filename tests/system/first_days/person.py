"""Somebody with data of their own, at a terminal: the commands that they type, and what they read."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

from PIL import Image

from tasks.dataset.version.versions import resolve
from tasks.loader.indexed import IndexedReader
from tests.services import BIN, ROOT

ORIENTATION = 0x0112
LFS_POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'4d7a' * 16}\nsize 12345\n"
"""What Git leaves in the place of a file that Git LFS keeps, until somebody fetches it."""


class Person:
    """Somebody at a terminal in a folder of their own, without a Prefect server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        self.env = {**kept, "PREFECT_HOME": str(folder / "prefect")}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [BIN / "tarmac", *arguments],
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def types(self, *arguments: str, expecting: int = 0) -> str:
        """What the terminal shows of a command that ends with this exit code."""
        process = self.start(*arguments)
        out, err = process.communicate(timeout=400)
        assert process.returncode == expecting, (arguments, out, err)
        assert "Traceback" not in out + err
        return out + err

    def runs(self, program: str) -> str:
        """What a program in Python prints that is run as it was given, without a network."""
        (self.folder / "program.py").write_text(program)
        env = {**self.env, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "HF_HOME": str(self.folder / "hf")}
        done = subprocess.run(
            [sys.executable, "program.py"],
            cwd=self.folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def samples(self, split: str, dataset: str = "data/raw") -> list[dict[str, bytes]]:
        reader = IndexedReader(resolve(self.folder / dataset), split)
        return [
            {name: bytes(content) for name, content in reader.read(row).members.items()}
            for row in range(len(reader))
        ]


def photo(seed: int, kind: str, orientation: int = 1) -> bytes:
    """Wider than high as it is stored; on a phone that is held upright the tag says so."""
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    buffer = io.BytesIO()
    picture = Image.effect_noise((48, 32), 20 + seed % 30).convert("RGB")
    picture.save(buffer, kind, **({"exif": exif} if orientation != 1 else {}))
    return buffer.getvalue()
