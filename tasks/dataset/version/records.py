"""Parses JSON files into frozen dataclasses.

Importing pydantic takes longer than verifying a small dataset, and files are nearly always as they were
written. So an object that has only fields of the dataclass, each of exactly its type, is taken as it is;
pydantic converts any other, or finds what is wrong with it.
"""

from __future__ import annotations

import json
from dataclasses import is_dataclass
from functools import cache
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from pydantic import ValidationError

Record = TypeVar("Record")


class InvalidRecord(ValueError):
    """A file does not hold the record: the text is the first problem, `field` names the place, and `given` is
    what stands there."""

    def __init__(self, error: ValidationError) -> None:
        super().__init__(first_problem(error))
        first = error.errors()[0]
        self.field, self.given = ".".join(map(str, first["loc"])), first["input"]


def parse_record(kind: type[Record], content: bytes) -> Record:
    """Return the dataclass in a JSON file; InvalidRecord where it holds none."""
    try:
        return _taken(kind, json.loads(content.decode()))  # type: ignore[no-any-return]
    except (ValueError, TypeError, RecursionError):
        from pydantic import TypeAdapter, ValidationError

        try:
            return TypeAdapter(kind).validate_json(content)
        except ValidationError as error:
            raise InvalidRecord(error) from None


def first_problem(error: ValidationError) -> str:
    """The first problem that pydantic found, with the name of the field."""
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {first['msg']}" if where else first["msg"]


def _taken(kind: Any, value: Any) -> Any:
    """Return a JSON value as what an annotation says; TypeError unless it is exactly that, ValueError where a
    record's own check fails."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is UnionType:  # of a type and None
        return value if value is None else _taken(arguments[0], value)
    if isinstance(kind, type) and is_dataclass(kind) and type(value) is dict:
        types = _types(kind)
        return kind(**{name: _taken(types.get(name), one) for name, one in value.items()})
    if origin is Literal and value in arguments:
        return value
    if type(value) is not (origin or kind) and kind is not Any:
        raise TypeError(f"{value!r} is no {kind}")
    if origin is dict:
        return {_taken(str, key): _taken(arguments[1], one) for key, one in value.items()}
    if origin is list:
        return [_taken(arguments[0], one) for one in value]
    if kind is str:
        value.encode()  # ValueError for half a surrogate pair, which cannot be printed
    return value


@cache
def _types(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)
