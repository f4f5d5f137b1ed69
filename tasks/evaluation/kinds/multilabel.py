"""Predict the findings of a scan: from two prompts each, "{} is present." and "{} is not present.", or by a
linear probe of the embeddings.

A finding's score is the softmax over its two prompts, or the probe's probability. F1, accuracy and precision
need a threshold, which is CT-CLIP's: among a hundred, the one nearest to the corner of the ROC curve. It is
chosen on the evaluated samples themselves, so they flatter the model a little; the AUROC needs none.
Intervals come from resampled patients; CT-CLIP's bootstrap draws samples and then measures all of them each
time.

A label that is unknown in a sample (null, see `dataset.source.labels.missing`) leaves the sample out of that
label's figures and of no other's, as CheXpert's policy U-Ignore does. Its interval draws patients from all
samples with some label, so the number of known ones varies between draws as it would between data sets.

Source: scripts/{zero_shot,ct_lipro_train,eval,bootstrap_values}.py of CT-CLIP's code, whose files these
evaluators write too.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from tasks.core.errors import DataError
from tasks.core.units import count, counted
from tasks.evaluation.contract import (
    Embedded,
    Embeddings,
    EvaluationOutcome,
    Evaluator,
    Members,
    Subject,
    require_finite,
)
from tasks.evaluation.kinds.ct_clip_files import ct_clip_files
from tasks.evaluation.kinds.statistics import Figures, LabelScores
from tasks.evaluation.results import KEPT_PREDICTIONS, Prediction
from tasks.evaluation.samples import Formula, JudgedSamples, Kind
from tasks.loader.decoders import decode_json

CT_RATE = (
    "Medical material",
    "Arterial wall calcification",
    "Cardiomegaly",
    "Pericardial effusion",
    "Coronary artery wall calcification",
    "Hiatal hernia",
    "Lymphadenopathy",
    "Emphysema",
    "Atelectasis",
    "Lung nodule",
    "Lung opacity",
    "Pulmonary fibrotic sequela",
    "Pleural effusion",
    "Mosaic attenuation pattern",
    "Peribronchial thickening",
    "Consolidation",
    "Bronchiectasis",
    "Interlobular septal thickening",
)
"""CT-CLIP's labels in the order of its files; other labels follow by name."""
METRICS: Mapping[str, Kind] = {"auroc": "auroc", "f1": "f1", "accuracy": "mean", "precision": "precision"}
"""How the metrics of a label follow from its samples, those at a threshold last."""
PRESENT, ABSENT = "present", "not present"
Prompt = Annotated[str, Field(pattern=r"\{\}")]


class Labelled(Evaluator):
    """An evaluator that scores each label of each sample, in whichever way."""

    least_samples = 2

    labels: Annotated[list[str], Field(min_length=1)] | None = None
    """Names among the `labels` in a sample's `json` member; all of them by default."""
    group: str = "patient"
    """The field of the `json` member by whose value samples are resampled together; without it
    each is alone."""
    resamples: Annotated[int, Field(ge=100)] = 1000
    """The number of bootstrap rounds."""

    def metrics(self, samples: Iterator[Members] | None = None) -> Sequence[str]:
        """Return the metrics of each label, by default those of the first sample."""
        first = None if samples is None else next(samples, None)
        known = () if first is None else read_facts(first, self.group).get("labels", {})
        labels = self.labels or [*known] or ["*"]
        return [f"{metric}_{label}" for metric in METRICS for label in ("mean", *labels)]

    def evaluate(self, subject: Subject) -> EvaluationOutcome:
        """Return AUROC, F1 (the mean over both classes by their samples), accuracy and precision of each
        label over the samples in which it is known, and their means over the labels.

        A label that all these samples have, or none, has no figures and is named in the notes. Raises
        DataError where no label has figures, for a sample that does not name a label, and for embeddings that
        are not finite.
        """
        seen = self._labelled(subject, self.split or subject.held_out())
        two_classes = seen.of_two_classes
        if not two_classes:
            raise DataError(
                f"split {seen.split} has no label that some of its {counted(seen.total, 'sample')} have and "
                "others lack; hold more out by dataset.splits"
            )
        scores, notes = self.scores(subject, seen.labels, seen.embeddings)
        judged = {
            label: JudgedLabel.of(seen.truth[:, place], scores[:, place])
            for place, label in enumerate(seen.labels)
            if label in two_classes
        }
        by_sample = judged_samples(seen.facts, judged)
        metrics, intervals = by_sample.summarise(self.resamples)
        chance = {name: 0.5 for name in metrics if name.startswith("auroc_")}
        names = [fact.name or fact.key for fact in seen.facts]
        return EvaluationOutcome(
            metrics,
            seen.split,
            len(seen.facts),
            intervals,
            chance,
            _shown(seen.facts, judged),
            notes=[*notes, *seen.notes],
            files=ct_clip_files(seen.labels, names, seen.truth, scores, metrics),
            samples_by_label=seen.samples_by_label,
            by_sample=by_sample,
        )

    def _labelled(self, subject: Subject, split: str) -> LabelledSamples:
        samples = Embedded.join(subject.embed_images(split, FactReader(self.group)))
        facts = facts_of(samples)
        labels = ordered_labels(self.labels, split, facts)
        require_finite(samples.keys, samples.embeddings)
        truth = truth_of(facts, labels)
        rows = np.flatnonzero(np.isfinite(truth).any(axis=1))
        kept = [facts[row] for row in rows.tolist()]
        return LabelledSamples(split, labels, kept, truth[rows], samples.embeddings[rows], len(facts))

    def problem(self, split: str, samples: Iterator[Members]) -> str:
        """Check the first sample: every sample names all labels, known or not, so any one shows a wrong
        name."""
        members = next(samples, None)
        if members is None:
            return ""
        known = list(read_facts(members, self.group).get("labels", {}))
        if not known:
            return (
                f"the samples of split {split} have no labels in their json member; give the source a table "
                "by dataset.source.labels, or take the task out of evaluate.tasks"
            )
        lacking = next((label for label in self.labels or () if label not in known), None)
        if lacking is None:
            return ""
        return f"labels: the samples of split {split} have no {lacking!r}; there are: {', '.join(known)}"

    @abstractmethod
    def scores(
        self, subject: Subject, labels: Sequence[str], volumes: Embeddings
    ) -> tuple[Figures, list[str]]:
        """Return [samples, labels], each between 0 and 1, and notes on how they came about."""


