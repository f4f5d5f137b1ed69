"""Retrieval as in CLIP's evaluation: is an image's caption the nearest to it among all captions, and vice
versa?

Images that are the same file, and captions that are the same to the model, are one candidate each; an image
matches each caption of its samples, whether the five captions of an image of COCO are those of five samples
or stand in the `json` of one. So no right match counts as wrong. Source of the figures: A. Karpathy, L.
Fei-Fei, "Deep visual-semantic alignments for generating image descriptions" (2015), section 4.2, and
open_clip_train's get_clip_metrics.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tasks.core.errors import DataError
from tasks.dataset.formats.volumes import stored
from tasks.evaluation.contract import (
    Embedded,
    Embeddings,
    EvaluationOutcome,
    Evaluator,
    Members,
    Subject,
    require_finite,
)
from tasks.evaluation.kinds.statistics import wilson_interval
from tasks.evaluation.results import KEPT_PREDICTIONS, Prediction
from tasks.evaluation.samples import Formula, JudgedSamples
from tasks.loader.decoders import captions_of, picture_name

Places = NDArray[np.intp]
DIRECTIONS = ("image_to_text", "text_to_image")
WITHIN = (1, 5, 10)
SAME = 1e-6
"""Similarities that differ by less count as equal: rounding alone causes a tenth of that."""
MOST_SCORES = 1 << 23
"""How many similarities are held in memory at once: 32 MB."""


class Retrieval(Evaluator):
    """The arguments of a task of kind `retrieval`."""

    samples: Annotated[int, Field(ge=2)] = 5000
    """How many samples of the split are used, from its start, which with `shard.order: source` is that of the
    source. Only figures over equal numbers compare: more candidates are harder."""

    least_samples = 2
    better_low = ("median_rank",)

    def metrics(self, samples: Iterator[Members] | None = None) -> Sequence[str]:
        figures = (*(f"R@{within}" for within in WITHIN), "median_rank")
        return [f"{direction}_{figure}" for direction in DIRECTIONS for figure in figures]

    def evaluate(self, subject: Subject) -> EvaluationOutcome:
        """Return R@K, the share of queries with a match among the K nearest, and the median rank of the first
        match, from images to texts and from texts to images.

        Raises DataError where all captions or all images are the same, and for embeddings that are not
        finite.
        """
        split = self.split or subject.held_out()
        pairs = self._pairs(subject, split)
        texts = subject.embed_texts(pairs.captions)
        for keys, embeddings in ((pairs.image_keys, pairs.images), (pairs.caption_keys, texts)):
            require_finite(keys, embeddings)
        to_texts = search(pairs.images, texts, pairs.image, pairs.caption)
        to_images = search(texts, pairs.images, pairs.caption, pairs.image)
        metrics: dict[str, float] = {}
        intervals: dict[str, tuple[float, float]] = {}
        chance: dict[str, float] = {}
        for name, found in zip(DIRECTIONS, (to_texts, to_images), strict=True):
            for within in WITHIN:
                if within < found.candidates:
                    hits = int((found.ranks < within).sum())
                    metrics[f"{name}_R@{within}"] = hits / len(found.ranks)
                    intervals[f"{name}_R@{within}"] = wilson_interval(hits, len(found.ranks))
                    chance[f"{name}_R@{within}"] = by_chance(found.belonging, found.candidates, within)
            metrics[f"{name}_median_rank"] = float(np.floor(np.median(found.ranks))) + 1
        shown = [
            pairs.prediction(sample, to_texts) for sample in range(min(KEPT_PREDICTIONS, len(pairs.samples)))
        ]
        by_sample = pairs.judged(to_texts, to_images)
        return EvaluationOutcome(
            metrics, split, len(pairs.samples), intervals, chance, shown, by_sample=by_sample
        )

    def problem(self, split: str, samples: Iterator[Members]) -> str:
        """Check whether samples differ; usually the first two do."""
        images, captions = set[str](), set[str]()
        for members in islice(samples, self.samples):
            digest, *of_image = json.loads(image_and_captions(members))
            images.add(digest)
            captions.update(of_image)
            if min(len(images), len(captions)) > 1:
                return ""
        return all_alike("captions" if len(captions) == 1 else "images", split)

    def _pairs(self, subject: Subject, split: str) -> Pairs:
        found = Embedded.join(subject.embed_images(split, image_and_captions), self.samples)
        described = [json.loads(text) for text in found.extracted]
        owners = [(sample, n) for sample, (_, *its) in enumerate(described) for n in range(len(its))]
        captions = [described[sample][1 + n] for sample, n in owners]
        images, image = _distinct([digest for digest, *_ in described])
        texts, caption = _distinct(subject.tokens(captions))
        for what, number in (("captions", len(texts)), ("images", len(images))):
            if number == 1:
                raise DataError(all_alike(what, split))
        return Pairs(
            image_keys=[found.keys[first] for first in images],
            images=found.embeddings[images],
            caption_keys=[found.keys[owners[first][0]] for first in texts],
            caption_items=[f"caption {owners[first][1] + 1}".removesuffix(" 1") for first in texts],
            captions=[captions[first] for first in texts],
            image=image[[sample for sample, _ in owners]],
            caption=caption,
            samples=found.keys,
            firsts=[place for place, (_, n) in enumerate(owners) if n == 0],
        )


@dataclass(frozen=True)
class Pairs:
    """The distinct images and captions of a split, and for each pair of an image and a caption of one sample
    their indices among them."""

    image_keys: Sequence[str]
    """The key of the first sample with each image."""
    images: Embeddings
    caption_keys: Sequence[str]
    caption_items: Sequence[str]
    """Which of its sample's captions each is: `caption`, `caption 2` and so on."""
    captions: Sequence[str]
    image: Places
    caption: Places
    samples: Sequence[str]
    """The keys of all samples."""
    firsts: Sequence[int]
    """The pair of each sample with its first caption."""

    def judged(self, to_texts: RetrievalRanks, to_images: RetrievalRanks) -> JudgedSamples:
        """Return one row per query: the images first, then the captions."""
        columns: dict[str, NDArray[np.float64]] = {}
        formulas: dict[str, Formula] = {}
        for name, found, is_of_image in zip(DIRECTIONS, (to_texts, to_images), (True, False), strict=True):
            others = np.full(len(self.caption_keys if is_of_image else self.image_keys), np.nan)
            ranks = np.concatenate(
                [found.ranks + 1.0, others] if is_of_image else [others, found.ranks + 1.0]
            )
            for within in WITHIN:
                if within < found.candidates:
                    hits = np.where(np.isnan(ranks), np.nan, ranks <= within)
                    columns[f"{name}_R@{within}"] = hits
                    formulas[f"{name}_R@{within}"] = Formula("mean", [f"{name}_R@{within}"])
            columns[f"{name}_rank"] = ranks
            formulas[f"{name}_median_rank"] = Formula("median_rank", [f"{name}_rank"])
        return JudgedSamples(
            keys=[*self.image_keys, *self.caption_keys],
            items=["image"] * len(self.image_keys) + list(self.caption_items),
            columns=columns,
            formulas=formulas,
        )

    def prediction(self, sample: int, found: RetrievalRanks) -> Prediction:
        """Return the caption nearest to a sample's image; its own where the nearest is another one of that
        image."""
        image, own = self.image[self.firsts[sample]], self.captions[self.caption[self.firsts[sample]]]
        is_right = found.ranks[image] == 0
        nearest = self.captions[int(found.nearest[image])]
        return Prediction(key=self.samples[sample], label=own, predicted=own if is_right else nearest)


