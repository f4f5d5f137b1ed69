"""Describe the mistakes that pydantic finds in a block of keys: the key, what is wrong, and the fix.

pydantic reports one mistake for each type that a key allows, at a location that also names branches of
unions. Here a key has one line, which names only what can be meant.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Sequence
from textwrap import shorten
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from tasks.core.errors import instead
from tasks.core.schema.dataset import MODALITIES_OF

LONGEST_KEY = 60
"""The most characters of a key that an error shows."""
UNKNOWN_KIND = ("union_tag_invalid", "union_tag_not_found")
ABOUT_A_KEY = ("extra_forbidden", "missing")
"""Errors whose location ends with a key, whatever it looks like."""
WITHOUT_VALUE = {*ABOUT_A_KEY, *UNKNOWN_KIND, "value_error"}
"""Errors that are not about the value, or whose message contains it."""
KINDS = {
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "string": "a text",
    "list": "a list",
    "tuple": "a list",
    "dict": "a block of keys",
    "model": "a block of keys",
    "none": "null",
    "path": "a path",
}
"""Kinds of values as messages name them, by the first word of pydantic's error type."""


def describe_mistakes(
    error: ValidationError, block: type[BaseModel], prefix: Sequence[str] = (), noun: str = "key"
) -> list[str]:
    """Return a line for each wrong key of a `block`, whose own key is `prefix`."""
    mistakes: dict[str, list[Any]] = {}
    for mistake in error.errors(include_url=False):
        mistakes.setdefault(_key(mistake, prefix), []).append(mistake)
    # Where a number is allowed too, a block in which a key is wrong is also no number: only the key counts.
    blocks = {key for key in mistakes if any(other.startswith(f"{key}.") for other in mistakes)}
    return [
        (f"{key}: " if key else "") + _reason(alike, block, noun)
        for key, alike in mistakes.items()
        if key not in blocks or not all(map(_kind, alike))
    ]


def _key(mistake: Any, prefix: Sequence[str]) -> str:
    """Return the dotted key as it is written in the file."""
    *above, last = mistake["loc"] or [None]
    parts = [*prefix, *(str(part) for part in above if not _is_branch(part))]
    if last is not None and (mistake["type"] in ABOUT_A_KEY or not _is_branch(last)):
        parts.append(str(last))
    if mistake["type"] in UNKNOWN_KIND:
        parts.append("kind")
    return shorten(".".join(parts), LONGEST_KEY, placeholder="…")


def _is_branch(part: Any) -> bool:
    """Whether this part of a pydantic location names a branch of a union and not a key of the file."""
    return isinstance(part, str) and (
        part in (*MODALITIES_OF, "str", "bool", "int", "float") or "[" in part or "-" in part
    )


def _reason(mistakes: Sequence[Any], block: type[BaseModel], noun: str) -> str:
    """Return what one value must be instead, from its mistakes: one for each type that its key allows. One
    about something else than the type comes from the type that fits, and is the only one to mend."""
    others = [mistake for mistake in mistakes if _kind(mistake) is None]
    if others:
        reason = " or ".join(dict.fromkeys(_other_reason(one, block, noun) for one in others))
    else:
        *kinds, last = dict.fromkeys(_kind(mistake) or "" for mistake in mistakes)
        reason = f"must be {', '.join(kinds)} or {last}" if kinds else f"must be {last}"
    value = mistakes[0]["input"]
    names_it = any(mistake["type"] in WITHOUT_VALUE for mistake in mistakes)
    return reason if names_it or not isinstance(value, str | int | float) else f"{reason}, not {value!r}"


def _kind(mistake: Any) -> str | None:
    """Return the kind of value that was expected; None for a mistake about something else."""
    if mistake["type"] == "literal_error":
        return str(mistake["ctx"]["expected"])
    of, _, problem = mistake["type"].partition("_")
    is_kind = problem in ("type", "attributes_type", "parsing", "from_float", "required")
    return KINDS.get(of) if is_kind else None


def _other_reason(mistake: Any, block: type[BaseModel], noun: str) -> str:
    if mistake["type"] == "extra_forbidden":
        return f"unknown {noun}; {instead(str(mistake['loc'][-1]), list(_fields(mistake['loc'], block)))}"
    if mistake["type"] == "missing":
        field = _fields(mistake["loc"], block).get(str(mistake["loc"][-1]))
        described = " ".join((field.description or "").split()) if field else ""
        meaning = re.split(r"\.\s", described)[0].removesuffix(".")
        return f"is required: {meaning}" if meaning else "is required and missing"
    if mistake["type"] in UNKNOWN_KIND:
        given = str(mistake["ctx"].get("tag", ""))
        shown = f"no source is of kind {given!r}" if given else "is required and missing"
        return f"{shown}; {instead(given, list(MODALITIES_OF))}"
    message = str(mistake["msg"]).removeprefix("Value error, ")
    return message.replace("Input should", "must").replace("String should", "must")


def _fields(location: Sequence[Any], block: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the keys of the block that holds the location's last part, below `block`."""
    blocks = [block]
    for part in location[:-1]:
        within = [one.model_fields[part].annotation for one in blocks if part in one.model_fields]
        if within:
            blocks = [model for annotation in within for model in _models_in(annotation)]
        elif isinstance(part, str):  # the branch of a union, where the key `kind` selects it
            fields = [(one, one.model_fields.get("kind")) for one in blocks]
            chosen = [one for one, kind in fields if kind and part in typing.get_args(kind.annotation)]
            blocks = chosen or blocks
    return {name: field for one in blocks for name, field in one.model_fields.items()}


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is not None:
        return [model for part in typing.get_args(annotation) for model in _models_in(part)]
    return []