class MultiLabel(Labelled):
    """The arguments of a task of kind `multilabel`."""

    present: Prompt = "{} is present."
    """The sentence of a report on a scan with the finding, which replaces `{}`."""
    absent: Prompt = "{} is not present."
    """The same for one that is absent."""

    def scores(
        self, subject: Subject, labels: Sequence[str], volumes: Embeddings
    ) -> tuple[Figures, list[str]]:
        prompts = [form.replace("{}", label) for label in labels for form in (self.present, self.absent)]
        texts = subject.embed_texts(prompts)
        require_finite(prompts, texts)
        return probabilities(volumes, texts, subject.logit_scale()), []


@dataclass(frozen=True)
class Fact:
    """The content of a sample's `json` member: its labels, its group, and its name in the raw data."""

    key: str
    labels: Mapping[str, float | None]
    group: str
    name: str


@dataclass(frozen=True)
class LabelledSamples:
    """The samples of a split in which some label is known, of `total` in all; `truth` [samples, labels] is
    NaN where one is unknown."""

    split: str
    labels: Sequence[str]
    facts: Sequence[Fact]
    truth: Figures
    embeddings: Embeddings
    total: int

    @property
    def of_two_classes(self) -> list[str]:
        """The labels that some of the samples are known to have and others to lack."""
        columns = zip(self.labels, self.truth.T, strict=True)
        return [label for label, column in columns if {0.0, 1.0} <= {*column.tolist()}]

    @property
    def samples_by_label(self) -> dict[str, int]:
        counts = np.isfinite(self.truth).sum(axis=0).tolist()
        return dict(zip(self.labels, counts, strict=True))

    @property
    def notes(self) -> list[str]:
        """What a reader has to know of samples and labels that are unknown or have no figures."""
        notes = []
        if unlabelled := self.total - len(self.facts):
            have = "has" if unlabelled == 1 else "have"
            of = f"{counted(self.total, 'sample')} of split {self.split}"
            notes.append(f"{count(unlabelled)} of {of} {have} no known label and counted in nothing")
        if partial := int(np.isnan(self.truth).any(axis=1).sum()):
            lack = "lacks" if partial == 1 else "lack"
            of = f"{counted(len(self.facts), 'sample')} of split {self.split}"
            own = "a label's figures are those of the samples in which it is known"
            notes.append(f"{count(partial)} of {of} {lack} some of the labels: {own}")
        for label, column in zip(self.labels, self.truth.T, strict=True):
            if label not in self.of_two_classes:
                notes.append(
                    f"{label}: {self._one_class(column)}, so it has no figures and counts in no mean"
                )
        return notes

    def _one_class(self, truth: Figures) -> str:
        known = truth[np.isfinite(truth)]
        if not len(known):
            return f"it is known in no sample of split {self.split}"
        among = " in which it is known" if len(known) < len(truth) else ""
        return f"{'every' if known[0] else 'no'} sample of split {self.split}{among} has it"


