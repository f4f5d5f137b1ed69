"""The rules of `filter` on what a model says of a sample, such as `clip_score: 0.28`.

Scores are known by a sample's content, so the rules are decided once per build: the contents that do not meet
them are a sorted array in the staging folder, which the workers map. A sample without a score stays, because
nobody has said anything against it. The digest that names a converted shard knows nothing of scores; instead
each one that exists already is asked whether today's decisions are those that it was made by. So a new score,
or another limit, converts again only the shards that it changes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
from blake3 import blake3
from numpy.typing import NDArray

from tasks.core.errors import UsageError
from tasks.core.files import fsync_path
from tasks.core.schema import Config
from tasks.core.schema.dataset import Limits
from tasks.core.schema.score import Scoring
from tasks.dataset.scores import (
    AESTHETIC,
    SIMILARITY,
    ContentIndex,
    Contents,
    ScoreTable,
    contents_of,
    scores_folder,
    state_digest,
)
from tasks.dataset.version.layout import current
from tasks.dataset.version.rejects import BY_SCORE, FILTERED
from tasks.dataset.version.tables import ArrowBatches, read_shards

NEEDED = {AESTHETIC: "aesthetic", SIMILARITY: "semdedup"}
"""The key of the score block without which there are no such scores."""
EXAMPLE = "score: {model: {name: ViT-B-32, pretrained: laion2b_s34b_b79k}}"


def score_settings(config: Config) -> Scoring:
    """Return the block that names the model; UsageError without one."""
    if config.score is None:
        raise UsageError("score: is required: it names the model, such as {model: {name: …, pretrained: …}}")
    return config.score


def require_score_block(config: Config, rules: Collection[str]) -> None:
    """UsageError where no model is named for the rules on scores."""
    for name in rules:
        key = NEEDED.get(name)
        if config.score is None:
            lacks = f"a model gives it, and no score block names one; add {EXAMPLE}"
        elif key is not None and getattr(config.score, key) is None:
            lacks = f"is only given where score.{key} is set"
        elif type(config.dataset.filter[name]) not in (Limits, int, float):
            lacks = "is a number; give a minimum, or {min: …, max: …}"
        else:
            continue
        raise UsageError(f"dataset.filter.{name}: {lacks}")


def digest_of_scores(config: Config) -> str:
    """Digest all that the rules on scores depend on besides the config."""
    assert config.score is not None
    return state_digest(scores_folder(config.dataset.output, config.score.model))


@dataclass(frozen=True)
class ScoreDecisions:
    """The contents that the rules leave out."""

    failing: ContentIndex

    @classmethod
    def load(cls, path: Path | None) -> ScoreDecisions:
        """Map what `write` has written; None stands for no decisions."""
        if path is None:
            return cls(ContentIndex.of(np.empty((0, 2), np.uint64)))
        first, second = np.load(path, mmap_mode="r")
        return cls(ContentIndex(first, second, np.arange(len(first))))

    def fails(self, contents: Contents) -> NDArray[np.bool_]:
        return self.failing.find(contents) >= 0

    def fails_one(self, content: bytes) -> bool:
        return bool(len(self.failing)) and bool(self.fails(np.frombuffer(content, np.uint64)[None])[0])

    def agree_with(self, table: Any) -> bool:
        """Whether a shard with this sidecar (columns reason, detail and content) was made by the same
        decisions."""
        reason, by_score = table.column("reason"), pc.equal(table.column("detail"), BY_SCORE)
        is_out = pc.and_(pc.equal(reason, FILTERED), by_score).fill_null(False)
        if not len(self.failing):
            return not pc.any(is_out).as_py()
        left_out = is_out.to_numpy()
        is_judged = left_out | pc.is_null(reason).to_numpy()
        fails = self.fails(contents_of(table.column("content")))
        return not bool((is_judged & (fails != left_out)).any())

    def write(self, staging: Path) -> Path | None:
        """Write them for the workers, and return the file, which is named by its content; None for no
        decisions."""
        if not len(self.failing):
            return None
        halves = np.stack((self.failing.first, self.failing.second))
        path = staging / f"scores-{blake3(halves.tobytes()).hexdigest(8)}.npy"
        with path.open("wb") as file:
            np.save(file, halves)
        fsync_path(path)
        return path


class ScoreRules:
    """The rules on scores of a config with the scores that there are; `rules` may be empty."""

    def __init__(self, config: Config, rules: Mapping[str, Any]) -> None:
        """DataError where scores cannot be read."""
        self.rules = rules
        self._table: ScoreTable | None = None
        if rules:
            assert config.score is not None
            version = current(config.dataset.output)
            shards = [] if version is None else read_shards(version)
            self._table = ScoreTable.read(scores_folder(config.dataset.output, config.score.model), shards)

    def decide(self) -> ScoreDecisions:
        if self._table is None:
            return ScoreDecisions.load(None)
        index = self._table.index
        failing = self._table.failing(self.rules)[index.rows]
        return ScoreDecisions(ContentIndex(index.first[failing], index.second[failing], index.rows[failing]))

    def count_unscored(self, inputs: Path) -> int:
        """Count the accepted samples in `inputs.arrow` that lack a score which a rule is about."""
        if self._table is None:
            return 0
        unscored = 0
        for table in ArrowBatches(inputs, ("reason", "content")):
            contents = contents_of(table.filter(pc.is_null(table.column("reason"))).column("content"))
            lacks = [np.isnan(self._table.of(name, contents)) for name in self.rules]
            unscored += int(np.logical_or.reduce(lacks).sum())
        return unscored
