"""Linear probes of a frozen image tower: a logistic regression per label, fitted on the embeddings of the
training split.

They need no prompts, so they judge the tower without the texts. CT-CLIP's own probe (CT-LiPro) trains such a
layer by AdamW for ten epochs, on embeddings whose negative values are set to 0; here each is fitted to its
optimum, with labels balanced as there. A fifth of the training groups is held back to choose the strength of
the regularisation, for which CLIP's authors took a validation split.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tasks.core.errors import DataError
from tasks.core.units import counted
from tasks.evaluation.contract import Embedded, Embeddings, Subject, require_finite
from tasks.evaluation.kinds.multilabel import FactReader, Labelled, facts_of, ordered_labels, truth_of
from tasks.evaluation.kinds.statistics import Figures, Rows, auroc

STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Values of scikit-learn's `C`; a smaller one regularises more."""
MIDDLE = STRENGTHS[len(STRENGTHS) // 2]
CHOSEN_ON = 5
"""One in so many groups is held back to choose among them."""


class LinearProbe(Labelled):
    """The arguments of a task of kind `linear_probe`."""

    fitted_on: str = "train"
    """The split on whose samples the probe is fitted; of the dataset that is evaluated."""
    samples: Annotated[int, Field(ge=20)] = 5000
    """How many of its first samples, in storage order, are used."""

    @property
    def further_split(self) -> str:
        return self.fitted_on

    def scores(
        self, subject: Subject, labels: Sequence[str], volumes: Embeddings
    ) -> tuple[Figures, list[str]]:
        """Return the probes' probabilities; 0.5 for a label that all samples to fit on have, or none. A probe
        is fitted on the samples in which its label is known."""
        batches = subject.embed_images(self.fitted_on, FactReader(self.group))
        known = Embedded.join(batches, self.samples)
        require_finite(known.keys, known.embeddings)
        facts = facts_of(known)
        ordered_labels(labels, self.fitted_on, facts)
        truth = truth_of(facts, labels)
        groups = [fact.group or fact.key for fact in facts]
        chooses = np.array([zlib.crc32(group.encode()) % CHOSEN_ON == 0 for group in groups])
        chosen = _choose(known.embeddings, truth, chooses)
        strength = MIDDLE if chosen is None else chosen
        fitted = [
            _fit(known.embeddings, column, np.isfinite(column), strength, volumes) for column in truth.T
        ]
        fixed = [label for label, scores in zip(labels, fitted, strict=True) if scores is None]
        if len(fixed) == len(labels):
            raise DataError(
                f"split {self.fitted_on} has no label that some of its first {counted(len(facts), 'sample')} "
                "have and others lack; give the task more samples"
            )
        notes = [f"{label}: every sample to fit on has it, or none has, so it is guessed" for label in fixed]
        source = f"{counted(len(facts), 'sample')} of split {self.fitted_on}"
        reason = "the best of five" if chosen is not None else "too few samples to choose it"
        how = f"classifiers were fitted on {source} with C = {strength:g} ({reason})"
        guess = np.full(len(volumes), 0.5)
        return np.stack([guess if one is None else one for one in fitted], axis=1), [how, *notes]


def _choose(embeddings: Embeddings, truth: Figures, chooses: Rows) -> float | None:
    """Return the strength whose probes rank the samples that choose best, by the mean AUROC over labels; None
    where no label has both sides among them."""
    means = []
    for strength in STRENGTHS:
        found = []
        for column in truth.T:
            known = np.isfinite(column)
            judges = chooses & known
            scores = _fit(embeddings, column, ~chooses & known, strength, embeddings[judges])
            if scores is not None and len(scores):
                found.append(auroc(column[judges], scores, np.ones((1, len(scores))))[0])
        figures = [value for value in found if np.isfinite(value)]
        if not figures:
            return None
        means.append(float(np.mean(figures)))
    return STRENGTHS[int(np.argmax(means))]


def _fit(
    embeddings: Embeddings, truth: NDArray[np.float64], rows: Rows, strength: float, asked: Embeddings
) -> NDArray[np.float64] | None:
    """Return the probability of the label for each embedding asked, by a probe of these rows; None where all
    of them have the label, or none."""
    from sklearn.linear_model import LogisticRegression  # late, because it takes a second
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if len(np.unique(truth[rows])) < 2:
        return None
    if not len(asked):
        return np.zeros(0)
    layer = LogisticRegression(C=strength, class_weight="balanced", max_iter=1000)
    probe = make_pipeline(StandardScaler(), layer).fit(embeddings[rows], truth[rows])
    found: NDArray[np.float64] = probe.predict_proba(asked)[:, 1]
    return found
