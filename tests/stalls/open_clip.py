"""Stalls of open_clip's own trainer: `python -m open_clip_train.main`, as its users start it, with a tiny model."""

from __future__ import annotations

import atexit
import io
import json
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

from PIL import Image

from tests.stalls import throttle
from tests.stalls.contract import Stall, Training, launch, says

MODEL = {
    "model_cfg": {
        "embed_dim": 16,
        "vision_cfg": {"image_size": 32, "layers": 1, "width": 32, "head_width": 16, "patch_size": 16},
        "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1},
    },
    "preprocess_cfg": {},
}


@cache
def picture(side: int, noise: bool = True) -> bytes:
    """A JPEG of that many pixels a side; without noise it is small and takes as long to decode."""
    image = Image.effect_noise((side, side), 80) if noise else Image.new("L", (side, side), 90)
    content = io.BytesIO()
    image.convert("RGB").save(content, "JPEG")
    return content.getvalue()


def member(suffix: str, number: int, side: int, noise: bool) -> bytes:
    if suffix in ("jpg", "jpeg"):
        return picture(side, noise)
    if suffix == "npz":
        return bytes(64)
    if suffix.endswith("json"):
        return json.dumps({"caption": f"photo {number}"}).encode()
    return b"3" if suffix == "cls" else f"a photo of {number}".encode()


