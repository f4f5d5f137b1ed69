"""`tarmac reinforce`: write a dataset's pairs with the embeddings of teachers as tars, from which a build
reads.

Each shard of the dataset becomes one tar, whose name holds a digest of all that it was made of: the shard's
seal, the teachers with the seals of their weights, the captions, and the settings. A tar is written under
another name, flushed and renamed. So every tar that exists is complete, a killed run goes on with the next
shard, and a changed shard or teacher makes new tars. The price is a second copy of the images.

Augmentations are drawn in the form that `paug.json` stores: a crop as torchvision's RandomResizedCrop draws
it (8 to 100 % of the area, 3:4 to 4:3) and two operations of its RandAugment at magnitude 9 of 30, which are
MobileCLIP's settings. They are drawn from a seed per sample, so they depend neither on the shard nor on how
often the work was interrupted.
"""

from __future__ import annotations

import io
import json
import math
import os
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import torch

from tasks.core.errors import DataError, UsageError
from tasks.core.files import blake3_file, digest, disk_full_as_error, fsync_path
from tasks.core.lock import Lease
from tasks.core.patterns import pattern_start
from tasks.core.schema import Config, ShardsSource
from tasks.core.schema.reinforce import Reinforce
from tasks.core.schema.score import ClipWeights
from tasks.core.screen import Progress
from tasks.dataset.tar.writer import ShardWriter
from tasks.dataset.version.layout import resolve
from tasks.dataset.version.manifest import read_manifest
from tasks.dataset.version.tables import ShardRecord, read_shards
from tasks.loader.decoders import decode_image, decode_text, picture_name
from tasks.loader.indexed import IndexedReader
from tasks.models.clip.loaded import LoadedClip, Rows
from tasks.models.reinforced.reinforcement import replay

LEASE = "lease.json"
OURS = re.compile(r"\.?\w+-\d{6,}-[0-9a-f]{12}\.tar(\.[0-9a-f]{32})?")
"""Names of tars that this module wrote or was writing."""
OPERATIONS = 2
LARGEST_TURN = 30.0
BINS, MAGNITUDE = 31, 9
SHARE = MAGNITUDE / (BINS - 1)
AREA, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
TRIES = 10
TRANSLATED = 150 / 331
"""The farthest that RandAugment moves an image, as a share of its side."""


@dataclass(frozen=True)
class Reinforced:
    """The number of tars, how many of them are new, and the width of each teacher's embeddings."""

    tars: int
    made: int
    samples: int
    widths: tuple[int, ...]


class Teacher(LoadedClip):
    """A model that embeds augmented views and texts."""

    def __init__(self, given: ClipWeights) -> None:
        super().__init__(given, "reinforce.teachers")
        size = self.preprocessing.size
        self.size = (size, size) if isinstance(size, int) else tuple(size)
        self.width = self.of_texts(["a"]).shape[1]

    def of_views(self, views: Sequence[tuple[Any, Sequence[Any]]]) -> Rows:
        """Return [views, width] for pictures, each with the augmentation that is replayed on it."""
        replayed = [np.array(replay(*view, self.size, self.preprocessing.interpolation)) for view in views]
        return self.of_images(torch.from_numpy(np.stack(replayed)))


def reinforce(config: Config, progress: Progress) -> Reinforced:
    """Bring the tars up to date.

    Raises UsageError for a config that does not fit, DataError for data that does not, Held while another
    process writes into the folder.
    """
    settings, folder = config.reinforce, _folder(config)
    if settings is None:
        raise UsageError("reinforce: is required: it names the dataset, the teachers and the captions")
    version = resolve(settings.dataset)
    if read_manifest(version).modality != "image_text":
        raise UsageError(f"reinforce.dataset: {version} holds no image-text pairs, which reinforce needs")
    captions = _captions(settings.captions)
    weights = [Path(teacher.pretrained) for teacher in settings.teachers]
    seals = [blake3_file(path) for path in (settings.captions, *weights) if path.is_file()]
    made_of = digest([settings.model_dump(mode="json", exclude={"dataset", "batch_size"}), seals])
    planned = list(_planned(version, made_of))
    total, done, made = sum(shard.samples for _, shard, _ in planned), 0, 0
    teachers: list[Teacher] = []
    with disk_full_as_error(folder), Lease(folder / LEASE):
        for name, shard, rows in planned:
            if not (folder / name).exists():
                teachers = teachers or [Teacher(one) for one in settings.teachers]
                samples = _samples(IndexedReader(version, shard.split), rows, captions, settings, teachers)
                _write(folder / name, samples)
                made += 1
            done += shard.samples
            progress(done, total, "samples")
        current = {name for name, _, _ in planned}
        for path in folder.iterdir():  # tars of former shards and teachers, and of a killed run
            if path.name not in current and OURS.fullmatch(path.name):
                path.unlink()
    widths = tuple(teacher.width for teacher in teachers)
    return Reinforced(len(planned), made, total, widths)


def _folder(config: Config) -> Path:
    """Return the folder that the config's build reads, where the tars are written."""
    sources = config.dataset.all_sources
    path = sources[0].path if isinstance(sources[0], ShardsSource) else ""
    if config.dataset.modality != "reinforced" or len(sources) > 1 or not path or "://" in path:
        raise UsageError(
            "dataset.source: tarmac reinforce writes the tars that this source reads; set modality: "
            "reinforced and source: {kind: shards, path: FOLDER}"
        )
    if pattern_start(path) is not None or path.endswith(".tar"):
        raise UsageError(f"dataset.source.path: {path} is no folder; tarmac reinforce writes tars into one")
    return Path(path)


