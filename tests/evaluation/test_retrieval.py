"""Retrieval on embeddings that are made by hand, and beside open_clip's own figures."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tasks.core.errors import DataError
from tasks.core.schema import TaskSpec
from tasks.evaluation import evaluators
from tasks.evaluation.contract import Embedded, Embeddings, Members
from tasks.evaluation.kinds import retrieval
from tasks.evaluation.kinds.retrieval import Retrieval, by_chance, search
from tasks.evaluation.kinds.statistics import wilson_interval


@dataclass(frozen=True)
class ByHand:
    """Samples as (image, caption) by name, and where each image and caption lies."""

    samples: Sequence[tuple[str, ...]]
    """An image and its captions each; several stand in the sample's json."""
    places: dict[str, Sequence[float]]
    batch_size: int = 3
    member: str = "png"

    def held_out(self) -> str:
        return "val"

    def embed_images(self, split: str, extract: Callable[[Members], str]) -> Iterator[Embedded]:
        for start in range(0, len(self.samples), self.batch_size):
            part = self.samples[start : start + self.batch_size]
            members = [self.members(*sample) for sample in part]
            keys = [f"sample_{start + place}" for place in range(len(part))]
            rows = np.array([self.places[image] for image, *_ in part], np.float32)
            yield Embedded(keys, rows, [extract(sample) for sample in members])

    def members(self, image: str, *captions: str) -> dict[str, bytes]:
        members = {self.member: image.encode(), "txt": captions[0].encode()}
        several = {"json": json.dumps({"captions": captions}).encode()} if len(captions) > 1 else {}
        return {**members, **several}

    def embed_texts(self, texts: Sequence[str]) -> Embeddings:
        return np.array([self.places[text] for text in texts], np.float32)

    def tokens(self, texts: Sequence[str]) -> Sequence[bytes]:
        return [text.lower().encode() for text in texts]


def apart(names: Sequence[str]) -> dict[str, Sequence[float]]:
    """Each name on an axis of its own."""
    return dict(zip(names, np.eye(len(names)).tolist(), strict=True))


@pytest.mark.parametrize("member", ["volume.b2nd", "volume.npy"])
def test_volumes_are_searched_as_images_are(member: str) -> None:
    """Two scans of one report are two volumes of one text; the same file twice is one volume."""
    samples = [("scan a", "clear"), ("scan b", "clear"), ("scan c", "a nodule"), ("scan c", "a nodule")]
    near = {"scan a": [1, 0.1], "scan b": [1, -0.1], "clear": [1, 0], "scan c": [0, 1], "a nodule": [0, 1]}
    outcome = Retrieval().evaluate(ByHand(samples, near, member=member))
    assert outcome.metrics["image_to_text_R@1"] == outcome.metrics["text_to_image_R@1"] == 1.0
    assert outcome.chance["text_to_image_R@1"] == pytest.approx((2 / 3 + 1 / 3) / 2)
    assert Retrieval().problem("val", iter([{member: b"a", "txt": b"x"}, {member: b"b", "txt": b"y"}])) == ""


def test_captions_of_one_sample_count_as_those_of_several() -> None:
    """Two images with three captions each: one caption lies nearer to the other image."""
    names = {"cat": ("a cat", "a kitten", "a tiger"), "dog": ("a dog", "a hound", "a puppy")}
    near = {name: [1.0, 0.1 * n] for n, name in enumerate(("cat", *names["cat"][:2]))}
    near |= {name: [0.1 * n, 1.0] for n, name in enumerate(("dog", *names["dog"]))}
    near["a tiger"] = [0.4, 0.9]
    apart_ = ByHand([(image, caption) for image, captions in names.items() for caption in captions], near)
    whole = ByHand([(image, *captions) for image, captions in names.items()], near)
    one, other = Retrieval().evaluate(apart_), Retrieval().evaluate(whole)
    assert one.metrics == other.metrics and one.intervals == other.intervals and one.chance == other.chance
    assert other.metrics["text_to_image_R@1"] == pytest.approx(5 / 6)
    assert other.metrics["image_to_text_R@1"] == 1.0
    assert (one.samples, other.samples) == (6, 2)
    assert [shown.label for shown in other.predictions] == ["a cat", "a dog"]
    judged = other.by_sample
    assert judged is not None
    named = list(zip(judged.keys, judged.items or (), strict=True))
    assert named[2:5] == [("sample_0", "caption"), ("sample_0", "caption 2"), ("sample_0", "caption 3")]
    assert len(set(named)) == len(named) == 8


