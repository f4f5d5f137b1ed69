"""The JSON Schema of a config with the keys that recipes and evaluators have of their own.

`train.model` is checked by the recipe and a task by its evaluator, so their keys depend on `train.recipe` and
on the task's `kind`, in the schema too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from tasks.core.config import json_schema
from tasks.core.schema.recipes import RECIPES
from tasks.evaluation.evaluators import EVALUATORS
from tasks.models.recipes import options_type

NOTHING: Mapping[str, Any] = {}


def config_schema() -> dict[str, Any]:
    """Return the schema of a config file with every key, for editors."""
    schema = json_schema()
    definitions = schema["$defs"]
    train, task = definitions["Train"], definitions["TaskSpec"]
    train["allOf"] = [
        _where("recipe", name, {"properties": {"model": _add(options_type(name), definitions)}})
        for name in RECIPES
    ]
    of_all = task["properties"]
    of_all["kind"]["enum"] = list(EVALUATORS)
    task["allOf"] = [
        _where("kind", name, _add(evaluator, definitions, of_all)) for name, evaluator in EVALUATORS.items()
    ]
    return schema


def _add(
    block: type[BaseModel], definitions: dict[str, Any], of_all: Mapping[str, Any] = NOTHING
) -> dict[str, Any]:
    """Add the schema of a block to the definitions, with the keys that all of its kind have; return a
    reference to it."""
    own = json_schema(block)
    definitions |= own.pop("$defs", {})
    own["properties"] = {**of_all, **own["properties"]}
    definitions[block.__name__] = own
    return {"$ref": f"#/$defs/{block.__name__}"}


def _where(key: str, value: str, then: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rule that `then` holds where the key has the value."""
    return {"if": {"properties": {key: {"const": value}}, "required": [key]}, "then": then}
