"""Retrieval as CLIP is judged by it: does an image's caption lie nearest to it, among all captions, and back?

Images that are the same file, and captions that are the same to the model, are one candidate each; whatever
stands together in a sample belongs together, as the five captions of an image of COCO do. So nothing right
counts as wrong. Source of the figures: A. Karpathy, L. Fei-Fei, "Deep visual-semantic alignments for
generating image descriptions" (2015), section 4.2, and open_clip_train's get_clip_metrics.
"""

from __future__ import annotations

import hashlib
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
    Embeddings,
    EvaluationOutcome,
    Evaluator,
    Members,
    Subject,
    require_finite,
)
from tasks.evaluation.results import KEPT_PREDICTIONS, Prediction
from tasks.evaluation.statistics import wilson_interval
from tasks.loader.decoders import decode_text, picture_name

Places = NDArray[np.intp]
DIRECTIONS = ("image_to_text", "text_to_image")
WITHIN = (1, 5, 10)
SAME = 1e-6
"""Similarities that differ by less are equal: rounding alone makes up a tenth of that."""
MOST_SCORES = 1 << 23
"""Similarities that are held in memory at once, 32 MB."""


class Retrieval(Evaluator):
    """The arguments of a task of kind `retrieval`."""

    samples: Annotated[int, Field(ge=2)] = 5000
    """The first so many of the split, which with `shard.order: source` are the first of the source. Figures
    compare over equal numbers only: more candidates are harder."""

    least_samples = 2
    better_low = ("median_rank",)

    def metrics(self, samples: Iterator[Members] | None = None) -> Sequence[str]:
        figures = (*(f"R@{within}" for within in WITHIN), "median_rank")
        return [f"{direction}_{figure}" for direction in DIRECTIONS for figure in figures]

    def evaluate(self, subject: Subject) -> EvaluationOutcome:
        """R@K, the share of queries with something that belongs to them among the K nearest, and the median
        place of the first that does, from images to texts and from texts to images.

        DataError where all captions or all images are the same, and for embeddings that are not finite.
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
            pairs.prediction(sample, int(to_texts.nearest[pairs.image[sample]]), to_texts.ranks)
            for sample in range(min(KEPT_PREDICTIONS, len(pairs.image)))
        ]
        return EvaluationOutcome(metrics, split, len(pairs.image), intervals, chance, shown)

    def problem(self, split: str, samples: Iterator[Members]) -> str:
        """As a rule two samples are enough to tell."""
        images, captions = set[str](), set[str]()
        for members in islice(samples, self.samples):
            digest, caption = pair_of(members).split(" ", 1)
            images.add(digest)
            captions.add(caption)
            if min(len(images), len(captions)) > 1:
                return ""
        return all_alike("captions" if len(captions) == 1 else "images", split)

    def _pairs(self, subject: Subject, split: str) -> Pairs:
        keys: list[str] = []
        names: list[str] = []
        rows: list[Embeddings] = []
        for batch in subject.embed_images(split, pair_of):
            room = self.samples - len(keys)
            keys += batch.keys[:room]
            names += batch.extracted[:room]
            rows.append(batch.embeddings[:room])
            if len(keys) == self.samples:
                break
        digests, captions = zip(*(name.split(" ", 1) for name in names), strict=True)
        images, image = _distinct(digests)
        texts, caption = _distinct(subject.tokens(captions))
        for what, number in (("captions", len(texts)), ("images", len(images))):
            if number == 1:
                raise DataError(all_alike(what, split))
        return Pairs(
            image_keys=[keys[first] for first in images],
            images=np.concatenate(rows)[images],
            caption_keys=[keys[first] for first in texts],
            captions=[captions[first] for first in texts],
            image=image,
            caption=caption,
            samples=keys,
        )


@dataclass(frozen=True)
class Pairs:
    """The distinct images and captions of a split, and for each sample the places of its own among them."""

    image_keys: Sequence[str]
    """Of the first sample with each image."""
    images: Embeddings
    caption_keys: Sequence[str]
    captions: Sequence[str]
    image: Places
    caption: Places
    samples: Sequence[str]
    """All keys."""

    def prediction(self, sample: int, nearest: int, ranks: Places) -> Prediction:
        """The caption nearest to a sample's image; its own where the nearest is another one of that image."""
        own = self.captions[self.caption[sample]]
        is_right = ranks[self.image[sample]] == 0
        return Prediction(
            key=self.samples[sample], label=own, predicted=own if is_right else self.captions[nearest]
        )


@dataclass(frozen=True)
class RetrievalRanks:
    """By query: how many candidates lie no farther than the first that belongs to it, the nearest that does
    not, and how many belong to it."""

    ranks: Places
    nearest: Places
    belonging: Places
    candidates: int


def all_alike(what: str, split: str) -> str:
    return (
        f"all {what} of split {split} are the same, so there is nothing to tell apart; take retrieval out of "
        "evaluate.tasks, or name another split"
    )


def pair_of(members: Members) -> str:
    """What tells whether two samples have the same image, or volume, and the caption."""
    name = stored.member_of(members) or picture_name(members)
    digest = hashlib.blake2b(members[name], digest_size=16).hexdigest()
    return f"{digest} {decode_text(members.get('txt', b'')).strip()}"


def search(queries: Embeddings, candidates: Embeddings, query: Places, candidate: Places) -> RetrievalRanks:
    """Rank all candidates for each query; `query[i]` and `candidate[i]` belong together.

    Of equally near ones those that do not belong come first: a model that tells nothing apart has found
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
    """R@K of candidates in random order: one less the share of drawings of K that miss all that belong."""
    missed = np.ones(len(belonging))
    for drawn in range(within):
        missed *= np.maximum(candidates - belonging - drawn, 0) / (candidates - drawn)
    return float(1 - missed.mean())


def _distinct(values: Sequence[object]) -> tuple[list[int], Places]:
    """Where each value stands first, in order, and for each place the number of its value."""
    known: dict[object, int] = {}
    numbers = [known.setdefault(value, len(known)) for value in values]
    firsts = np.unique(np.array(numbers), return_index=True)[1]
    return firsts.tolist(), np.array(numbers, np.intp)
