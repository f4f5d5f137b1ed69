"""The model card: `README.md` of a pushed export, made from the run's record, config and results.

It names the data by version and digest, and shows no path of this machine and no sample, so that the card of
a model of private data may be read by whoever may read the weights. All functions are pure.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from tasks.core.schema import Config
from tasks.core.units import interval
from tasks.evaluation.results import EvaluationResult

MARKER = "<!-- tarmac export --push writes this page anew for as long as this line stands here. -->"
LOCAL = "(a local path)"
"""What stands in place of paths."""
WITHHELD = (
    "checkpoint_every",
    "checkpointing",
    "compile",
    "data",
    "keep",
    "log_every",
    "model",
    "on_crash",
    "on_stall",
)
"""Keys of the train block that the card shows elsewhere or that say nothing of the weights."""
LIBRARIES = {"open_clip": "open_clip", "hf": "transformers", "nanovlm": "nanovlm"}
PIPELINES = {
    "clip": "zero-shot-image-classification",
    "clip_reinforced": "zero-shot-image-classification",
    "external": "zero-shot-image-classification",
    "vlm": "image-text-to-text",
    "ct_clip": "feature-extraction",
}
"""The tasks of the hub by recipe."""
LINES = {
    "open_clip": "import open_clip\n\nmodel, _, transform = {usage}",
    "hf": "from transformers import {name}\n\nmodel = {usage}",
    "nanovlm": "from models.vision_language_model import {name}  # in the folder of nanoVLM's sources\n\n"
    "model = {usage}",
}
"""The lines of Python that load a repository with the other library."""


@dataclass(frozen=True)
class BaseWeights:
    """A repository whose weights a training began with; `licence` as its page states it, or None."""

    repository: str
    licence: str | None


@dataclass(frozen=True)
class TrainingData:
    """A version of a dataset as the card names it."""

    name: str
    version: str
    digest: str
    samples: int | None
    share: float


def model_card(
    record: Mapping[str, Any],
    identity: Mapping[str, Any],
    config: Config,
    datasets: Sequence[TrainingData],
    results: Sequence[EvaluationResult],
    bases: Sequence[BaseWeights],
    endpoint: str,
) -> str:
    """Return the card of an export; `record` is the repository's `export.json`, `identity` that of the
    run, and `endpoint` the address of the hub."""
    from tasks.core.pages import render  # it imports Jinja

    train = config.train
    assert train is not None
    known = {base.repository for base in bases}
    values = {
        "model": identity.get("model", {}),
        **train.model_dump(mode="json", exclude_none=True, exclude=set(WITHHELD)),
    }
    hidden = hide_paths(values, known)
    return render(
        "export/model_card.md",
        record=record,
        name=config.name,
        recipe=train.recipe,
        library=LIBRARIES[record["format"]],
        pipeline=PIPELINES.get(train.recipe, "feature-extraction"),
        usage=LINES[record["format"]].format(usage=record["usage"], name=record["usage"].partition(".")[0]),
        datasets=datasets,
        is_private=config.dataset.private,
        hyper_parameters=yaml.safe_dump(hidden, sort_keys=False, allow_unicode=True),
        scores=_scores(results),
        notes=() if config.dataset.private else sorted({note for one in results for note in one.notes}),
        bases=bases,
        data_licence=config.dataset.license,
        endpoint=endpoint,
        marker=MARKER,
    )


def load_expression(usage: str, repository: str) -> str:
    """Return the expression that loads the repository, from the one that loads the export's folder."""
    function, _, given = usage.partition("('")
    kind = "hf-hub:" if given.startswith("local-dir:") else ""
    return f"{function}('{kind}{repository}')"


def hide_paths(value: Any, known: Collection[str] | None = None) -> Any:
    """Return a JSON value with LOCAL in place of strings that are paths.

    Where the repositories that may be named are `known`, any other name with a slash counts as a path.
    """
    if isinstance(value, Mapping):
        return {key: hide_paths(one, known) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [hide_paths(one, known) for one in value]
    if not isinstance(value, str) or os.sep not in value:
        return value
    if known is not None:
        return value if value in known or value.startswith("tarmac/") else LOCAL
    before, _, after = value.partition(f" {os.sep}")
    if after and os.path.exists(f"{os.sep}{after}"):
        return f"{before} {LOCAL}"
    is_path = value.startswith((os.sep, "~", "./", "../")) or os.path.exists(value)
    return LOCAL if is_path and len(value) > 1 and "\n" not in value else value


def _scores(results: Sequence[EvaluationResult]) -> list[dict[str, Any]]:
    """Return a row per metric, in the order of the results; of several labels the means alone."""
    rows = []
    for result in results:
        means = [name for name in result.metrics if name.endswith("_mean")]
        for metric, value in result.metrics.items():
            if "auroc_mean" in means and metric not in means:
                continue
            around = result.intervals.get(metric)
            rows.append(
                {
                    "task": result.task,
                    "metric": metric,
                    "value": value,
                    "interval": "" if around is None else interval(*around),
                    "chance": result.chance.get(metric),
                    "samples": result.samples,
                    "split": result.split or "–",
                }
            )
    return rows


def as_json(value: Any) -> bytes:
    """Return the bytes of a JSON file, as libraries write them."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