def _captions(path: Path) -> Mapping[str, Sequence[str]]:
    if not path.is_file():
        raise UsageError(f"reinforce.captions: there is no file {path}")
    found = {}
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                row = json.loads(line)
                key, texts = row["key"], row["captions"]
            except (ValueError, KeyError, TypeError):
                key, texts = None, None
            if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
                raise UsageError(f'{path}:{number}: each line must be {{"key": …, "captions": ["…"]}}')
            found[str(key)] = texts
    return found


def _planned(version: Path, made_of: str) -> Iterator[tuple[str, ShardRecord, range]]:
    """Yield each shard's tar name, its record, and the range of its rows in the index of its split."""
    first: dict[str, int] = {}
    for shard in read_shards(version):
        start = first.get(shard.split, 0)
        first[shard.split] = start + shard.samples
        stem = shard.name.removesuffix(".tar").replace("/", "-")
        name = f"{stem}-{digest([shard.blake3, made_of])[:12]}.tar"
        yield name, shard, range(start, start + shard.samples)


def _samples(
    reader: IndexedReader,
    rows: range,
    captions: Mapping[str, Sequence[str]],
    settings: Reinforce,
    teachers: Sequence[Teacher],
) -> Iterator[tuple[str, Mapping[str, bytes]]]:
    for start in range(rows.start, rows.stop, settings.batch_size):
        batch = [reader.read(row) for row in range(start, min(start + settings.batch_size, rows.stop))]
        missing = next((sample.key for sample in batch if sample.key not in captions), None)
        if missing is not None:
            raise DataError(f"{settings.captions}: has no captions for {missing!r}; each sample needs some")
        side = max(max(teacher.size) for teacher in teachers)
        views, drawn, texts = [], [], []
        for sample in batch:
            picture = decode_image(sample.members[picture_name(sample.members)], turns=False)
            seeds = (f"{settings.seed} {sample.key} {number}" for number in range(settings.augmentations))
            drawn.append([draw_augmentation(*picture.size, side, seed) for seed in seeds])
            views += [(picture, augmentation) for augmentation in drawn[-1]]
            texts.append([decode_text(sample.members["txt"]), *captions[sample.key]])
        flat = [text for some in texts for text in some]
        images = np.concatenate([teacher.of_views(views) for teacher in teachers], axis=1)
        words = np.concatenate([teacher.of_texts(flat) for teacher in teachers], axis=1)
        ends = np.cumsum([len(some) for some in texts])[:-1]
        parts = zip(batch, drawn, texts, np.split(images, len(batch)), np.split(words, ends), strict=True)
        for sample, augmentations, (_, *synthetic), image_emb, text_emb in parts:
            arrays = io.BytesIO()
            np.savez(arrays, image_emb=image_emb, text_emb=text_emb)
            added = {
                "syn.json": json.dumps({"syn_text": synthetic}, ensure_ascii=False).encode(),
                "paug.json": json.dumps({"param_aug": augmentations}).encode(),
                "npz": arrays.getvalue(),
            }
            yield sample.key, {**sample.members, **added}


def _write(path: Path, samples: Iterator[tuple[str, Mapping[str, bytes]]]) -> None:
    temporary = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        with ShardWriter(temporary) as writer:
            for key, members in samples:
                writer.add(key, members)
            writer.end()
        fsync_path(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def draw_augmentation(width: int, height: int, side: int, seed: int | str) -> list[Any]:
    """Draw `[[top, left, height, width], [[operation, magnitude], …]]` for an image of this size in pixels,
    which the teachers read at `side` pixels."""
    source = random.Random(seed)
    return [_crop(width, height, source), [_operation(side, source) for _ in range(OPERATIONS)]]


def _crop(width: int, height: int, source: random.Random) -> list[int]:
    for _ in range(TRIES):
        area = width * height * source.uniform(*AREA)
        ratio = math.exp(source.uniform(*map(math.log, RATIO)))
        wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < high <= height:
            return [source.randint(0, height - high), source.randint(0, width - wide), high, wide]
    wide = min(width, max(round(height * RATIO[1]), 1))  # the middle, as wide or high as possible
    high = min(height, max(round(width / RATIO[0]), 1))
    return [(height - high) // 2, (width - wide) // 2, high, wide]


def magnitudes(side: int) -> list[tuple[float, bool]]:
    """Return the magnitude of each operation by its number, and whether it may be negated."""
    moved, factor = TRANSLATED * side * SHARE, 0.9 * SHARE
    return [
        (0.0, False),
        *[(0.3 * SHARE, True)] * 2,
        *[(moved, True)] * 2,
        (LARGEST_TURN * SHARE, True),
        *[(factor, True)] * 4,
        (8 - round(MAGNITUDE / ((BINS - 1) / 4)), False),
        (255.0 * (1 - SHARE), False),
        *[(0.0, False)] * 2,
    ]


def _operation(side: int, source: random.Random) -> list[float]:
    known = magnitudes(side)
    number = source.randrange(len(known))
    magnitude, is_signed = known[number]
    return [number, -magnitude if is_signed and source.random() < 0.5 else magnitude]
