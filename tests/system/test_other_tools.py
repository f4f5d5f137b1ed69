"""Shards load unchanged in the tools that people have: the real packages, each in an environment of its own."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tasks.dataset.building.builder import build
from tasks.dataset.verify.verifier import verify
from tasks.dataset.version import versions
from tasks.dataset.version.manifest import Manifest
from tests.dataset import raw
from tests.system.foreign_env import PINS, foreign_env

pytestmark = pytest.mark.system
SAMPLES, BATCH = 200, 16
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}


@dataclass(frozen=True)
class Published:
    """A dataset as other tools are pointed at it."""

    current: Path
    manifest: Manifest
    expected: dict[str, dict[str, Any]]
    """What each training sample says, by its key."""

    @property
    def url(self) -> str:
        return f"{self.current}/train/{{000000..{self.manifest.splits['train'].shards - 1:06d}}}.tar"

    def compare(self, samples: list[tuple[str, dict[str, Any]]]) -> None:
        """Every training sample has come once, and says what the raw files say."""
        assert len(samples) == len(self.expected)
        for key, found in samples:
            assert found.items() <= self.expected[key].items(), key
        assert {key for key, _ in samples} == self.expected.keys()


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Published:
    """Images of noise with caption and JSON, a part of them held out."""
    folder = tmp_path_factory.mktemp("other_tools")
    rows = raw.pictures(folder / "raw", SAMPLES)
    config = raw.config(folder / "raw", folder / "data", splits={"val": 0.15}, shard={"samples": 32})
    result = build(config)
    versions.publish(folder / "data", result.version, 3)
    held_out = {sample["key"] for sample in _samples(result.version, "val")}
    expected = {name[:-4]: _told(number, *rows[number][1:]) for number, (name, *_) in enumerate(rows)}
    return Published(
        folder / "data" / "current",
        versions.read_manifest(result.version),
        {key: found for key, found in expected.items() if key not in held_out},
    )


def _samples(version: Path, split: str) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    rows: list[dict[str, Any]] = pq.read_table(version / "samples" / f"{split}.parquet").to_pylist()
    return rows


def _told(number: int, caption: str, label: str) -> dict[str, Any]:
    pixels = np.asarray(Image.open(io.BytesIO(raw.png(number))))
    digest = hashlib.sha256(np.ascontiguousarray(pixels)).hexdigest()
    return {"caption": caption, "pixels": f"{pixels.shape} {digest}", "label": label}


def run(home: Path, program: Path | str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """A program of another environment, cut off from the network's model hubs and the user's caches."""
    path = f"{Path(program).parent}:/usr/bin:/bin"
    env = {"PATH": path, "HOME": str(home), "HF_HOME": str(home), "TQDM_DISABLE": "1", **OFFLINE}
    command = [str(program), *map(str, arguments)]
    done = subprocess.run(command, cwd=home, env=env, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def read(home: Path, python: Path | str, script: str, *arguments: object) -> dict[str, Any]:
    """What a script of `other_tools` tells of all the samples that its tool has read."""
    done = run(home, python, PINS / script, *arguments)
    printed: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return printed


def test_the_webdataset_of_this_environment(published: Published, tmp_path: Path) -> None:
    found = read(tmp_path, sys.executable, "read_webdataset.py", published.url)
    assert found["version"].startswith("0.2.")
    published.compare(found["samples"])


@pytest.mark.proof
def test_webdataset_1(published: Published, tmp_path: Path) -> None:
    found = read(tmp_path, foreign_env("readers") / "python", "read_webdataset.py", published.url)
    assert found["version"].startswith("1.")
    published.compare(found["samples"])


@pytest.mark.proof
def test_hugging_face_datasets(published: Published, tmp_path: Path) -> None:
    shards = sorted((published.current / "train").glob("*.tar"))
    found = read(tmp_path, foreign_env("readers") / "python", "read_huggingface.py", *shards)
    published.compare(found["samples"])


@pytest.mark.proof
def test_energon_prepares_and_reads(published: Published, tmp_path: Path) -> None:
    """Energon keeps its own index in the dataset's folder, which must trouble neither side."""
    folder = tmp_path / "version"
    shutil.copytree(published.current, folder)
    bin = foreign_env("readers")
    fields = json.dumps({"image": "png", "caption": "txt"})
    kind = ["--sample-type", "CaptioningSample", "--field-map", fields]
    run(
        tmp_path,
        bin / "energon",
        "prepare",
        folder / "train",
        "--non-interactive",
        "--split-ratio",
        "1,0,0",
        *kind,
    )
    published.compare(read(tmp_path, bin / "python", "read_energon.py", folder / "train")["samples"])
    assert verify(folder, "full").ok


@pytest.mark.proof
def test_energon_takes_the_splits_as_they_are(published: Published, tmp_path: Path) -> None:
    folder = tmp_path / "version"
    shutil.copytree(published.current, folder)
    bin = foreign_env("readers")
    fields = json.dumps({"image": "png", "caption": "txt"})
    kind = ["--sample-type", "CaptioningSample", "--field-map", fields]
    parts = ["--split-parts", "train:train/.*", "--split-parts", "val:val/.*"]
    run(tmp_path, bin / "energon", "prepare", folder, "--non-interactive", *parts, *kind)
    published.compare(read(tmp_path, bin / "python", "read_energon.py", folder)["samples"])
    assert verify(folder, "full").ok


def test_open_clips_trainer(published: Published, tmp_path: Path) -> None:
    """It finds out how many samples there are from sizes.json, in training and in validation."""
    model = tmp_path / "model"
    model.mkdir()
    shutil.copy(PINS / "open_clip_config.json", model)
    arguments = {
        "train-data": published.url,
        "val-data": f"{published.current}/val/000000.tar",
        "dataset-type": "webdataset",
        "model": f"local-dir:{model}",
        "workers": 1,
        "epochs": 1,
        "batch-size": BATCH,
        "precision": "fp32",
        "device": "cpu",
        "logs": tmp_path / "logs",
        "name": "run",
    }
    flags = [f"--{name}={value}" for name, value in arguments.items()]
    run(tmp_path, foreign_env("open_clip") / "python", "-m", "open_clip_train.main", *flags)
    log = (tmp_path / "logs/run/out.log").read_text()
    batches = -(-len(published.expected) // BATCH)
    assert re.findall(r"Train Epoch: 0 \[\s*(\d+)/(\d+)", log)[-1] == (
        str(batches * BATCH),
        str(batches * BATCH),
    )
    results = json.loads((tmp_path / "logs/run/checkpoints/results.jsonl").read_text())
    assert results["num_samples"] == published.manifest.splits["val"].samples
