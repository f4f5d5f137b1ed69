"""The identity of a run: the part of its config that shapes the weights, and the data's versions.

Two configs that would train the same weights have the same id, so starting one again resumes or finds the
other. Where the work runs, how it is tracked and judged, and how many workers read do not count; paths do
not either, because a version and a file of weights are named by their content. The reader and the shuffle
count, because they change the order of the samples.

Every key of the train block counts unless it is named here, so none is forgotten; a key leaves no trace at
the value that it had when there was no such key, so a new key leaves the id of every run as it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from tasks.core.errors import UsageError
from tasks.core.files import blake3_file, digest, unreadable_as_error
from tasks.core.schema import Config
from tasks.core.schema.recipes import earlier_adam

NOT_SHAPING = frozenset({"checkpoint_every", "checkpointing", "keep", "log_every", "on_stall", "on_crash"})
"""The keys of `train` that do not affect the weights."""
ALWAYS_WRITTEN = (
    "recipe",
    "model",
    "batch_size",
    "steps",
    "lr",
    "warmup",
    "weight_decay",
    "precision",
    "seed",
    "threads",
)
"""The keys of `train` that leave a trace at their default too, or the ids of existing runs would change.
`epochs` stands in `steps` by the time a run is planned."""
UNTRACED: Mapping[str, Any] = {
    "schedule": "cosine",
    "lr_floor": 0,
    "decay": "matrices",
    "grad_clip": 0,
    "deterministic": True,
}
"""Values that leave no trace, of keys whose default depends on the recipe or the device."""

ID_DIGITS = 12


class DataRef(BaseModel):
    """One dataset of a run: its folder, the version (12 hexadecimal digits) and its share of the batches."""

    model_config = ConfigDict(frozen=True)

    dataset: str
    version: str
    weight: float = 1.0


def identity(config: Config, data: Sequence[DataRef], quarantine: str | None = None) -> dict[str, Any]:
    """Return the fields that shape the weights, and `digest`, the BLAKE3 of their canonical JSON.

    `quarantine` is the digest of the samples that the run leaves out; None leaves no trace.
    UsageError when the config has no `train` block, its steps are not known yet, or a file of weights cannot
    be read.
    """
    if config.train is None:
        raise UsageError("train: is required and missing; a run needs a train block")
    if config.train.steps is None:
        raise UsageError("train.steps: is not known before the data is built; build first")
    train = config.train.model_dump(mode="json")
    given = config.train.model_dump(mode="json", exclude_defaults=True, exclude=set(NOT_SHAPING))
    before = {**UNTRACED, **earlier_adam(config.train.recipe, train["model"])}
    fields = {
        **{key: value for key, value in given.items() if key not in before or value != before[key]},
        **{key: train[key] for key in ALWAYS_WRITTEN},
        "model": _by_content(train["model"]),
        "reader": config.loader.reader,
        "shuffle": config.loader.shuffle,
        "data": [{"version": ref.version, "weight": ref.weight} for ref in data],
    }
    if quarantine is not None:
        fields["quarantine"] = quarantine
    return {**fields, "digest": digest(fields)}


def _by_content(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the model with the BLAKE3 of its pretrained weights in place of their path."""
    files = weight_files(model)
    if not files:
        return dict(model)
    with unreadable_as_error():
        found = {path.name: blake3_file(path) for path in files}
    content = next(iter(found.values())) if Path(model["pretrained"]).is_file() else digest(found)
    return {**model, "pretrained": f"blake3:{content[:ID_DIGITS]}"}


def weight_files(model: Mapping[str, Any]) -> list[Path]:
    """Return the file of pretrained weights, or the files of a checkpoint's folder that shape the model;
    nothing where the weights are named otherwise."""
    given = model.get("pretrained")
    if not isinstance(given, str) or not given:
        return []
    path = Path(given)
    if path.is_file():
        return [path]
    if not (path / "config.json").is_file():
        return []
    found = (path / "config.json", *path.glob("*.safetensors"), *path.glob("**/tokenizer.json"))
    return sorted(found)


def run_id(fields: dict[str, Any]) -> str:
    """Return the run's id: the first 12 digits of its identity's digest."""
    return str(fields["digest"])[:ID_DIGITS]
