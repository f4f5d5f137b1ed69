"""Zero-shot classification as CLIP does it: predict the class whose prompts are nearest to the image.

Each class is inserted into several prompts; the mean of their unit embeddings, scaled to length 1 again,
represents it. Source: A. Radford et al., "Learning transferable visual models from natural language
supervision" (2021), section 3.1.4, and open_clip's zero_shot_classifier.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, field_validator

from tasks.core.errors import DataError, UsageError
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
from tasks.loader.decoders import decode_json

TEMPLATES = ("a photo of a {}.", "an image of a {}.", "a picture of a {}.", "{}")
"""Prompts that fit things of any kind. The name alone is included for classes that are not
countable things."""
TOP = 5
MOST_NAMED = 10
IMAGENET = "openai_imagenet"
Template = Annotated[str, Field(pattern=r"\{\}|^openai_imagenet$")]


class ZeroShot(Evaluator):
    """The arguments of a task of kind `zero_shot`."""

    label: str = "label"
    """The field of a sample's `json` member that holds its class."""
    classes: Annotated[list[str], Field(min_length=2)] | None = None
    """The classes to choose from; by default every label of the split."""
    templates: Annotated[
        list[Template],
        Field(min_length=1),
        BeforeValidator(lambda given: [given] if isinstance(given, str) else given),
    ] = list(TEMPLATES)
    """Prompts with `{}` in place of the class. `openai_imagenet` stands for the 80 prompts of CLIP's
    evaluation on ImageNet, as open_clip has them."""

    @field_validator("classes")
    @classmethod
    def _differ(cls, classes: list[str] | None) -> list[str] | None:
        twice = [name for name in classes or () if (classes or ()).count(name) > 1]
        if twice:
            raise ValueError(f"{twice[0]!r} is listed twice; name each class once")
        return classes

    def metrics(self, samples: Iterator[Members] | None = None) -> Sequence[str]:
        return ("top1", "top5", "mean_per_class")

    def evaluate(self, subject: Subject) -> EvaluationOutcome:
        """Return the accuracy, the accuracy among the five nearest, and the mean accuracy over the classes.

        Raises DataError for a sample without a label, or with one that is none of the classes, and for
        embeddings that are not finite.
        """
        split = self.split or subject.held_out()
        samples = Embedded.join(subject.embed_images(split, ClassReader(self.label)))
        keys, labels, images = samples.keys, samples.extracted, samples.embeddings
        classes = self._classes(split, keys, labels)
        truth = np.array([classes.index(label) for label in labels])
        templates = self._templates()
        prompts = subject.embed_texts([t.replace("{}", name) for name in classes for t in templates])
        meanings = class_embeddings(prompts, len(classes))
        for names, embeddings in ((keys, images), (classes, meanings)):
            require_finite(names, embeddings)
        ranked = rank_classes(images, meanings, truth)
        return summarise(split, keys, classes, truth, ranked)

    def problem(self, split: str, samples: Iterator[Members]) -> str:
        """Check the first sample: every sample needs its label, so any one shows a wrong name."""
        members = next(samples, None)
        if members is None or ClassReader(self.label)(members):
            return ""
        fields = decode_json(members.get("json", b"{}"))
        known = [name for name in fields if ClassReader(name)(members)] if isinstance(fields, dict) else []
        return (
            f"label: the samples of split {split} have no {self.label!r} in their json member; there are: "
            f"{', '.join(known[:MOST_NAMED]) or 'none'}{', …' if len(known) > MOST_NAMED else ''}"
        )

    def _templates(self) -> list[str]:
        if IMAGENET not in self.templates:
            return self.templates
        from tasks.models.clip.openclip import open_clip  # late, because it loads torch

        theirs = [template("{}") for template in open_clip.OPENAI_IMAGENET_TEMPLATES]
        return [one for given in self.templates for one in (theirs if given == IMAGENET else [given])]

    def _classes(self, split: str, keys: Sequence[str], labels: Sequence[str]) -> list[str]:
        if "" in labels:
            raise DataError(
                f"{split}: sample {keys[labels.index('')]!r} has no label: its json member lacks the field "
                f"{self.label!r}; give the source's table such a column, or name the right one by "
                "evaluate.tasks: [{kind: zero_shot, label: COLUMN}]"
            )
        classes = self.classes or sorted(set(labels))
        if len(classes) < 2:
            raise UsageError(
                f"evaluate.tasks: zero_shot: {split} holds one class only, {classes[0]!r}; name the "
                "classes to choose from by classes: [...]"
            )
        unknown = next((place for place, label in enumerate(labels) if label not in classes), None)
        if unknown is not None:
            raise DataError(
                f"{split}: sample {keys[unknown]!r} has the label {labels[unknown]!r}, which is none of the "
                f"{len(classes)} classes; add it to evaluate.tasks: zero_shot: classes"
            )
        return classes


@dataclass(frozen=True)
class ClassReader:
    """Reads the class from a sample's `json` member; empty where there is none."""

    field: str

    def __call__(self, members: Members) -> str:
        fields = decode_json(members["json"]) if "json" in members else None
        value = fields.get(self.field) if isinstance(fields, dict) else None
        return "" if value is None else str(value)


def class_embeddings(prompts: Embeddings, classes: int) -> Embeddings:
    """Map [classes * templates, width] to [classes, width]: the mean over templates, scaled to length 1."""
    means = prompts.reshape(classes, -1, prompts.shape[-1]).mean(axis=1)
    scaled: Embeddings = means / np.linalg.norm(means, axis=1, keepdims=True)
    return scaled


def rank_classes(images: Embeddings, classes: Embeddings, truth: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return [samples, classes]: the classes of each image from nearest to farthest.

    Among equally near ones the true class, whose index is in `truth`, comes last: a model that cannot
    distinguish classes has found nothing.
    """
    is_true = np.arange(len(classes)) == truth[:, None]
    return np.lexsort((is_true, -(images @ classes.T)), axis=1)


def summarise(
    split: str,
    keys: Sequence[str],
    classes: Sequence[str],
    truth: NDArray[np.intp],
    ranked: NDArray[np.intp],
) -> EvaluationOutcome:
    """Compute the metrics of ranked classes; `truth` holds the index of each sample's class."""
    hits = ranked == truth[:, None]
    first = hits[:, 0]
    metrics, intervals, chance = {}, {}, {}
    columns = {"class": truth.astype(np.float64)}
    for name, within in (("top1", 1), ("top5", TOP)):
        if within < len(classes):
            right = int(hits[:, :within].sum())
            metrics[name] = right / len(truth)
            intervals[name] = wilson_interval(right, len(truth))
            chance[name] = within / len(classes)
            columns[name] = hits[:, :within].any(axis=1).astype(np.float64)
    formulas = {name: Formula("mean", [name]) for name in metrics}
    formulas["mean_per_class"] = Formula("mean_by_class", ["top1", "class"])
    metrics["mean_per_class"] = float(np.mean([first[truth == place].mean() for place in np.unique(truth)]))
    chance["mean_per_class"] = 1 / len(classes)
    shown = [
        Prediction(key=key, label=classes[right], predicted=classes[nearest])
        for key, right, nearest in zip(keys[:KEPT_PREDICTIONS], truth, ranked[:, 0], strict=False)
    ]
    by_sample = JudgedSamples(keys, columns, formulas)
    return EvaluationOutcome(metrics, split, len(truth), intervals, chance, shown, by_sample=by_sample)
