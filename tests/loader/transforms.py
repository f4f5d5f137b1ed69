"""Transforms for the tests, in a module of their own so that worker processes can import them."""

import os
import signal
import time
from typing import Any

import torch

from tasks.core.errors import DataError
from tasks.loader.decoders import decode_text, decode_volume, image_of


def plain(sample: dict[str, bytes], generator_seed: int | None) -> dict[str, Any]:
    """The picture's grey value, the caption, and noise from the seed alone."""
    generator = torch.Generator().manual_seed(generator_seed or 0)
    return {
        "grey": torch.tensor(image_of(sample).getpixel((0, 0))[0]),
        "noise": torch.rand(3, generator=generator),
        "caption": decode_text(sample["txt"]),
    }


def with_long_texts(sample: dict[str, bytes], generator_seed: int | None) -> dict[str, Any]:
    return {"text": "x" * 20_000}


def refusing(sample: dict[str, bytes], generator_seed: int | None) -> dict[str, Any]:
    if sample["txt"] == b"caption 13":
        raise DataError("the picture is all black")
    return plain(sample, generator_seed)


def buggy(sample: dict[str, bytes], generator_seed: int | None) -> dict[str, Any]:
    raise KeyError("labels")


def slow(sample: dict[str, bytes], generator_seed: int | None) -> dict[str, Any]:
    time.sleep(0.05)
    return plain(sample, generator_seed)


def suicidal(sample: dict[str, bytes], generator_seed: int | None) -> dict[str, Any]:
    """Ends as the kernel's OOM killer ends a process."""
    if sample["txt"] == b"caption 13":
        os.kill(os.getpid(), signal.SIGKILL)
    return plain(sample, generator_seed)


def cropping(sample: dict[str, bytes], generator_seed: int | None) -> dict[str, Any]:
    """A crop of the volume, where there is one, that touches all of its chunks but reads no voxel more."""
    has_volume = "volume.b2nd" in sample or "volume.npy" in sample
    whole = (slice(0, 33), slice(0, 50), slice(0, 40))
    return {"sum": int(decode_volume(sample, whole).astype("int64").sum()) if has_volume else 0}