@dataclass(frozen=True)
class RetrievalRanks:
    """For each query: how many candidates are as near as its first match or nearer, the nearest that is no
    match, and the number of its matches."""

    ranks: Places
    nearest: Places
    belonging: Places
    candidates: int


def all_alike(what: str, split: str) -> str:
    return (
        f"all {what} of split {split} are the same, so there is nothing to distinguish; take "
        "retrieval out of evaluate.tasks, or name another split"
    )


def image_and_captions(members: Members) -> str:
    """Return JSON of a digest of a sample's image, or volume, and its captions; equal digests mean the same
    image."""
    name = stored.member_of(members) or picture_name(members)
    digest = hashlib.blake2b(members[name], digest_size=16).hexdigest()
    captions = captions_of({"txt": b"", **members})
    return json.dumps([digest, *(caption.strip() for caption in captions)])


def search(queries: Embeddings, candidates: Embeddings, query: Places, candidate: Places) -> RetrievalRanks:
    """Rank all candidates for each query; `query[i]` and `candidate[i]` match.

    Among equally near ones those that do not match come first: a model that cannot distinguish them has found
    nothing.
    """
    pairs = np.unique(np.stack([query, candidate], axis=1), axis=0)
    ranks, nearest = np.empty(len(queries), np.intp), np.empty(len(queries), np.intp)
    block = max(1, MOST_SCORES // len(candidates))
    for start in range(0, len(queries), block):
        scores = queries[start : start + block] @ candidates.T
        first, last = np.searchsorted(pairs[:, 0], (start, start + block))
        rows, columns = pairs[first:last, 0] - start, pairs[first:last, 1]
        best = np.full(len(scores), -np.inf, scores.dtype)
        np.maximum.at(best, rows, scores[rows, columns])
        scores[rows, columns] = -np.inf
        stop = start + len(scores)
        ranks[start:stop] = (scores > best[:, None] - SAME).sum(axis=1)
        nearest[start:stop] = scores.argmax(axis=1)
    belonging = np.bincount(pairs[:, 0], minlength=len(queries))
    return RetrievalRanks(ranks, nearest, belonging, len(candidates))


def by_chance(belonging: Places, candidates: int, within: int) -> float:
    """Return R@K of candidates in random order: one minus the share of draws of K without a match."""
    missed = np.ones(len(belonging))
    for drawn in range(within):
        missed *= np.maximum(candidates - belonging - drawn, 0) / (candidates - drawn)
    return float(1 - missed.mean())


def _distinct(values: Sequence[object]) -> tuple[list[int], Places]:
    """Return the index of each distinct value's first occurrence, and for each index the number of
    its value."""
    known: dict[object, int] = {}
    numbers = [known.setdefault(value, len(known)) for value in values]
    firsts = np.unique(np.array(numbers), return_index=True)[1]
    return firsts.tolist(), np.array(numbers, np.intp)
