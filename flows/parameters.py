"""The parameters of the flows: a config file and changes to it. Prefect's UI makes a form of their types."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, StringConstraints
from pydantic_core import CoreSchema

from tasks.core.config import FAST_LOADER, PAIR, load_config
from tasks.core.errors import UsageError, list_mistakes, mistakes_of
from tasks.core.schema import Config
from tasks.evaluation import evaluators
from tasks.models import recipes
from tasks.training.external_command import require_ranks


def _as_number(schema: dict[str, Any]) -> None:
    schema.update(schema.pop("anyOf")[0])
    schema.pop("default")


def _is_none(value: object) -> bool:
    return value is None


BOX: Any = Field(json_schema_extra=_as_number, exclude_if=_is_none)
"""A number that may be left empty: one box in Prefect's form, which sends nothing when it is empty.

With the usual schema of an optional number the form would offer a choice between a number and None.
"""


def choices() -> list[str]:
    """Return the config files of the project in the working directory."""
    return sorted(map(str, Path("configs").glob("*.yaml")))


def trained_choices() -> list[str]:
    """Return the config files of the project that train."""
    return [path for path in choices() if _trains(Path(path))]


def _trains(path: Path) -> bool:
    """Whether the file has a train block, by its YAML alone: a full load would slow the import of flows."""
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), FAST_LOADER)
    except (OSError, ValueError, yaml.YAMLError):
        return False
    return isinstance(values, dict) and values.get("train") is not None


class _OneOf:
    """A path for which Prefect's form offers choices; elsewhere any path is accepted."""

    def __init__(self, choices: Callable[[], list[str]]) -> None:
        self._choices = choices

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        found = self._choices()
        return {"type": "string", **({"enum": found} if found else {})}


ConfigFile = Annotated[Path, _OneOf(choices)]
"""One of the project's configs."""
TrainedConfigFile = Annotated[Path, _OneOf(trained_choices)]
"""One of the project's configs that train."""
Change = Annotated[str, StringConstraints(pattern=f"^{PAIR.pattern}")]
"""A key of the config and its value."""
Named = Annotated[str, StringConstraints(min_length=1)]
"""A field that must be filled in."""


class Overrides(BaseModel):
    """Changes to the config for this run only; a field that is left empty keeps the file's value."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    steps: Annotated[int | None, Field(ge=1, title="Steps"), BOX] = None
    """Optimizer steps of the training (train.steps)."""
    batch_size: Annotated[int | None, Field(ge=2, title="Batch size"), BOX] = None
    """Samples per optimizer step, over all ranks (train.batch_size)."""
    lr: Annotated[float | None, Field(gt=0, title="Learning rate"), BOX] = None
    """Peak learning rate (train.lr)."""
    seed: Annotated[int | None, Field(ge=0, title="Seed"), BOX] = None
    """Seed of initialisation, order and augmentation (train.seed)."""
    set: Annotated[list[Change], Field(title="Further keys")] = []
    """Any key, as KEY=VALUE, such as `loader.workers=4`."""

    def as_pairs(self) -> list[str]:
        """Return the changes as KEY=VALUE."""
        named = {key: getattr(self, key) for key in ("steps", "batch_size", "lr", "seed")}
        given = [f"train.{key}={value}" for key, value in named.items() if value is not None]
        cleared = ["train.epochs=null"] if self.steps is not None else []
        return [*cleared, *given, *self.set]


def configured(path: Path, overrides: Overrides | None) -> Config:
    """Return the config in `path` with the changes applied, checked as far as that needs no data.

    UsageError for mistakes that would otherwise show only after hours: an unknown model or evaluation, a
    tracker that is not installed.
    """
    settings = load_config(path, overrides.as_pairs() if overrides is not None else ())
    mistakes = list(_mistakes(settings))
    if len(mistakes) > 1:
        raise UsageError(list_mistakes(mistakes, str(path)))
    if settings.train is not None:
        recipes.check_recipe(settings.train)
        require_ranks(settings)
    evaluators.check_tasks(settings)
    if settings.train is not None and settings.track.has_wandb and find_spec("wandb") is None:
        raise UsageError(
            "track.tracker: wandb is not installed: pip install 'tarmac[wandb]', or choose tensorboard"
        )
    return settings


def _mistakes(config: Config) -> Iterator[str]:
    """Yield what recipe and evaluators do not take of their own keys, a line per mistake."""
    if config.train is not None:
        try:
            recipes.check_recipe(config.train)
        except UsageError as error:
            yield from mistakes_of(error)
    for task in evaluators.tasks_of(config):
        try:
            evaluators.load_evaluator(task)
        except UsageError as error:
            yield from mistakes_of(error)
