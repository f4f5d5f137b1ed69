"""The same input gives the same files on a processor with other vector extensions."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.dataset import raw

pytestmark = pytest.mark.system

OLD = "SandyBridge"
"""AVX and no AVX2, FMA or BMI2: the oldest that the installed wheels start on."""
ROOT = Path(__file__).parents[2]


def images(folder: Path) -> str:
    """Photographs-like pictures that are scaled and encoded again, as every format."""
    folder.mkdir()
    rows = []
    for number in range(12):
        rng = np.random.default_rng(number)
        coarse = rng.integers(0, 256, (9, 9, 3), dtype=np.uint8)
        picture = Image.fromarray(coarse).resize((150 + number, 131), Image.Resampling.BICUBIC)
        picture.save(folder / f"{number:04d}.png")
        rows.append((f"{number:04d}.png", f"picture {number}", "x"))
    raw.write_table(folder, rows)
    return f"""
name: images
dataset:
  output: OUT
  modality: image_text
  source: {{kind: table, path: {folder}/captions.csv, image: file, caption: caption}}
  image: {{max_side: 97, encode: FORMAT}}
  shard: {{samples: 4}}
"""


def volumes(folder: Path) -> str:
    from tasks.dataset.examples import write_example

    write_example("phantoms", folder)
    config = (ROOT / "configs" / "phantoms-ct.yaml").read_text()
    return config.replace("data/raw/phantoms", str(folder))


def digests(config: Path, output: Path, *emulator: str) -> dict[str, str]:
    command = [
        *emulator,
        sys.executable,
        "-m",
        "tests.system.build_here",
        str(config),
        f"dataset.output={output}",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    if emulator:
        environment["OPENBLAS_CORETYPE"] = "Nehalem"  # its newer kernels use what the emulator has not
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    "kind", [*(pytest.param(kind, marks=pytest.mark.proof) for kind in ("png", "webp", "volumes")), "jpg"]
)
def test_an_older_processor_makes_the_same_files(kind: str, tmp_path: Path) -> None:
    emulator = shutil.which("qemu-x86_64")
    assert emulator is not None, "qemu-user is missing; .ci/run installs it"
    text = (
        volumes(tmp_path / "raw") if kind == "volumes" else images(tmp_path / "raw").replace("FORMAT", kind)
    )
    config = tmp_path / "config.yaml"
    config.write_text(text.replace("OUT", str(tmp_path / "unused")))
    here = digests(config, tmp_path / "here")
    there = digests(config, tmp_path / "there", emulator, "-cpu", OLD)
    assert there == here and len(here) > 8