def test_counts_what_is_found() -> None:
    """Twelve images on a line, each with its caption; two captions changed places."""
    places = {f"image {n}": row for n, row in enumerate(np.eye(12).tolist())}
    places |= {f"text {n}": row for n, row in enumerate(np.eye(12).tolist())}
    places["text 0"], places["text 1"] = places["text 1"], places["text 0"]
    outcome = Retrieval().evaluate(ByHand([(f"image {n}", f"text {n}") for n in range(12)], places))
    assert list(outcome.metrics)[:4] == [
        "image_to_text_R@1",
        "image_to_text_R@5",
        "image_to_text_R@10",
        "image_to_text_median_rank",
    ]
    assert outcome.metrics["image_to_text_R@1"] == outcome.metrics["text_to_image_R@1"] == 10 / 12
    assert outcome.metrics["image_to_text_R@10"] == 10 / 12, "all others are equally near and come first"
    assert outcome.metrics["image_to_text_median_rank"] == 1
    assert outcome.intervals["image_to_text_R@1"] == wilson_interval(10, 12)
    assert outcome.chance["image_to_text_R@5"] == pytest.approx(5 / 12)
    assert (outcome.split, outcome.samples) == ("val", 12)
    said = [(one.key, one.label, one.predicted) for one in outcome.predictions]
    assert said[0] == ("sample_0", "text 0", "text 1") and said[2] == ("sample_2", "text 2", "text 2")


def test_any_caption_of_an_image_is_right_and_a_caption_of_two_images_finds_either() -> None:
    """As the five captions an image of COCO has; the same file is the same image in whatever sample."""
    samples = [("a", "one"), ("a", "two"), ("b", "three"), ("c", "three"), ("d", "four")]
    places = {"a": [1, 0, 0], "b": [0, 1, 0], "c": [0, 0.9, 0.1], "d": [0, 0, 1]}
    places |= {"one": [0, 0, 1], "two": [1, 0, 0], "three": [0, 0.9, 0.1], "four": [0, 0.1, 0.9]}
    outcome = Retrieval().evaluate(ByHand(samples, places))
    assert outcome.metrics["image_to_text_R@1"] == 3 / 4, "d lies nearest to one, which is of a"
    assert outcome.metrics["text_to_image_R@1"] == 3 / 4, "one finds d"
    assert outcome.chance["image_to_text_R@1"] == pytest.approx((2 + 1 + 1 + 1) / 4 / 4)
    assert [one.predicted == one.label for one in outcome.predictions] == [True, True, True, True, False]


def test_captions_that_are_the_same_to_the_model_are_one() -> None:
    """Its tokenizer makes letters small, among other things: `A dog` is no wrong answer for `a dog`."""
    samples = [("a", "Dog"), ("b", "dog"), ("c", "Cat"), ("d", "cat")]
    places = {"a": [1, 0], "b": [1, 0], "c": [0, 1], "d": [0, 1]}
    places |= {"Dog": [1, 0], "dog": [1, 0], "Cat": [0, 1], "cat": [0, 1]}
    outcome = Retrieval().evaluate(ByHand(samples, places))
    assert outcome.metrics["image_to_text_R@1"] == outcome.metrics["text_to_image_R@1"] == 1
    assert outcome.chance["image_to_text_R@1"] == 0.5


