"""A run's checkpoint as a `Subject` of evaluators: its loaded model, and the data that the run was
trained on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_model
from torch import nn

from tasks.core.errors import DataError, UsageError
from tasks.core.schema import Config
from tasks.dataset.tar.format import Sample
from tasks.dataset.version.versions import read_manifest
from tasks.evaluation.contract import (
    START,
    Answered,
    BatchLoss,
    ChatRequest,
    CheckpointLocation,
    Embedded,
    Embeddings,
    Members,
    StreamPosition,
)
from tasks.evaluation.origins import load_origin
from tasks.loader.bad import BadSampleError
from tasks.loader.batches import open_split
from tasks.loader.feed import Data, Feed
from tasks.loader.settings import read_settings
from tasks.loader.workers import Transform
from tasks.models import recipes
from tasks.models.held_out import held_out, nothing_held_out
from tasks.models.precision import autocast
from tasks.models.task import Question
from tasks.runs import record
from tasks.runs.checkpoints import MODEL, Checkpoint, is_sound
from tasks.runs.data import data_of, left_out_by, left_out_of, version_path
from tasks.runs.folder import RunFolder
from tasks.runs.followed import read_origin


def load_model_of(run: RunFolder, config: Config, step: int) -> tuple[Any, nn.Module]:
    """Load the recipe, and the model that the run saved at `step`, on the CPU: with `train.ema` the average
    of the weights. DataError where there is no checkpoint with a sound model."""
    if config.train is None:
        raise UsageError(f"{run.config}: has no train block, so there is no model")
    if (origin := read_origin(run.checkpoint(step))) is not None:
        return load_origin(config.train, origin)
    checkpoint = Checkpoint(step, run.checkpoint(step))
    if not is_sound(checkpoint, MODEL):
        raise DataError(f"{checkpoint.path}: missing or torn; resume the run and it is written again")
    recipe = recipes.load_recipe(config.train)
    model = recipe.build_model(pretrained=False)
    load_model(model, checkpoint.path / MODEL)
    return recipe, model


@dataclass(frozen=True)
class LoadedCheckpoint:
    """The `Subject` of evaluations. On a CPU it uses one process, because a training needs the cores."""

    task: Any
    """An `Embedder` or an `Answerer`, depending on its recipe's capabilities."""
    device: torch.device
    precision: str
    """The precision of the training, in which its validation loss was measured too."""
    feed: Feed
    _place: CheckpointLocation

    @classmethod
    def open(cls, run: RunFolder, config: Config, step: int, version: Path | None = None) -> LoadedCheckpoint:
        """Load the checkpoint's model, its only file that is read; DataError where there is no sound one.

        `version` is one of another dataset than the run's own, to be evaluated on.
        """
        recipe, model = load_model_of(run, config, step)
        saved = run.checkpoint(step)
        origin = read_origin(saved)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if version is None:
            data = Data(version_path(record.load_record(run).data[0]), left_out_by(run))
        else:
            data = Data(version, left_out_of(version, data_of(version)[0].version))
        workers = read_settings(run.loader).workers if device.type == "cuda" else 0
        return cls(
            task=recipe.task(model).to(device).eval(),
            device=device,
            precision="fp32" if config.train is None else config.train.precision,
            feed=Feed.of(config, [data], recipe, workers=workers),
            _place=CheckpointLocation(run.path, origin.path if origin is not None else saved, step),
        )

    def place(self) -> CheckpointLocation:
        return self._place

    def held_out(self) -> str:
        version = self.feed.data.version
        splits = read_manifest(version).splits
        found = held_out(splits)
        if found is None:
            raise DataError(nothing_held_out(version, splits))
        return found

    def embed_images(
        self, split: str, extract: Callable[[Members], str], after: StreamPosition = START
    ) -> Iterator[Embedded]:
        transform = Extracting(self.feed.shapes.transform(is_train=False), extract)
        with self.feed.split(split, transform, after=after) as batches:
            for batch in batches:
                with self._computing():
                    embeddings = self.task.embed_images(self._moved(batch))
                rows, reached = embeddings.float().cpu().numpy(), StreamPosition(*batches.reached)
                yield Embedded(batch["key"], rows, batch["extracted"], reached)

    def embed_texts(self, texts: Sequence[str]) -> Embeddings:
        with self._computing():
            size = self.feed.judged_at_once
            parts = [
                self.task.embed_texts(texts[start : start + size]).float().cpu()
                for start in range(0, len(texts), size)
            ]
        return torch.cat(parts).numpy()

    def logit_scale(self) -> float:
        return float(self.task.logit_scale)

    def losses(self, split: str, after: StreamPosition = START) -> Iterator[BatchLoss]:
        with self.feed.split(split, after=after) as batches:
            for batch in batches:
                with self._computing():
                    loss = self.task(self._moved(batch))
                keys, reached = batch["key"], StreamPosition(*batches.reached)
                yield BatchLoss(float(loss.sum), float(loss.weight), len(keys), keys[0], reached)

    def answers(self, split: str, samples: int, most_tokens: int, skip: int = 0) -> Iterator[Answered]:
        for asked in self._passes(split, samples):
            if skip < len(asked):  # a pass is repeated whole, because its questions are answered together
                yield from islice(self._answered(asked, most_tokens), skip, None)
            skip = max(skip - len(asked), 0)

    def _passes(self, split: str, samples: int) -> Iterator[list[tuple[str, Question]]]:
        """Yield the questions of each pass, with the keys of their samples."""
        asked: list[tuple[str, Question]] = []
        for sample in self._first(split, samples):
            asked += [(sample.key, question) for question in self.task.questions(sample.members)]
            if len(asked) >= self.feed.judged_at_once:
                yield asked
                asked = []
        if asked:
            yield asked

    @contextmanager
    def _computing(self) -> Iterator[None]:
        with torch.inference_mode(), autocast(self.device.type, self.precision):
            yield

    def _answered(self, asked: Sequence[tuple[str, Question]], most_tokens: int) -> Iterator[Answered]:
        with self._computing():
            answers = self.task.answer([question for _, question in asked], most_tokens)
        for (key, question), answer in zip(asked, answers, strict=True):
            yield Answered(key, question.text, question.expected, answer)

    def _first(self, split: str, samples: int) -> Iterator[Sample]:
        """Read the first samples, without the unreadable ones where the config allows that."""
        data = self.feed.data
        reader = open_split(data.version, split, data.quarantined)
        for number in range(min(samples, len(reader))):
            try:
                yield reader.read(number)
            except BadSampleError:
                if self.feed.loader.on_bad == "raise":
                    raise

    def replies(self, requests: Sequence[ChatRequest], most_tokens: int) -> Sequence[str]:
        questions = [self.task.ask(*request) for request in requests]
        with self._computing():
            answers: list[str] = self.task.answer(questions, most_tokens)
        return answers

    def tokens(self, texts: Sequence[str]) -> Sequence[bytes]:
        return [row.tobytes() for row in self.task.tokenize(texts).numpy()]

    def _moved(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: value.to(self.device) if isinstance(value, torch.Tensor) else value
            for name, value in batch.items()
        }


@dataclass(frozen=True)
class Extracting:
    """A transform that also extracts a text from each sample for an evaluator."""

    transform: Transform
    extract: Callable[[Members], str]

    def __call__(self, sample: dict[str, bytes], generator_seed: int | None) -> dict[str, Any]:
        return {**self.transform(sample, generator_seed), "extracted": self.extract(sample)}
