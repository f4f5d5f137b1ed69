"""`tarmac score`: how well each caption of the current version fits its picture, by a CLIP model.

`clip_score` is the cosine of the embeddings of picture and caption, as in DataComp's filter. A file per shard
is written and renamed, so a killed run goes on with the next shard; a shard whose samples all have scores
already, as after a rule has left some out, takes them from there.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from tasks.core.errors import DataError, UsageError
from tasks.core.files import blake3_file, disk_full_as_error, write_atomic
from tasks.core.lock import Lease
from tasks.core.process import available_cores
from tasks.core.schema import Config
from tasks.core.schema.score import Scoring
from tasks.core.screen import Progress
from tasks.dataset.building.score_rules import require_score_block, score_settings
from tasks.dataset.quality.score_summary import summarise
from tasks.dataset.quality.scored import ScoreSummary
from tasks.dataset.scores import (
    AESTHETIC,
    CLIP_SCORE,
    EMBEDDING,
    METADATA,
    OTHERS,
    ScoreTable,
    ShardSamples,
    VersionSamples,
    model_id,
    read_rows,
    remove_unknown,
    score_file,
    scored_columns,
)
from tasks.dataset.version import quarantine, versions
from tasks.dataset.version.layout import SCORES, resolve
from tasks.dataset.version.manifest import read_manifest
from tasks.loader.batches import open_split
from tasks.loader.feed import Data, Feed
from tasks.models import hub
from tasks.models.clip.clip_options import open_clip_needs
from tasks.models.clip.loaded import LoadedClip, Rows, options_of
from tasks.models.scoring.aesthetic import LinearHead
from tasks.models.scoring.semantic import write_duplicates

LEASE = "lease.json"
KEY = "score.model"
JUDGED = ("image_text", "reinforced")


@dataclass(frozen=True)
class Scored:
    """What was done: of `samples`, `computed` went through the model in `seconds`, and `copied` had scores of
    an earlier version. `left_out` have none, because they are quarantined or cannot be read."""

    version: Path
    folder: Path
    samples: int
    computed: int
    copied: int
    left_out: int
    seconds: float
    summary: ScoreSummary


def score(config: Config, progress: Progress) -> Scored:
    """Bring the scores of the dataset's current version up to date.

    UsageError for a config or dataset that does not fit, DataError for data that cannot be read, Held while
    another process scores the dataset.
    """
    settings, dataset = score_settings(config), config.dataset
    version = resolve(dataset.output)
    modality = read_manifest(version).modality
    if modality not in JUDGED:
        raise UsageError(
            f"dataset.modality: tarmac score compares pictures with captions, which {modality} has none of"
        )
    _require_weights(settings, config.runs)
    name = model_id(settings.model)
    folder = dataset.output / SCORES / name
    head = None if settings.aesthetic is None else LinearHead(settings.aesthetic)
    with disk_full_as_error(dataset.output), Lease(dataset.output / SCORES / LEASE):
        folder.mkdir(exist_ok=True)
        samples = VersionSamples(version)
        work = _Scorer(config, settings, version, folder, samples, head, progress)
        work.run()
        if settings.semdedup is not None:
            rules = {one: rule for one, rule in dataset.filter.items() if one in (CLIP_SCORE, AESTHETIC)}
            require_score_block(config, rules)
            write_duplicates(folder, samples, rules, progress)
        with suppress(DataError):  # a version that cannot be read may know any of them
            remove_unknown(folder, versions.list_versions(dataset.output) or [version])
        table = ScoreTable.read(folder, samples.shards)
        threshold = None if settings.semdedup is None else settings.semdedup.threshold
        summary = summarise(version, name, samples, table, threshold)
    left_out = summary.samples - summary.scored
    return Scored(
        version, folder, summary.samples, work.computed, work.copied, left_out, work.seconds, summary
    )


def _require_weights(settings: Scoring, runs: Path) -> None:
    """UsageError for an unknown model, and for weights that are not there, in the words of fetch and
    preflight."""
    options = options_of(settings.model, KEY)
    needs = open_clip_needs(KEY, options.registered, options.pretrained, options.described)
    for lack in hub.lacks(needs, hub.read_lock(runs)):
        if lack.is_certain:
            raise UsageError(f"{lack.problem}; {lack.finding().remedy}")


@dataclass
class _ShardScores:
    """The samples of a shard that the model has embedded so far."""

    samples: ShardSamples
    rows: list[int] = field(default_factory=list)
    images: list[Rows] = field(default_factory=list)
    captions: list[int] = field(default_factory=list)
    """For each sample the number of its caption among the distinct ones."""
    texts: list[Rows] = field(default_factory=list)
    """The embeddings of the distinct captions."""
    numbers: dict[bytes, int] = field(default_factory=dict)
    """Their numbers, by their tokens."""

    def add(self, row: int, image: Rows, caption: bytes, text: Rows) -> None:
        number = self.numbers.setdefault(caption, len(self.texts))
        if number == len(self.texts):
            self.texts.append(text)
        self.captions.append(number)
        self.images.append(image)
        self.rows.append(row)


class _Scorer:
    """Writes the files of a version's shards that have none."""

    def __init__(
        self,
        config: Config,
        settings: Scoring,
        version: Path,
        folder: Path,
        samples: VersionSamples,
        head: LinearHead | None,
        progress: Progress,
    ) -> None:
        self._config, self._settings, self._version, self._folder = config, settings, version, folder
        self._samples, self._head, self._progress = samples, head, progress
        self._marks = (
            {}
            if head is None or settings.aesthetic is None
            else {"aesthetic": blake3_file(settings.aesthetic)}
        )
        self.computed = self.copied = 0
        self.seconds = 0.0
        self._done = self._total = 0

    def run(self) -> None:
        shards = self._samples.shards
        self._total = sum(shard.samples for shard in shards)
        missing = {shard.name for shard in shards if not self._is_current(score_file(self._folder, shard))}
        self._advance(sum(shard.samples for shard in shards if shard.name not in missing))
        if missing:
            table = ScoreTable.read(self._folder)
            for one in self._samples.of(missing):
                if self._copy(one, score_file(self._folder, one.shard), table):
                    missing.discard(one.shard.name)
                    self.copied += len(one.keys)
                    self._advance(len(one.keys))
        if missing:
            self._compute(missing)

    def _is_current(self, path: Path) -> bool:
        """Whether a file has all that is asked for."""
        found = scored_columns(path)
        if found is None:
            path.unlink(missing_ok=True)  # it was cut
            return False
        columns, about = found
        wanted = {CLIP_SCORE, OTHERS} | ({EMBEDDING} if self._settings.keeps_embeddings else set())
        return columns >= wanted and (self._head is None or about == self._about)

    @property
    def _about(self) -> bytes:
        return json.dumps(self._marks, sort_keys=True).encode()

    def _copy(self, one: ShardSamples, path: Path, table: ScoreTable) -> bool:
        """Write the file of a shard from other files; False unless these have all of its samples, stored as
        they are here."""
        at = table.index.find(one.contents)
        if (at < 0).any() or (table.checksums[at] != one.checksums).any():
            return False
        files = {int(number): table.files[number] for number in np.unique(table.file[at])}
        if not all(self._is_current(file) for file in files.values()):
            return False
        mine = [np.flatnonzero(table.file[at] == number) for number in files]
        parts = [
            read_rows(file).take(pa.array(table.rows[at][rows]))
            for file, rows in zip(files.values(), mine, strict=True)
        ]
        whole = pa.concat_tables(parts).take(pa.array(np.argsort(np.concatenate(mine))))
        _write(path, whole.combine_chunks(), self._about)
        return True

    def _compute(self, missing: Collection[str]) -> None:
        model = LoadedClip(self._settings.model, KEY)
        began = time.monotonic()
        for split in dict.fromkeys(shard.split for shard in self._samples.shards if shard.name in missing):
            self._compute_split(model, split, missing, began)
        self.seconds = time.monotonic() - began

    def _compute_split(self, model: LoadedClip, split: str, missing: Collection[str], began: float) -> None:
        """Embed the samples of the shards in order, and write each shard as soon as it is done."""
        numbers = [int(Path(name).stem) for name in sorted(missing) if name.startswith(f"{split}/")]
        shards = (_ShardScores(one) for one in self._samples.of(missing) if one.shard.split == split)
        shard, row = next(shards), 0
        for batch in self._batches(model, split, numbers):
            images = model.of_images(batch["image"])
            tokens, caption = torch.unique(batch["text"], dim=0, return_inverse=True)
            texts, names = model.of_tokens(tokens), [one.tobytes() for one in tokens.numpy()]
            for key, image, number in zip(batch["key"], images, caption.tolist(), strict=True):
                while row == len(shard.samples.keys) or shard.samples.keys[row] != key:
                    row += 1  # a sample that was left out
                    if row >= len(shard.samples.keys):
                        self._finish(shard)
                        shard, row = self._next(shards, key), 0
                shard.add(row, image, names[number], texts[number])
                row += 1
            self.computed += len(batch["key"])
            self._advance(len(batch["key"]), self.computed / max(time.monotonic() - began, 1e-9))
        for left in (shard, *shards):
            self._finish(left)

    def _next(self, shards: Iterator[_ShardScores], key: str) -> _ShardScores:
        shard = next(shards, None)
        if shard is None:
            raise DataError(f"{self._version}: its tables do not list {key!r} in order; see `tarmac verify`")
        return shard

    def _batches(self, model: LoadedClip, split: str, shards: Sequence[int]) -> Iterator[Mapping[str, Any]]:
        """Yield the batches of shards, which are given by their numbers. None holds samples of two, so that a
        score does not depend on which other shards are scored with it."""
        left_out = quarantine.of_version(
            self._version, quarantine.read_quarantine(quarantine.home(self._version) / quarantine.NAME)
        )
        reader = open_split(self._version, split, left_out)
        size, loader = self._settings.batch_size, self._config.loader
        parts = [
            range(start, min(start + size, run.stop))
            for run in map(reader.numbers, shards)
            for start in range(run.start, run.stop, size)
        ]
        workers = loader.workers if loader.workers != "auto" else 0
        if loader.workers == "auto" and model.device.type == "cuda":
            workers = available_cores()
        data = Data(self._version, left_out)
        feed = Feed((data,), model.recipe, size, loader, workers=workers, judged_at_once=size)
        with feed.split(split, parts=parts) as batches:
            yield from batches

    def _finish(self, shard: _ShardScores) -> None:
        """Write the file of a shard."""
        one, rows = shard.samples, shard.rows
        images = np.stack(shard.images) if rows else np.empty((0, 1), np.float32)
        texts = np.stack(shard.texts) if rows else np.empty((0, 1), np.float32)
        own, others = compared(images, texts, np.array(shard.captions, np.int64))
        columns = {
            "key": pa.array([one.keys[row] for row in rows], pa.string()),
            "content": pa.array([one.contents[row].tobytes() for row in rows], pa.binary(16)),
            "crc32c": pa.array(one.checksums[rows], pa.uint32()),
            CLIP_SCORE: pa.array(own, pa.float32()),
            OTHERS: pa.array(others, pa.float32(), from_pandas=True),
        }
        if self._head is not None:
            columns[AESTHETIC] = pa.array(self._head(images), pa.float32())
        if self._settings.keeps_embeddings:
            flat = pa.array(images.astype(np.float16).ravel(), pa.float16())
            columns[EMBEDDING] = pa.FixedSizeListArray.from_arrays(flat, images.shape[1])
        _write(score_file(self._folder, one.shard), pa.table(columns), self._about)

    def _advance(self, samples: int, per_s: float = 0.0) -> None:
        self._done += samples
        self._progress(self._done, self._total, f"samples · {per_s:,.0f}/s" if per_s else "samples")


def compared(
    images: Rows, texts: Rows, captions: NDArray[np.int64]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return for each picture the cosine with its caption, and the mean with all other captions, NaN where
    there are none. `texts` are the embeddings of distinct captions, `captions` the number of each picture's
    own."""
    own = np.einsum("ij,ij->i", images, texts[captions])
    if len(texts) < 2:
        return own, np.full(len(own), np.nan, np.float32)
    others = (images @ texts.sum(axis=0) - own) / (len(texts) - 1)
    return own, others.astype(np.float32)


def _write(path: Path, table: Any, about: bytes) -> None:
    file = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({METADATA: about}), file, compression="zstd")
    write_atomic(path, file.getvalue())