def test_agrees_with_open_clips_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the block; its own function over the same embeddings, every caption and image being another."""
    from open_clip_train.train import get_clip_metrics

    rng = np.random.default_rng(0)
    images = rng.normal(size=(60, 8))
    texts = images + rng.normal(size=(60, 8))
    images, texts = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (images, texts))
    places = {f"image {n}": row for n, row in enumerate(images)} | {
        f"text {n}": row for n, row in enumerate(texts)
    }
    theirs = get_clip_metrics(torch.tensor(images), torch.tensor(texts), torch.tensor(1.0))
    subject = ByHand([(f"image {n}", f"text {n}") for n in range(60)], places)
    for most in (1, 7 * 60, 60 * 60):
        monkeypatch.setattr(retrieval, "MOST_SCORES", most)
        ours = Retrieval().evaluate(subject).metrics
        assert 0.1 < ours["image_to_text_R@1"] < 0.9
        for name, value in ours.items():
            assert value == pytest.approx(theirs[name]), name


def test_a_model_that_tells_nothing_apart_has_found_nothing() -> None:
    names = [f"{kind} {n}" for n in range(40) for kind in ("image", "text")]
    alike = np.full((1, 7), 1 / np.sqrt(7), np.float32) + np.random.default_rng(0).normal(size=(80, 1)) * 1e-8
    samples = [(f"image {n}", f"text {n}") for n in range(40)]
    outcome = Retrieval().evaluate(ByHand(samples, dict(zip(names, alike.tolist(), strict=True))))
    assert outcome.metrics["image_to_text_R@10"] == outcome.metrics["text_to_image_R@10"] == 0
    assert outcome.metrics["image_to_text_median_rank"] == 40


def test_chance_is_what_shuffling_gives() -> None:
    belonging, rng = np.array([1, 2, 5]), np.random.default_rng(0)
    expected: list[NDArray[np.bool_]] = []
    for _ in range(4000):
        order = rng.permuted(np.tile(np.arange(9), (3, 1)), axis=1)[:, :4]
        expected.append((order < belonging[:, None]).any(axis=1))
    assert by_chance(belonging, 9, 4) == pytest.approx(np.mean(expected), abs=0.02)
    assert by_chance(np.array([6]), 9, 4) == 1.0, "any four hold one of six"


def test_only_so_many_samples_are_looked_at() -> None:
    names = [f"{kind} {n}" for n in range(9) for kind in ("image", "text")]
    subject = ByHand([(f"image {n}", f"text {n}") for n in range(9)], apart(names))
    assert Retrieval(samples=5).evaluate(subject).samples == 5
    assert Retrieval(samples=6).evaluate(subject).samples == 6
    assert Retrieval().evaluate(subject).samples == 9


def test_ranks_of_a_query_do_not_hang_on_its_neighbours() -> None:
    queries = np.eye(4, dtype=np.float32)
    found = search(queries, queries[[1, 0, 2, 3]], np.arange(4), np.array([1, 1, 2, 0]))
    assert found.ranks.tolist() == [0, 3, 0, 3] and found.nearest.tolist()[3] == 3
    assert found.belonging.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("what", ["captions", "images"])
def test_what_is_all_the_same_cannot_be_told_apart(what: str) -> None:
    pairs = [("image", f"text {n}") if what == "images" else (f"image {n}", "text") for n in range(3)]
    subject = ByHand(pairs, apart(sorted({name for pair in pairs for name in pair})))
    with pytest.raises(DataError, match=f"all {what} of split val are the same.*evaluate.tasks"):
        Retrieval().evaluate(subject)


@pytest.mark.parametrize("broken", ["b", "y"])
def test_embeddings_that_are_not_finite_are_an_error(broken: str) -> None:
    """A caption is named by its sample: it may be private."""
    places = {"a": [1, 0], "b": [0, 1], "x": [1, 0], "y": [0, 1], broken: [0, np.nan]}
    with pytest.raises(DataError, match="1 embedding not finite, first that of 'sample_1'"):
        Retrieval().evaluate(ByHand([("a", "x"), ("b", "y")], places))


def test_it_is_asked_for_by_name() -> None:
    assert evaluators.load_evaluator(TaskSpec(kind="retrieval")) == Retrieval()
    sized = TaskSpec.model_validate({"kind": "retrieval", "samples": 1000, "split": "test"})
    assert evaluators.load_evaluator(sized) == Retrieval(samples=1000, split="test")


def test_a_sample_is_told_by_its_picture_and_caption() -> None:
    digest = hashlib.blake2b(b"pixels", digest_size=16).hexdigest()
    described = retrieval.image_and_captions({"jpg": b"pixels", "json": b"{}", "txt": b" a b\n"})
    assert json.loads(described) == [digest, "a b"]
