"""What a flow takes: a config file and changes to it. The model is the form that Prefect's UI shows."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from tasks.core.config import load
from tasks.core.errors import UsageError
from tasks.core.schema import Config
from tasks.evaluation import evaluators
from tasks.models import recipes


def _as_number(schema: dict[str, Any]) -> None:
    schema.update(schema.pop("anyOf")[0])
    schema.pop("default")


def _is_none(value: object) -> bool:
    return value is None


BOX: Any = Field(json_schema_extra=_as_number, exclude_if=_is_none)
"""A number that may be left empty: one box in Prefect's form, which sends nothing when it is empty.

The usual schema of an optional number makes the form a choice between a number and None.
"""


class Overrides(BaseModel):
    """Changes to the config for this run only; what is left empty stays as the file says."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    steps: Annotated[int | None, Field(ge=1, title="Steps"), BOX] = None
    """Optimizer steps of the training (train.steps)."""
    batch_size: Annotated[int | None, Field(ge=2, title="Batch size"), BOX] = None
    """Samples an optimizer step (train.batch_size)."""
    lr: Annotated[float | None, Field(gt=0, title="Learning rate"), BOX] = None
    """Peak learning rate (train.lr)."""
    seed: Annotated[int | None, Field(ge=0, title="Seed"), BOX] = None
    """Seed of initialisation, order and augmentation (train.seed)."""
    set: Annotated[list[str], Field(title="Further keys")] = []
    """Any key, as KEY=VALUE, such as `loader.workers=4`."""

    def as_pairs(self) -> list[str]:
        """The changes as KEY=VALUE."""
        named = {
            "train.steps": self.steps,
            "train.batch_size": self.batch_size,
            "train.lr": self.lr,
            "train.seed": self.seed,
        }
        given = [f"{key}={value}" for key, value in named.items() if value is not None]
        cleared = ["train.epochs=null"] if self.steps is not None else []
        return [*cleared, *given, *self.set]


def configured(path: Path, overrides: Overrides | None) -> Config:
    """The config in `path` with the changes applied, checked as far as that needs no data.

    UsageError for what would otherwise show only after hours: a model or an evaluation that nobody knows, a
    tracker that is not installed.
    """
    settings = load(path, overrides.as_pairs() if overrides is not None else ())
    for task in settings.evaluate.tasks if settings.evaluate is not None else ():
        evaluators.load(task)
    if settings.train is not None:
        recipes.check(settings.train)
    if settings.train is not None and settings.track.mode != "disabled" and find_spec("wandb") is None:
        raise UsageError(
            f"track.mode: {settings.track.mode} needs wandb: pip install 'tarmac[wandb]', or choose disabled"
        )
    return settings
