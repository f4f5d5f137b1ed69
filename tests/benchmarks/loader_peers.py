"""`loader_peers.py store|load|read NAME TARS FOLDER [WORKERS MODEL]`: other loaders of the same pictures.

Runs in an environment that knows nothing of Tarmac. `store` writes the pairs of the tars in the peer's own
format, once; `load` prints its pace, imports not counted, and `read` the microseconds of reading single samples
in random order, p50 and p99. Each peer is written as its documentation has it, shuffles, and decodes by Pillow.
Given MODEL, samples are those of a CLIP: open_clip's training transform and tokens.
"""

from __future__ import annotations

import glob
import importlib
import io
import itertools
import json
import os
import random
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import numpy as np
import torch
from PIL import Image

sys.path.insert(0, os.path.dirname(__file__))
BATCH, SIDE, BUFFER, WORKERS = 64, 224, 1000, 2
pace = importlib.import_module("pace")


def transform(jpeg: bytes) -> torch.Tensor:
    if CLIP:
        return CLIP[0](Image.open(io.BytesIO(jpeg)))
    with Image.open(io.BytesIO(jpeg)) as picture:
        small = picture.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.asarray(small).copy())


CLIP: list[Callable[[Any], Any]] = []
"""open_clip's transform and tokenizer, where MODEL is given."""


def caption_of(text: str) -> Any:
    return CLIP[1](text)[0] if CLIP else text


def pairs(tars: str) -> Iterator[tuple[bytes, str]]:
    return pairs_in(sorted(glob.glob(f"{tars}/*.tar")))


def pairs_in(paths: list[str]) -> Iterator[tuple[bytes, str]]:
    for path in paths:
        with tarfile.open(path) as tar:
            found: dict[str, bytes] = {}
            for member in tar:
                content = tar.extractfile(member)
                assert content is not None
                found[member.name.rpartition(".")[2]] = content.read()
                if len(found) == 2:
                    yield found["jpg"], found["txt"].decode()
                    found = {}


def endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def torch_loader(dataset: Any, workers: int) -> Iterator[Any]:
    return endless(torch.utils.data.DataLoader(dataset, BATCH, num_workers=workers))


def plain(tars: str, folder: str, workers: int) -> Iterator[Any]:
    """What one writes without a library; it does not shuffle."""

    class Tars(torch.utils.data.IterableDataset[dict[str, Any]]):
        def __iter__(self) -> Iterator[dict[str, Any]]:
            worker = torch.utils.data.get_worker_info()
            turn, count = (worker.id, worker.num_workers) if worker else (0, 1)
            for path in sorted(glob.glob(f"{tars}/*.tar"))[turn::count]:
                for jpeg, caption in pairs_in([path]):
                    yield {"image": transform(jpeg), "caption": caption_of(caption)}

    return torch_loader(Tars(), workers)


def by_webdataset(tars: str, folder: str, workers: int) -> Iterator[Any]:
    import webdataset

    paths = sorted(glob.glob(f"{tars}/*.tar"))
    stream = webdataset.WebDataset(paths, shardshuffle=len(paths)).shuffle(BUFFER)
    return torch_loader(stream.map(webdataset_sample), workers)


def webdataset_sample(sample: dict[str, Any]) -> dict[str, Any]:
    return {"image": transform(sample["jpg"]), "caption": caption_of(sample["txt"].decode())}


def store_litdata(tars: str, folder: str) -> None:
    import litdata

    paths = sorted(glob.glob(f"{tars}/*.tar"))
    litdata.optimize(members, paths, folder, num_workers=1, chunk_bytes="16MB")


def members(tar: str) -> Iterator[dict[str, Any]]:
    for jpeg, caption in pairs_in([tar]):
        yield {"jpg": jpeg, "txt": caption}


def by_litdata(tars: str, folder: str, workers: int) -> Iterator[Any]:
    import litdata

    class Pictures(litdata.StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, index: Any) -> dict[str, Any]:
            found = super().__getitem__(index)
            return {"image": transform(found["jpg"]), "caption": caption_of(found["txt"])}

    dataset = Pictures(folder, shuffle=True)
    return endless(litdata.StreamingDataLoader(dataset, batch_size=BATCH, num_workers=workers))


