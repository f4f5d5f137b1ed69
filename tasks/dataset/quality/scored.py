"""What a model has said of the samples of a version, as a record that is kept beside its assessment, and what
follows from it.

A caption that belongs to another picture fits its own no better than the other captions do. So each sample's
`clip_score` is compared with the mean score of its picture with the other captions of its shard, which needs
no threshold and holds for any model: of wrong captions about half lie below, of right ones hardly any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from tasks.core.charts import BarLayout, Bars, layout_bars
from tasks.core.files import read_json, write_json
from tasks.core.findings import Finding
from tasks.core.units import count, counted, number, percent
from tasks.dataset.quality.assessment import Found, ShownSample, path_of

NOTABLE = 0.01
"""The share of misaligned captions that is named."""
CHANCE = 0.25
"""With more than this share, the model knows too little of the data to judge them."""
NAMED = 3


@dataclass(frozen=True)
class ScoreSummary:
    """The scores of a version's samples by one model.

    `figures` are quantiles of `clip_score` by name, `others` those of the scores with other captions. The
    histogram has `heights` between `edges`. `misaligned` are the samples whose caption fits no better than
    others do, `duplicates` the shares of samples at and above a similarity, such as `{"0.95": 0.12}`, and
    `repeated` the most similar ones with what they repeat.
    """

    version: str
    model: str
    samples: int
    scored: int
    figures: Mapping[str, float] = field(default_factory=dict)
    others: Mapping[str, float] = field(default_factory=dict)
    edges: Sequence[float] = ()
    heights: Sequence[int] = ()
    misaligned: Found = field(default_factory=Found)
    lowest: Sequence[ShownSample] = ()
    highest: Sequence[ShownSample] = ()
    duplicates: Mapping[str, float] = field(default_factory=dict)
    repeated: Sequence[ShownSample] = ()
    format: Literal[1] = 1

    @property
    def limit(self) -> float | None:
        """A minimum that could be asked for: halfway between what captions usually get and what other
        captions get; None where the model does not tell them apart."""
        right, wrong = self.figures.get("median"), self.others.get("median")
        return None if right is None or wrong is None or right <= wrong else round((right + wrong) / 2, 3)


SUMMARY = TypeAdapter(ScoreSummary)


def scores_path(version: Path) -> Path:
    return path_of(version).with_suffix(".scores.json")


def kept_scores(version: Path) -> ScoreSummary | None:
    """Return what is kept of a version's scores; None if there is nothing of this format."""
    try:
        return SUMMARY.validate_python(read_json(scores_path(version)))
    except (OSError, ValueError):
        return None


def keep_scores(version: Path, summary: Any) -> None:
    path = scores_path(version)
    path.parent.mkdir(exist_ok=True)
    write_json(path, summary)


def judge_scores(found: ScoreSummary, *, is_private: bool = False) -> list[Finding]:
    """Return the findings; of private data no examples are named."""
    wrong, limit = found.misaligned, found.limit
    if not wrong.count or wrong.share < NOTABLE:
        return []
    what = (
        f"{count(wrong.count)} of {count(wrong.of)} ({percent(wrong.share)}): captions that fit their "
        f"picture no better than others do, by {found.model}"
    )
    evidence = {"what": what}
    if not is_private and wrong.examples:
        evidence["for example"] = ", ".join(f"{one.key} ({one.note})" for one in wrong.examples[:NAMED])
    if wrong.share > CHANCE or limit is None:
        remedy = "look at some: either the model knows nothing of such data, or most captions are of others"
        return [Finding("captions.misaligned", "warning", remedy, evidence=evidence)]
    remedy = (
        "look at them, and mend the captions where they come from; about as many wrong ones fit slightly "
        f"better by chance, so dataset.filter.clip_score: {limit} leaves most of both out"
    )
    config = {"dataset.filter.clip_score": limit}
    return [Finding("captions.misaligned", "warning", remedy, evidence=evidence, config=config)]


def score_chart(found: ScoreSummary) -> BarLayout | None:
    """Return the histogram of the scores with a line where other captions usually lie; None without
    scores."""
    if not found.heights:
        return None
    middle, others = found.figures["median"], found.others.get("median")
    lines = [("median", middle), *([] if others is None else [("other captions", others)])]
    names = [f"{number(low, 3)} to {number(high, 3)}" for low, high in pairwise(found.edges)]
    described = (
        f"Similarity of pictures and captions by {found.model}: {counted(found.scored, 'sample')} from "
        f"{number(found.figures['lowest'])} to {number(found.figures['highest'])}, half of them at or below "
        f"{number(middle)}."
    )
    return layout_bars(
        Bars("clip_score", described, "cosine", "samples", found.edges, found.heights, names, lines)
    )
