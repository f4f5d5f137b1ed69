"""What `tarmac reinforce` does: a dataset's pairs with what teachers say of them, as tars to build from.

Each shard of the dataset gives one tar, which carries in its name a digest of all that it was made of: the
shard's seal, the teachers with the seals of their weights, the captions, and the settings. A tar is written
under another name, flushed and renamed. So what is there is done, a killed run goes on with the next shard,
and a changed shard or teacher makes new tars. Images are written once more beside the dataset's own.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError

from tasks.core.errors import DataError, UsageError
from tasks.core.files import blake3_file, digest, disk_full_as_error, fsync_path
from tasks.core.lock import Lease
from tasks.core.patterns import pattern_start
from tasks.core.schema import Config, ShardsSource
from tasks.core.schema.reinforce import Reinforce, TeachingModel
from tasks.core.screen import Progress
from tasks.dataset.layout import resolve
from tasks.dataset.manifest import read_manifest
from tasks.dataset.tables import ShardRecord, read_shards
from tasks.dataset.tar.writer import ShardWriter
from tasks.loader.decoders import decode_text, picture_name
from tasks.loader.indexed import IndexedReader
from tasks.models.clip.clip import ClipRecipe
from tasks.models.clip.clip_options import ClipOptions
from tasks.models.clip.pictures import normalised
from tasks.models.reinforced import augmentation
from tasks.models.reinforced.reinforcement import replay, stored_picture

LEASE = "lease.json"
OURS = re.compile(r"\.?\w+-\d{6,}-[0-9a-f]{12}\.tar(\.[0-9a-f]{32})?")
"""Names of tars that were written here, whole or while they are written."""
Rows = NDArray[np.float32]


@dataclass(frozen=True)
class Reinforced:
    """The tars that are there, how many of them are new, and the width of each teacher's embeddings."""

    tars: int
    made: int
    samples: int
    widths: tuple[int, ...]


class Teacher:
    """A model in eval mode, on a GPU where there is one."""

    def __init__(self, given: TeachingModel) -> None:
        try:
            recipe = ClipRecipe(ClipOptions(name=given.name, pretrained=given.pretrained))
            model = recipe.build_model()
        except ValidationError as error:
            wrong = error.errors(include_url=False)[0]["ctx"]["error"]
            raise UsageError(f"reinforce.teachers: {given.name}: {wrong}") from None
        except UsageError as error:
            raise UsageError(f"reinforce.teachers: {given.name}: {error}") from None
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        model = model.to(self._device).eval()
        self._task, self._settings = recipe.task(model), recipe.preprocessing
        size = self._settings.size
        self.size = (size, size) if isinstance(size, int) else tuple(size)
        self.width = self.of_texts(["a"]).shape[1]

    def of_images(self, views: Sequence[tuple[Any, Sequence[Any]]]) -> Rows:
        """[views, width] of pictures, each with the augmentation that is replayed on it."""
        seen = [np.array(replay(*view, self.size, self._settings.interpolation)) for view in views]
        pixels = torch.from_numpy(np.stack(seen)).to(self._device)
        with torch.inference_mode():
            model, crops = self._task.model, normalised(pixels, self._settings)
            return _rows(model.encode_image(crops, normalize=True))

    def of_texts(self, texts: Sequence[str]) -> Rows:
        with torch.inference_mode():
            return _rows(self._task.embed_texts(texts))


def _rows(embeddings: torch.Tensor) -> Rows:
    rows: Rows = embeddings.float().cpu().numpy()
    return rows


def reinforce(config: Config, progress: Progress) -> Reinforced:
    """Bring the tars up to date. UsageError for a config that does not fit, DataError for data that does not;
    Held when somebody else is at it."""
    settings, folder = _block(config), _folder(config)
    version = resolve(settings.dataset)
    if read_manifest(version).modality != "image_text":
        raise UsageError(f"reinforce.dataset: {version} holds no image-text pairs; reinforce adds to those")
    captions = _captions(settings.captions)
    made_of = digest([settings.model_dump(mode="json", exclude={"dataset", "batch_size"}), _seals(settings)])
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
        _remove_others(folder, {name for name, _, _ in planned})
    widths = tuple(teacher.width for teacher in teachers)
    return Reinforced(len(planned), made, total, widths)


