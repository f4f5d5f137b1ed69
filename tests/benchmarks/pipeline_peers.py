"""`pipeline_peers.py spdl|dali TARS WORKERS BATCH MODEL`: pipelines that decode in threads of their own.

They read the same tars and give what open_clip's training transform gives: a random crop of 0.9 to 1.0 of the
picture, resized bicubically, normalised, and tokens. Each decodes and resizes by what it brings itself. Prints
the pace; imports do not count.
"""

from __future__ import annotations

import importlib
import os
import random
import sys
import tarfile
from collections.abc import Iterator
from contextlib import closing
from glob import glob
from typing import Any

import numpy as np
import open_clip
import torch

sys.path.insert(0, os.path.dirname(__file__))
pace = importlib.import_module("pace")
SCALE, RATIO = (0.9, 1.0), (3 / 4, 4 / 3)
MEAN, STD = open_clip.OPENAI_DATASET_MEAN, open_clip.OPENAI_DATASET_STD
BUFFER = 1000


def endless_pairs(tars: str) -> Iterator[tuple[bytes, str]]:
    """From shuffled tars through a shuffling buffer."""
    paths, held = sorted(glob(f"{tars}/*.tar")), []
    while True:
        random.shuffle(paths)
        for path in paths:
            with tarfile.open(path) as tar:
                jpeg = b""
                for member in tar:
                    file = tar.extractfile(member)
                    assert file is not None
                    if member.name.endswith(".jpg"):
                        jpeg = file.read()
                        continue
                    held.append((jpeg, file.read().decode()))
                    if len(held) > BUFFER:
                        place = random.randrange(len(held))
                        held[place], held[-1] = held[-1], held[place]
                        yield held.pop()


def by_spdl(tars: str, workers: int, batch: int, side: int, tokenize: Any) -> Iterator[Any]:
    import spdl.io
    from spdl.pipeline import PipelineBuilder

    def decoded(pair: tuple[bytes, str]) -> tuple[np.ndarray, torch.Tensor]:
        jpeg, text = pair
        packets = spdl.io.demux_image(jpeg)
        top, left, height, width = crop(packets.height, packets.width)
        wanted = f"crop={width}:{height}:{left}:{top},scale={side}:{side}:flags=bicubic,format=pix_fmts=rgb24"
        frames = spdl.io.decode_packets(packets, filter_desc=wanted)
        return np.array(spdl.io.to_numpy(spdl.io.convert_frames(frames)), copy=True), tokenize(text)[0]

    def batched(pairs: list[tuple[np.ndarray, torch.Tensor]]) -> dict[str, torch.Tensor]:
        pixels = torch.from_numpy(np.stack([image for image, _ in pairs]))
        return {"image": normalised(pixels), "text": torch.stack([text for _, text in pairs])}

    builder = PipelineBuilder().add_source(endless_pairs(tars)).pipe(decoded, concurrency=workers)
    pipeline = builder.aggregate(batch).pipe(batched).add_sink(2).build(num_threads=workers)
    with pipeline.auto_stop():
        yield from pipeline.get_iterator(timeout=60)


def crop(height: int, width: int) -> tuple[int, int, int, int]:
    """Top, left, height and width, drawn as torchvision's RandomResizedCrop draws them."""
    area = height * width
    for _ in range(10):
        wanted = area * random.uniform(*SCALE)
        ratio = float(np.exp(random.uniform(*np.log(RATIO))))
        across, down = round((wanted * ratio) ** 0.5), round((wanted / ratio) ** 0.5)
        if 0 < across <= width and 0 < down <= height:
            return random.randint(0, height - down), random.randint(0, width - across), down, across
    return 0, 0, height, width


def normalised(pixels: torch.Tensor) -> torch.Tensor:
    planes = pixels.permute(0, 3, 1, 2).float().div_(255)
    return planes.sub_(torch.tensor(MEAN)[:, None, None]).div_(torch.tensor(STD)[:, None, None])


def by_dali(tars: str, workers: int, batch: int, side: int, tokenize: Any) -> Iterator[Any]:
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.plugin.pytorch import feed_ndarray  # noqa: F401 - as its plugin is imported

    @pipeline_def(batch_size=batch, num_threads=workers, device_id=None, prefetch_queue_depth=2)
    def training() -> Any:
        paths = sorted(glob(f"{tars}/*.tar"))
        jpegs, texts = fn.readers.webdataset(
            paths=paths, ext=["jpg", "txt"], random_shuffle=True, initial_fill=BUFFER, name="reader"
        )
        crops = fn.decoders.image_random_crop(
            jpegs, random_area=list(SCALE), random_aspect_ratio=list(RATIO), device="cpu"
        )
        sized = fn.resize(crops, size=[side, side], interp_type=types.INTERP_CUBIC, antialias=True)
        scaled = {"mean": [255 * one for one in MEAN], "std": [255 * one for one in STD]}
        return fn.crop_mirror_normalize(sized, dtype=types.FLOAT, output_layout="CHW", **scaled), texts

    pipeline = training()
    pipeline.build()
    while True:
        images, texts = pipeline.run()
        captions = [bytes(texts.at(n)).decode() for n in range(batch)]
        yield {"image": torch.from_numpy(np.array(images.as_array())), "text": tokenize(captions)}


LOAD = {"spdl": by_spdl, "dali": by_dali}


def main(name: str, tars: str, workers: str, batch: str, model: str) -> None:
    torch.set_num_threads(1)
    side = open_clip.get_model_config(model)["vision_cfg"]["image_size"]
    source = LOAD[name](tars, int(workers), int(batch), side, open_clip.get_tokenizer(model))
    print(*pace.measure(closing(source), skipped=2 * int(workers)))


if __name__ == "__main__":
    main(*sys.argv[1:])
