"""Transforms for the tests, in a module of their own so that worker processes can import them."""

import contextlib
import os
import resource
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from tasks.core.errors import DataError
from tasks.loader.collate import stack
from tasks.loader.decoders import decode_image, decode_json, decode_text, decode_volume, image_of


def plain(sample: dict[str, bytes], generator_seed: int | None) -> dict[str, Any]:
    """The picture's grey value, the caption, and noise from the seed alone."""
    generator = torch.Generator().manual_seed(generator_seed or 0)
    return {
        "grey": torch.tensor(image_of(sample).getpixel((0, 0))[0]),
        "noise": torch.rand(3, generator=generator),
        "caption": decode_text(sample["txt"]),
    }


def whole(sample: dict[str, bytes], generator_seed: int | None) -> dict[str, Any]:
    """Whatever modality it is of, all that is decoded of it, as one number."""
    pictures = [decode_image(content) for name, content in sample.items() if name.endswith(("jpg", "png"))]
    has_volume = any(name.startswith("volume.") for name in sample)
    voxels = decode_volume(sample).astype("int64").sum() if has_volume else 0
    facts = [decode_json(content) for name, content in sample.items() if name.endswith("json")]
    return {"sum": int(voxels) + len(facts) + sum(picture.width for picture in pictures)}


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


def together(samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A collate that makes one entry of all samples, as a packing recipe does."""
    return {
        "sum": torch.stack([sample["grey"] for sample in samples]).sum()[None],
        "key": [samples[0]["key"]],
    }


def large(sample: dict[str, bytes], generator_seed: int | None) -> dict[str, Any]:
    """Half a megabyte."""
    return {"voxels": torch.ones(1 << 17)}


def without_descriptors(samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A collate that leaves no descriptor."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, most))
    with contextlib.suppress(OSError):
        while True:
            os.dup(0)
    return stack(samples)


def with_an_error_of_its_own(sample: dict[str, bytes], generator_seed: int | None) -> dict[str, Any]:
    """It cannot be pickled, as its class has no name to be found by."""

    class OwnError(Exception):
        pass

    raise OwnError("not to be sent")


def taking_and_freeing(sample: dict[str, bytes], generator_seed: int | None) -> dict[str, Any]:
    """How many pages the kernel had to give for 48 MiB, as of pictures in between."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    _ = [bytearray(b"x") * (1 << 24) for _ in range(3)]
    return {"pages": resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before}


def shown(sample: dict[str, bytes], generator_seed: int | None) -> dict[str, Any]:
    """The caption and the sum of all pixels in RGB, as a text."""
    pixels = torch.from_numpy(np.array(image_of(sample).convert("RGB"), np.int64))
    return {"shown": f"{decode_text(sample['txt'])} {int(pixels.sum())}"}
