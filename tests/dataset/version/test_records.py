"""Records of JSON files: what is exactly as annotated is taken as it is, and pydantic judges the rest."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from pydantic import TypeAdapter

from tasks.dataset.version.records import InvalidRecord, parse_record


@dataclass(frozen=True)
class Leaf:
    size: int

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError("the size is below zero")


@dataclass(frozen=True, kw_only=True)
class Tree:
    format: Literal["tree/1"]
    name: str
    leaves: dict[str, Leaf]
    tags: list[str]
    facts: dict[str, Any] = field(default_factory=dict)
    best: Leaf | None = None
    built: float = 0.0


WHOLE: dict[str, Any] = {
    "format": "tree/1",
    "name": "Möhre",
    "leaves": {"a": {"size": 1}, "b": {"size": 2}},
    "tags": ["x"],
    "facts": {"any": [1, None, {"thing": 2.5}]},
    "best": {"size": 3},
    "built": 1.5,
}
CHANGES: list[dict[str, Any]] = [
    {},
    {"best": None},
    {"built": 2},
    {"leaves": {"a": {"size": "4"}}},
    {"leaves": {"a": {"size": True}}},
    {"leaves": {"a": {"size": -1}}},
    {"leaves": {"a": {"size": 1.5}}},
    {"leaves": {"a": {"length": 1}}},
    {"leaves": [1]},
    {"tags": "x"},
    {"tags": [None]},
    {"name": 7},
    {"name": "\ud800"},
    {"format": "tree/2"},
    {"further": 1},
    {"best": {"size": -3}},
]


def outcome(parse: Any, content: bytes) -> Any:
    try:
        return parse(content)
    except ValueError as error:
        return type(error)


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_a_file_is_the_record_that_pydantic_makes_of_it(change: dict[str, Any]) -> None:
    content = json.dumps(WHOLE | change).encode()
    theirs = outcome(TypeAdapter(Tree).validate_json, content)
    ours = outcome(lambda content: parse_record(Tree, content), content)
    assert ours == (theirs if isinstance(theirs, Tree) else InvalidRecord)


@pytest.mark.parametrize(
    "content", [b"", b"[1", b"[" * 100_000, b'"text"', b"\xff\xfe{", b"{}", b"[]", b"1" * 5000]
)
def test_what_is_no_record_is_an_error(content: bytes) -> None:
    with pytest.raises(InvalidRecord):
        parse_record(Tree, content)


def test_an_error_names_the_first_problem_and_its_place() -> None:
    with pytest.raises(InvalidRecord, match=r"^leaves\.b\.size: Input should be a valid integer") as caught:
        parse_record(Tree, json.dumps(WHOLE | {"leaves": {"b": {"size": "many"}}}).encode())
    assert (caught.value.field, caught.value.given) == ("leaves.b.size", "many")
    with pytest.raises(InvalidRecord, match="the size is below zero"):
        parse_record(Leaf, b'{"size": -1}')