def read_by_wids(tars: str, folder: str) -> Iterator[Any]:
    """Every sample once in random order, its members as bytes; the shards are open and indexed before."""
    import wids

    paths = sorted(glob.glob(f"{tars}/*.tar"))
    with open(f"{tars}/sizes.json") as file:
        sizes = json.load(file)
    shards = [{"url": path, "nsamples": sizes[os.path.basename(path)]} for path in paths]
    dataset = wids.ShardListDataset(
        shards, cache_size=len(shards), cache_dir=folder, transformations=[members_of], keep=True
    )
    for start in itertools.accumulate([0, *sizes.values()][:-1]):
        dataset[start]
    for number in random.Random(0).sample(range(len(dataset)), len(dataset)):
        yield dataset[number]


def members_of(sample: dict[str, Any]) -> dict[str, Any]:
    return {suffix: content.read() for suffix, content in sample.items() if suffix in (".jpg", ".txt")}


def store_mds(tars: str, folder: str) -> None:
    from streaming import MDSWriter

    columns = {"jpg": "bytes", "txt": "str"}
    with MDSWriter(out=folder, columns=columns, size_limit="16mb") as writer:
        for jpeg, caption in pairs(tars):
            writer.write({"jpg": jpeg, "txt": caption})


def by_mds(tars: str, folder: str, workers: int) -> Iterator[Any]:
    from streaming import StreamingDataLoader, StreamingDataset

    class Pictures(StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, index: Any) -> dict[str, Any]:
            found = super().__getitem__(index)
            return {"image": transform(found["jpg"]), "caption": caption_of(found["txt"])}

    dataset = Pictures(local=folder, batch_size=BATCH, shuffle=True, num_canonical_nodes=1)
    return endless(StreamingDataLoader(dataset, batch_size=BATCH, num_workers=workers))


def store_array_record(tars: str, folder: str) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(f"{folder}/all.array_record", "group_size:1")
    for jpeg, caption in pairs(tars):
        writer.write(len(jpeg).to_bytes(4, "little") + jpeg + caption.encode())
    writer.close()


def by_grain(tars: str, folder: str, workers: int) -> Iterator[Any]:
    """Threads instead of processes, which its documentation advises where decoders release the GIL."""
    import grain

    source = grain.sources.ArrayRecordDataSource([f"{folder}/all.array_record"])
    dataset = grain.MapDataset.source(source).seed(0).shuffle().repeat().map(record).batch(BATCH)
    return iter(dataset.to_iter_dataset(grain.ReadOptions(num_threads=max(workers, 1))))


def record(found: bytes) -> dict[str, Any]:
    size = int.from_bytes(found[:4], "little")
    caption = caption_of(found[4 + size :].decode())
    return {"image": transform(found[4 : 4 + size]).numpy(), "caption": np.asarray(caption)}


STORE: dict[str, Callable[[str, str], None]] = {
    "litdata": store_litdata,
    "mds": store_mds,
    "grain": store_array_record,
}
LOAD: dict[str, Callable[[str, str, int], Iterator[Any]]] = {
    "plain": plain,
    "webdataset": by_webdataset,
    "litdata": by_litdata,
    "mds": by_mds,
    "grain": by_grain,
}


def main(
    action: str, name: str, tars: str, folder: str, workers: str = str(WORKERS), model: str = ""
) -> None:
    if model:
        import open_clip

        side = open_clip.get_model_config(model)["vision_cfg"]["image_size"]
        CLIP.extend([open_clip.image_transform(side, is_train=True), open_clip.get_tokenizer(model)])
        torch.set_num_threads(1)
    if action == "store":
        if name in STORE:
            os.makedirs(folder, exist_ok=True)
            STORE[name](tars, folder)
    elif action == "read":
        print(*pace.read_us(read_by_wids(tars, folder)))
    else:
        print(*pace.measure(closing(LOAD[name](tars, folder, int(workers))), skipped=2 * int(workers)))


if __name__ == "__main__":
    main(*sys.argv[1:])