def _block(config: Config) -> Reinforce:
    if config.reinforce is None:
        raise UsageError("reinforce: is required: it names the dataset, the teachers and the captions")
    return config.reinforce


def _folder(config: Config) -> Path:
    """Where the tars go: what the build of the config reads."""
    sources = config.dataset.all_sources
    source = sources[0]
    is_there = isinstance(source, ShardsSource) and "://" not in source.path
    if config.dataset.modality != "reinforced" or len(sources) > 1 or not is_there:
        raise UsageError(
            "dataset.source: tarmac reinforce writes the tars that it names; give modality: reinforced and "
            "source: {kind: shards, path: FOLDER}"
        )
    assert isinstance(source, ShardsSource)
    if pattern_start(source.path) is not None or source.path.endswith(".tar"):
        raise UsageError(f"dataset.source.path: {source.path} is no folder, which the tars are written into")
    return Path(source.path)


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
                raise UsageError(f'{path}:{number}: a line is {{"key": …, "captions": ["…"]}}')
            found[str(key)] = texts
    return found


def _seals(settings: Reinforce) -> list[str]:
    """Of the files that the tars are made of, by content."""
    weights = [Path(teacher.pretrained) for teacher in settings.teachers]
    return [blake3_file(path) for path in (settings.captions, *weights) if path.is_file()]


def _planned(version: Path, made_of: str) -> Iterator[tuple[str, ShardRecord, range]]:
    """Each shard with the name of its tar, and the rows of its split's index that it holds."""
    first: dict[str, int] = {}
    for shard in read_shards(version):
        start = first.get(shard.split, 0)
        first[shard.split] = start + shard.samples
        stem = shard.name.removesuffix(".tar").replace("/", "-")
        yield (
            f"{stem}-{digest([shard.blake3, made_of])[:12]}.tar",
            shard,
            range(start, start + shard.samples),
        )


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
            raise DataError(f"{settings.captions}: has no captions of {missing!r}; each sample needs some")
        side = max(max(teacher.size) for teacher in teachers)
        views, texts = [], []
        for sample in batch:
            picture = stored_picture(sample.members[picture_name(sample.members)])
            names = (f"{settings.seed} {sample.key} {number}" for number in range(settings.augmentations))
            views += [(picture, augmentation.draw(*picture.size, side, name)) for name in names]
            texts.append([decode_text(sample.members["txt"]), *captions[sample.key]])
        images = np.concatenate([teacher.of_images(views) for teacher in teachers], axis=1)
        flat = [text for some in texts for text in some]
        said = np.concatenate([teacher.of_texts(flat) for teacher in teachers], axis=1)
        ends = np.cumsum([len(some) for some in texts])
        parts = zip(
            batch, np.split(images, len(batch)), np.split(said, ends[:-1]), range(len(batch)), strict=True
        )
        for sample, image_emb, text_emb, place in parts:
            first = place * settings.augmentations
            seen = [drawn for _, drawn in views[first : first + settings.augmentations]]
            yield sample.key, {**sample.members, **_added(seen, texts[place][1:], image_emb, text_emb)}


def _added(
    seen: Sequence[Any], synthetic: Sequence[str], image_emb: Rows, text_emb: Rows
) -> dict[str, bytes]:
    arrays = io.BytesIO()
    np.savez(arrays, image_emb=image_emb, text_emb=text_emb)
    return {
        "syn.json": json.dumps({"syn_text": synthetic}, ensure_ascii=False).encode(),
        "paug.json": json.dumps({"param_aug": seen}).encode(),
        "npz": arrays.getvalue(),
    }


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


def _remove_others(folder: Path, names: set[str]) -> None:
    """Tars of shards and teachers that are no more, and what a killed run was writing."""
    for path in folder.iterdir():
        if path.name not in names and OURS.fullmatch(path.name):
            path.unlink()