def write_shards(
    folder: Path,
    members: Sequence[str] = ("jpg", "txt"),
    shards: int = 4,
    samples: int = 400,
    side: int = 96,
    noise: bool = True,
    content: Callable[[str, int, int, bool], bytes] = member,
) -> str:
    """Tars of samples with those members; returns the pattern that open_clip takes."""
    folder.mkdir(parents=True, exist_ok=True)
    for shard in range(shards):
        with tarfile.open(folder / f"train-{shard:06d}.tar", "w") as tar:
            for number in range(shard * samples, (shard + 1) * samples):
                for suffix in members:
                    data = content(suffix, number, side, noise)
                    info = tarfile.TarInfo(f"{number:08d}.{suffix}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
    return f"{folder}/train-{{000000..{shards - 1:06d}}}.tar"


def command(folder: Path, shards: str, *options: str, workers: int = 2, samples: int = 1600) -> list[str]:
    model = folder / "tiny"
    model.mkdir(exist_ok=True)
    (model / "open_clip_config.json").write_text(json.dumps(MODEL))
    fixed = ["--model", f"local-dir:{model}", "--train-data", shards, "--precision", "fp32", "--name", "run"]
    sizes = ["--train-num-samples", str(samples), "--workers", str(workers), "--logs", str(folder / "logs")]
    return [sys.executable, "-m", "open_clip_train.main", *fixed, *sizes, "--batch-size", "8", *options]


def train(
    folder: Path, shards: str, *options: str, ready: str, settle_s: float = 1.0, **sizes: int
) -> Training:
    process, log = launch(command(folder, shards, *options, **sizes), folder)
    return Training(process, log, says(log, ready, settle_s))


def _without_captions(folder: Path, members: Sequence[str], *options: str) -> Training:
    shards = write_shards(folder / "shards", members)
    return train(folder, shards, *options, ready="Start epoch 0", settle_s=4)


def _healthy(folder: Path, *options: str, workers: int = 2) -> Training:
    shards = write_shards(folder / "shards")
    more = ("--epochs", "10000", "--save-frequency", "0", *options)
    return train(folder, shards, *more, ready="Train Epoch: 0", settle_s=2, workers=workers)


def _paused(folder: Path) -> Training:
    import os
    import signal

    training = _healthy(folder)
    is_training = training.is_ready

    def is_ready() -> bool:
        if not is_training():
            return False
        os.killpg(training.pid, signal.SIGSTOP)
        time.sleep(0.5)
        return True

    training.is_ready = is_ready
    return training


def _nan(folder: Path) -> Training:
    shards = write_shards(folder / "shards")
    options = (
        "--epochs",
        "10000",
        "--lr",
        "1e30",
        "--warmup",
        "1",
        "--log-every-n-steps",
        "1",
        "--save-frequency",
        "0",
    )
    return train(folder, shards, *options, ready="Loss: nan")


def _ended(folder: Path, *options: str, shards: int = 4, workers: int = 2) -> Training:
    """A training that ends by itself, whatever its exit code."""
    pattern = write_shards(folder / "shards", shards=shards, samples=40)
    process, log = launch(command(folder, pattern, *options, workers=workers), folder)
    return Training(process, log, lambda: process.poll() is not None)


def _exists_already(folder: Path) -> Training:
    (folder / "logs/run").mkdir(parents=True)
    (folder / "logs/run/out.log").write_text("an earlier run\n")
    return _ended(folder)


def _conflict(folder: Path) -> Training:
    """Members called `json` that hold none, which the trainer decodes whether it uses them or not."""

    def content(suffix: str, number: int, side: int, noise: bool) -> bytes:
        return b"not json" if suffix == "json" else member(suffix, number, side, noise)

    shards = write_shards(folder / "shards", ("jpg", "json", "txt"), content=content)
    return train(folder, shards, ready="Handling webdataset error", settle_s=4)


@cache
def webdataset_1() -> tuple[str, str | None]:
    """The Python of an environment like this one but for webdataset 1.x, which this process keeps for itself; or
    why it cannot be had."""
    folder = tempfile.mkdtemp(prefix="webdataset-1-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    python, uv = f"{folder}/bin/python", str(Path(sys.executable).with_name("uv"))
    install = [uv, "pip", "install", "--quiet", "--no-deps", "--python", python, "webdataset>=1,<2"]
    try:
        for one in ([uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, folder], install):
            subprocess.run(one, check=True, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        said = str(getattr(error, "stderr", None) or error).strip().splitlines()[-1]
        return "", f"webdataset 1.x cannot be installed: {said}"
    for packages in Path(folder).glob("lib/python3*/site-packages"):
        (packages / "beside.pth").write_text(sysconfig.get_path("purelib"))
    return python, None


def _new_webdataset(folder: Path) -> Training:
    words = command(folder, write_shards(folder / "shards", samples=40))
    process, log = launch([webdataset_1()[0], *words[1:]], folder)
    return Training(process, log, lambda: process.poll() is not None)


def _starving(folder: Path) -> Training:
    shards = write_shards(folder / "shards", shards=2, samples=3)
    return train(folder, shards, ready="Start epoch 0", settle_s=4, samples=64)


def _large_images(folder: Path) -> Training:
    shards = write_shards(folder / "shards", side=8000, noise=False, samples=12)
    return train(folder, shards, ready="Start epoch 0", settle_s=4, samples=40)


def _long_validation(folder: Path) -> Training:
    shards = write_shards(folder / "shards", samples=2000)
    options = (
        "--val-data",
        shards,
        "--val-num-samples",
        "8000",
        "--val-frequency",
        "1",
        "--save-frequency",
        "0",
    )
    return train(folder, shards, "--epochs", "100", *options, ready="Eval Epoch", settle_s=1, samples=64)


def _slow_disk(folder: Path, *, is_first: bool) -> Training:
    """On a disk that gives a megabyte a second: from the start, or once the training is under way."""
    shards = write_shards(folder / "shards", side=256, samples=1000)
    tars = sorted((folder / "shards").glob("*.tar"))
    disk = throttle.Disk(folder, bytes_per_s=1_000_000)
    often = ("--log-every-n-steps", "1", "--epochs", "100", "--save-frequency", "0")
    training = train(
        folder, shards, *often, ready="Start epoch 0" if is_first else "Train Epoch: 0 [", settle_s=0
    )
    if is_first:
        throttle.forget(tars)
        disk.hold(training.pid)
    training.clean.append(disk.close)
    said = training.is_ready
    slowed: list[float] = []

    def is_ready() -> bool:
        if not slowed and said():
            throttle.forget(tars)
            disk.hold(training.pid)
            slowed.append(time.monotonic())
        since_print_s = time.time() - training.log.stat().st_mtime
        return bool(slowed) and min(time.monotonic() - slowed[0], since_print_s) > 7

    training.is_ready = is_ready
    return training


NO_CAPTIONS = ("jpg", "json", "paug.json")
SPINS, EXITS = frozenset({"filter.spinning"}), frozenset({"run.no_batches"})
STALLS = (
    Stall("no caption member", partial(_without_captions, members=NO_CAPTIONS), SPINS),
    Stall(
        "no caption member, resampled",
        lambda folder: _without_captions(folder, NO_CAPTIONS, "--dataset-resampled"),
        SPINS,
    ),
    Stall("another caption key (.cls)", partial(_without_captions, members=("jpg", "cls")), SPINS),
    Stall(
        "another caption key (.caption)",
        partial(_without_captions, members=("jpg", "caption")),
        SPINS,
    ),
    Stall("loss is NaN", _nan, frozenset({"loss.nonfinite"})),
    Stall("JSON decode conflict", _conflict, frozenset({"json.conflict"})),
    Stall(
        "webdataset 1.x under open_clip 3.3.0",
        _new_webdataset,
        frozenset({"version.webdataset"}),
        missing=lambda: webdataset_1()[1],
    ),
    Stall("fewer samples per worker than a batch", _starving, frozenset({"worker.starved"})),
    Stall("8,000-pixel images", _large_images, frozenset({"decode.slow"})),
    Stall(
        "shuffle buffer on a slow disk",
        partial(_slow_disk, is_first=True),
        frozenset({"shuffle.filling"}),
        missing=throttle.missing,
    ),
    Stall(
        "slow disk",
        partial(_slow_disk, is_first=False),
        frozenset({"disk.slow"}),
        missing=throttle.missing,
    ),
    Stall("fewer shards than workers", partial(_ended, shards=1), frozenset({"shards.too_few"})),
    Stall("an experiment of that name exists; exit code 0", _exists_already, EXITS),
)
HEALTHY = (
    Stall("open_clip, a long validation", _long_validation),
    Stall("open_clip, two workers", _healthy),
    Stall("open_clip, one worker", partial(_healthy, workers=1)),
    Stall("open_clip, no worker", partial(_healthy, workers=0)),
    Stall("open_clip, resampled", lambda folder: _healthy(folder, "--dataset-resampled")),
    Stall("open_clip, paused by its user", _paused),
)