@dataclass(frozen=True)
class JudgedLabel:
    """One label over all samples, [samples] each and NaN where it is unknown: whether a sample has it, its
    score, and whether that is above the threshold, which is chosen on the known ones."""

    truth: Figures
    scores: Figures
    predicted: Figures

    @classmethod
    def of(cls, truth: Figures, scores: Figures) -> JudgedLabel:
        known = np.isfinite(truth)
        predicted = np.full(len(truth), np.nan)
        predicted[known] = LabelScores(truth[known], scores[known]).predicted
        return cls(truth, np.where(known, scores, np.nan), predicted)

    @property
    def right(self) -> Figures:
        """1 where the prediction is the truth, else 0."""
        return np.where(np.isfinite(self.truth), self.predicted == self.truth, np.nan)


def facts_of(samples: Embedded) -> list[Fact]:
    """Return what a `FactReader` has extracted."""
    return [Fact(key, **json.loads(text)) for key, text in zip(samples.keys, samples.extracted, strict=True)]


def truth_of(facts: Sequence[Fact], labels: Sequence[str]) -> Figures:
    """Return [samples, labels]: 1 where the sample has the label, else 0, and NaN where that is unknown."""
    rows = [[fact.labels[label] for label in labels] for fact in facts]
    return np.array(rows, np.float64)  # in which None becomes NaN


def ordered_labels(asked: Sequence[str] | None, split: str, facts: Sequence[Fact]) -> list[str]:
    """Return the labels that are asked for, or all, in CT-CLIP's order; DataError for a sample in which one
    is neither 0 nor 1 nor null, or is not named."""
    ranks = {label: place for place, label in enumerate(CT_RATE)}
    ordered = sorted(asked or sorted(facts[0].labels), key=lambda label: ranks.get(label, len(ranks)))
    for fact in facts:
        broken = next((label for label in ordered if fact.labels.get(label, "") not in (0, 1, None)), None)
        if broken is not None or not ordered:
            found = "no labels" if broken is None else f"{broken!r}: {fact.labels.get(broken, 'nothing')}"
            raise DataError(
                f"{split}: sample {fact.key!r} has {found} in its json member; each label is 0 or 1 in "
                "the table of dataset.source.labels, or unknown (an empty cell or -1) with its missing: skip"
            )
    return ordered


@dataclass(frozen=True)
class FactReader:
    """Reads the fields of a `Fact` from a sample, as JSON."""

    group: str

    def __call__(self, members: Members) -> str:
        return json.dumps(read_facts(members, self.group))


def read_facts(members: Members, group: str) -> dict[str, Any]:
    facts = decode_json(members.get("json", b"{}"))
    facts = facts if isinstance(facts, dict) else {}
    labels = facts.get("labels")
    texts = {name: facts.get(field) for name, field in (("group", group), ("name", "volume_name"))}
    return {
        "labels": labels if isinstance(labels, dict) else {},
        **{name: "" if value is None else str(value) for name, value in texts.items()},
    }


def probabilities(volumes: Embeddings, texts: Embeddings, logit_scale: float) -> Figures:
    """Return [samples, labels]: the softmax over a label's two prompts, which are adjacent in `texts`."""
    similar = volumes.astype(np.float64) @ texts.astype(np.float64).T
    apart = logit_scale * (similar[:, 1::2] - similar[:, 0::2])
    return 1 / (1 + np.exp(np.minimum(apart, 700)))


def judged_samples(facts: Sequence[Fact], judged: Mapping[str, JudgedLabel]) -> JudgedSamples:
    """Return score, truth and rightness of each label by sample, and the metrics that follow: the mean over
    labels comes first, metrics at a threshold after all AUROCs."""
    columns: dict[str, Figures] = {}
    for label, one in judged.items():
        columns |= {f"score_{label}": one.scores, f"truth_{label}": one.truth, f"accuracy_{label}": one.right}
    formulas: dict[str, Formula] = {}
    for metric, kind in METRICS.items():
        names = [f"{metric}_{label}" for label in judged]
        formulas[f"{metric}_mean"] = Formula("average", names)
        for label, name in zip(judged, names, strict=True):
            of_label = [f"score_{label}", f"truth_{label}"]
            formulas[name] = Formula(kind, [name] if kind == "mean" else of_label)
    return JudgedSamples(
        [fact.key for fact in facts], columns, formulas, groups=[fact.group for fact in facts]
    )


def _shown(facts: Sequence[Fact], judged: Mapping[str, JudgedLabel]) -> list[Prediction]:
    """Return the predictions for the first samples, one per label that is known."""
    return [
        Prediction(
            key=fact.key,
            question=label,
            label=PRESENT if one.truth[place] else ABSENT,
            predicted=PRESENT if one.predicted[place] else ABSENT,
            score=round(float(one.scores[place]), 4),
        )
        for place, fact in enumerate(facts[:KEPT_PREDICTIONS])
        for label, one in judged.items()
        if np.isfinite(one.truth[place])
    ]
