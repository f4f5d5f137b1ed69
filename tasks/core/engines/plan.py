"""A map written down for jobs on other machines: which function, over which items, in how many shares.

All of it is JSON, so that a job needs nothing of its starter's memory and nobody loads a pickle of values.
The types come from the function's annotations, on both sides.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import TypeAdapter

from tasks.core.files import read_json, write_json


@dataclass(frozen=True)
class Call:
    """A function by its name, with the keyword arguments that every item shares."""

    target: str
    given: dict[str, Any]

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Call:
        """TypeError for what no other process could find: lambdas, closures, functions of a script."""
        given: dict[str, Any] = {}
        while isinstance(function, functools.partial):
            if function.args:
                raise TypeError(f"{function} gives positional arguments; give keywords")
            given = {**function.keywords, **given}
            function = function.func
        target = f"{function.__module__}:{function.__qualname__}"
        if function.__module__ == "__main__" or not function.__qualname__.isidentifier():
            raise TypeError(f"{target} cannot be found by its name")
        return cls(
            target,
            {name: _type(target, name).dump_python(value, mode="json") for name, value in given.items()},
        )

    @property
    def function(self) -> Callable[[Any], Any]:
        """The function with its shared arguments, coerced to their annotations."""
        given = {name: _type(self.target, name).validate_python(value) for name, value in self.given.items()}
        return functools.partial(_find(self.target), **given)

    @property
    def module(self) -> str:
        return self.target.partition(":")[0]

    @property
    def item(self) -> TypeAdapter[Any]:
        return _type(self.target, next(iter(inspect.signature(_find(self.target)).parameters)))

    @property
    def result(self) -> TypeAdapter[Any]:
        return _type(self.target, "return")


@functools.cache
def _find(target: str) -> Callable[..., Any]:
    module, _, name = target.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found


@functools.cache
def _type(target: str, name: str) -> TypeAdapter[Any]:
    """What pydantic knows of the function's argument `name`, or of its result (`return`)."""
    return TypeAdapter(get_type_hints(_find(target)).get(name, Any))


@dataclass(frozen=True)
class Plan:
    """A map's folder: `plan.json`, `items.jsonl` unless they are a range, and what each job says.

    Share `s` of `shares` has the items s, s + shares, s + 2 * shares and so on, so that a list sorted by size
    gives each job about the same work. `silence_s` is how long a job works on without a sign of its starter.
    """

    folder: Path
    call: Call
    count: int
    bounds: tuple[int, int, int] | None
    shares: int
    workers: int
    silence_s: float

    @classmethod
    def write(
        cls, folder: Path, call: Call, items: Iterable[Any], jobs: int, workers: int, silence_s: float
    ) -> Plan:
        """Write the items, one at a time, and then the plan."""
        folder.mkdir(parents=True)
        bounds = (items.start, items.stop, items.step) if isinstance(items, range) else None
        count = len(items) if isinstance(items, range) else _write_items(folder, call, items)
        plan = cls(folder, call, count, bounds, min(jobs, count), workers, silence_s)
        fields = {name: value for name, value in vars(plan).items() if name not in ("folder", "call")}
        write_json(folder / "plan.json", {**fields, "target": call.target, "given": call.given})
        return plan

    @classmethod
    def read(cls, folder: Path) -> Plan:
        value = read_json(folder / "plan.json")
        call = Call(value.pop("target"), value.pop("given"))
        bounds = value.pop("bounds")
        return cls(folder, call, bounds=bounds and tuple(bounds), **value)

    def items_of(self, share: int) -> Iterator[tuple[int, Any]]:
        """The share's items as JSON values, each with its number."""
        numbers = range(share, self.count, self.shares)
        if self.bounds is not None:
            values = range(*self.bounds)
            yield from ((number, values[number]) for number in numbers)
            return
        with (self.folder / "items.jsonl").open("rb") as lines:
            chosen = islice(lines, share, None, self.shares)
            yield from zip(numbers, map(json.loads, chosen), strict=True)

    def size_of(self, share: int) -> int:
        return len(range(share, self.count, self.shares))

    def rows_of(self, share: int, attempt: int) -> Path:
        """The file to which one attempt at one share appends what it has begun and done."""
        return self.folder / "rows" / f"{share}.{attempt}.jsonl"

    @property
    def heartbeat(self) -> Path:
        """Rewritten by the starter every few seconds, removed by it at the end."""
        return self.folder / "heartbeat"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"


def _write_items(folder: Path, call: Call, items: Iterable[Any]) -> int:
    count = 0
    with (folder / "items.jsonl").open("wb") as file:
        for item in items:
            value = call.item.dump_python(item, mode="json")
            file.write(json.dumps(value, ensure_ascii=False).encode() + b"\n")
            count += 1
    return count
