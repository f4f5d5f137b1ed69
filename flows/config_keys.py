"""Every key of a config with its meaning, type, default and example: for `tarmac explain` and docs/config.md.

All of it comes from the JSON Schema, so from the pydantic models and their docstrings: nothing is written
twice. Where a block has kinds (a source, a task, the model of a recipe), the name of the kind may stand in a
key: `dataset.source.table.image`. `python -m flows.config_keys` writes docs/config.md again.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from flows.config_schema import config_schema
from tasks.core.errors import UsageError, instead
from tasks.core.schema.recipes import RECIPES, defaults_of

PAGE = Path(__file__).parents[1] / "docs/config.md"
PAGES = {
    "": "docs/config.md",
    "dataset": "docs/data/index.md",
    "reinforce": "docs/models/reinforced.md",
    "loader": "docs/loader.md",
    "train": "docs/training.md",
    "train.model": "docs/models/index.md",
    "train.model.pretrained": "docs/fine-tuning.md",
    "train.lora": "docs/fine-tuning.md",
    "train.freeze": "docs/fine-tuning.md",
    "train.unlocked": "docs/fine-tuning.md",
    "evaluate": "docs/evaluation.md",
    "track": "docs/tracking.md",
    "engine": "docs/cluster.md",
    "schedule": "docs/prefect.md",
}
"""The page on which a key matters, by the longest beginning of its name."""
SELECTED_BY = {"dataset.source": "kind", "train.model": "recipe", "evaluate.tasks": "kind"}
"""The blocks whose keys depend on a kind, and the key that selects it."""
SAME_AS = {"dataset.sources": "dataset.source"}
"""A list of blocks that another key explains."""
REQUIRED = "none: the key is required"
INTRODUCTION = (
    "`tarmac explain KEY` shows the same in a terminal, and `tarmac schema` gives it to an editor. This page "
    "is written by `python -m flows.config_keys` from the docstrings of the config's models, so mend those. "
    "Where a block has kinds, such as `dataset.source`, the keys of each kind stand below the others."
)
LONGEST_DEFAULT = 90
WIDTH = 118
INTERPOLATION = r"\$\{"
PHRASES = {"string": "a text", "boolean": "true or false", "integer": "an integer", "number": "a number"}


@dataclass(frozen=True)
class ExplainedKey:
    """One key. `name` is as it stands in a config, dotted; `address` has the kind in it that it belongs to,
    if any; `where` says so in words. `keys` are the names of the keys in it."""

    name: str
    address: str
    where: str
    meaning: str
    type: str
    default: str
    example: str
    keys: Sequence[str]
    takes_others: bool
    """Whether it holds names that the user chooses."""
    kinds: Sequence[str] = ()
    """The kinds that the block comes in."""
    is_kind: bool = False
    """Whether it is a block of one kind."""

    @property
    def page(self) -> str:
        parts = self.name.split(".")
        beginnings = (".".join(parts[:length]) for length in range(len(parts), -1, -1))
        return next(PAGES[one] for one in beginnings if one in PAGES)

    def lines(self) -> Iterator[str]:
        """Yield what a terminal shows."""
        yield self.name + (f"   ({self.where})" if self.where else "")
        yield from textwrap.wrap(self.meaning, 96, initial_indent="  ", subsequent_indent="  ")
        facts = {"type": self.type, "default": self.default, "example": self.example}
        facts |= {"keys": ", ".join(self.keys), "kinds": ", ".join(self.kinds), "more": self.page}
        for what, fact in facts.items():
            if fact:
                yield from textwrap.wrap(
                    fact,
                    100,
                    initial_indent=f"  {what:<9}",
                    subsequent_indent=" " * 11,
                    break_on_hyphens=False,
                )


@cache
def every_key() -> list[ExplainedKey]:
    """Return all keys in the order of the schema, each before those that are in it."""
    return list(_Walk().block(config_schema(), "", "", ""))


def find_keys(asked: str) -> list[ExplainedKey]:
    """Return the keys that this name or address stands for: one, or one per kind where they differ.

    UsageError that names the nearest where there is none.
    """
    plain = ".".join(part for part in re.sub(r"\[\d+\]", "", asked).split(".") if not part.isdecimal())
    for others, one in SAME_AS.items():
        if plain.startswith(f"{others}."):
            plain = one + plain.removeprefix(others)
    every = every_key()
    found = [key for key in every if plain in (key.address, key.name)]
    if any(key.address == plain for key in found):
        found = [key for key in found if key.address == plain]
    if not found:
        above = plain.rpartition(".")[0]
        found = [key for key in every if above in (key.address, key.name) and key.takes_others]
    if not found:
        raise UsageError(f"KEY: no key is named {asked!r}; {_nearest(plain, every)}")
    unlike: dict[tuple[str, ...], ExplainedKey] = {}
    for key in found:
        unlike.setdefault((key.meaning, key.type, key.default), key)
    return list(unlike.values())


def _nearest(asked: str, every: Sequence[ExplainedKey]) -> str:
    """Return the end of a message about an unknown key: the nearest one, or those of the block it is in."""
    last = asked.rpartition(".")[2]
    ends = [key.name for key in every if key.name.rpartition(".")[2] == last]
    if ends:
        return f"did you mean {' or '.join(dict.fromkeys(ends[:3]))}?"
    above = next((key for key in every if key.name == asked.rpartition(".")[0] and key.keys), None)
    if above is not None:
        return instead(asked, [f"{above.name}.{key}" for key in above.keys])
    return instead(asked, list(dict.fromkeys(key.name for key in every)))


class _Walk:
    """Walks the schema; `$ref` leads to its definitions."""

    def __init__(self) -> None:
        self._definitions: Mapping[str, Any] = config_schema()["$defs"]

    def block(self, schema: Mapping[str, Any], name: str, address: str, where: str) -> Iterator[ExplainedKey]:
        """Yield the keys of a block."""
        required = schema.get("required", ())
        for key, found in schema.get("properties", {}).items():
            if where and key == SELECTED_BY.get(name) and address != name:
                continue  # the kind itself, which stands above its keys
            path = [".".join(filter(None, (above, key))) for above in (name, address)]
            yield from self._key(found, path[0], path[1], where, key in required)

    def _key(
        self, schema: Mapping[str, Any], name: str, address: str, where: str, is_required: bool
    ) -> Iterator[ExplainedKey]:
        blocks = [] if name in SAME_AS else list(self._blocks(schema))
        kinds = self._kinds(name, schema)
        inside = [key for block in blocks for key in block.get("properties", {})]
        of_block = " ".join(block.get("description", "") for block in blocks[:1])
        meaning = " ".join((schema.get("description") or of_block).split())
        if name in SAME_AS:
            meaning = f"A list of blocks, each as {SAME_AS[name]}, in its place."
        yield ExplainedKey(
            name,
            address,
            where,
            meaning,
            type=self._type(schema, name),
            default=self._default(schema, name, is_required),
            example=self._example(schema, name, meaning),
            keys=list(dict.fromkeys(inside)),
            kinds=list(kinds),
            takes_others=any(bool(one.get("additionalProperties")) for one in (schema, *blocks))
            or any("additionalProperties" in one for one in schema.get("anyOf", ())),
        )
        if not kinds:
            for block in blocks:
                yield from self.block(block, name, address, where)
            return
        if (by := SELECTED_BY[name]) == "kind":
            at, of = f"{name}.{by}", " or ".join(kinds)
            meaning = f"Decides which further keys {name} has."
            yield ExplainedKey(at, at, "", meaning, of, REQUIRED, f"kind: {next(iter(kinds))}", (), False)
        for kind, block in kinds.items():
            condition = f"{SELECTED_BY[name]}: {kind}"
            described = " ".join(block.get("description", "").split())
            keys = [one for one in block.get("properties", {}) if one != SELECTED_BY[name]]
            at = f"{address}.{kind}"
            facts = (name, at, condition, described, "a block of keys", "", "", keys, False)
            yield ExplainedKey(*facts, is_kind=True)
            yield from self.block(block, name, at, condition)

    def _kinds(self, name: str, schema: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
        """Return the block of each kind, where the key has kinds."""
        if name == "dataset.source":
            mapping = next(one for one in schema["anyOf"] if "discriminator" in one)["discriminator"]
            return {kind: self._definition(ref) for kind, ref in mapping["mapping"].items()}
        owner = {"train.model": "Train", "evaluate.tasks": "TaskSpec"}.get(name)
        if owner is None:
            return {}
        found = {}
        for rule in self._definitions[owner]["allOf"]:
            ((_, condition),) = rule["if"]["properties"].items()
            then = rule["then"]
            block = then if "$ref" in then else then["properties"]["model"]
            found[condition["const"]] = self._definition(block["$ref"])
        return found

    def _blocks(self, schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """Yield the definitions that a value may be, or the entries of a list."""
        if "$ref" in schema:
            yield self._definition(schema["$ref"])
        for one in schema.get("anyOf", ()):
            yield from self._blocks(one)
        if isinstance(schema.get("items"), dict):
            yield from self._blocks(schema["items"])

    def _definition(self, reference: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._definitions[reference.rpartition("/")[2]]
        return found

    def _type(self, schema: Mapping[str, Any], name: str = "") -> str:
        if name in SELECTED_BY and name != "evaluate.tasks":
            return f"a block of keys, by {SELECTED_BY[name]}"
        if "anyOf" in schema or "oneOf" in schema:
            kinds = [self._type(one) for one in schema.get("anyOf") or schema["oneOf"]]
            return " or ".join(dict.fromkeys(kinds))
        if "$ref" in schema or "properties" in schema:
            return "a block of keys"
        if "enum" in schema:
            return " or ".join(map(str, schema["enum"]))
        if "const" in schema:
            return str(schema["const"])
        types = schema.get("type", "any value")
        if isinstance(types, list):  # a text there is an interpolation
            types = types[0]
        if types == "array":
            return self._list(schema)
        if types == "object":
            others = schema.get("additionalProperties")
            of = f", each {self._type(others)}" if isinstance(others, dict) and others else ""
            return f"a block of keys of your own{of}"
        text = PHRASES.get(str(types), str(types))
        if schema.get("examples"):
            text += f" such as {' or '.join(map(str, schema['examples']))}"
        return text + _bounds(schema)

    def _list(self, schema: Mapping[str, Any]) -> str:
        if "prefixItems" in schema:
            entries = schema["prefixItems"]
            return f"a list of {len(entries)}, each {self._type(entries[0])}"
        return f"a list of entries, each {self._type(schema.get('items', {}))}"

    def _default(self, schema: Mapping[str, Any], name: str, is_required: bool) -> str:
        if is_required:
            return REQUIRED
        default, key = schema.get("default"), name.removeprefix("train.")
        by_recipe = {recipe: defaults_of(recipe, None, None) for recipe in RECIPES}
        if (
            default is None
            and name.startswith("train.")
            and all(key in found for found in by_recipe.values())
        ):
            given = {recipe: found[key] for recipe, found in by_recipe.items() if found[key] is not None}
            if given:
                return "by the recipe: " + ", ".join(f"{one} {_flow(value)}" for one, value in given.items())
        if default == sys.executable:
            return "the Python that runs Tarmac"
        shown = _flow(default)
        return shown if len(shown) <= LONGEST_DEFAULT else "those of its keys"

    def _example(self, schema: Mapping[str, Any], name: str, meaning: str) -> str:
        """Return the line of a config: the docstring's example, else one of the values that it takes."""
        last = name.rpartition(".")[2]
        found = re.search(r"(?:such as|as in)\s+`([^`]+)`", meaning)
        if found and _fits(found[1], last):
            given = found[1]
            return given if given.startswith(f"{last}:") else f"{last}: {given}"
        values = [value for one in (schema, *schema.get("anyOf", ())) for value in _values(one)]
        default = schema.get("default")
        chosen = next((value for value in values if value != default), default)
        if chosen == sys.executable:
            return ""
        is_shown = chosen is not None and chosen not in ({}, [], "") and not isinstance(default, dict)
        return f"{last}: {_flow(chosen)}" if is_shown else ""


def _fits(example: str, key: str) -> bool:
    """Whether the example of a docstring is a value of the key, and no name of a file or another key."""
    try:
        read = yaml.safe_load(example)
    except yaml.YAMLError:
        return False
    return not isinstance(read, dict) or example.startswith(("{", f"{key}:"))


def _values(schema: Mapping[str, Any]) -> list[Any]:
    """Return values that the schema names, or the bounds of a number."""
    named = [
        *schema.get("examples", ()),
        *schema.get("enum", ()),
        *([schema["const"]] if "const" in schema else []),
    ]
    kinds = schema.get("type", ())
    if "boolean" in kinds:
        return [*named, not schema.get("default", False)]
    return named


def _bounds(schema: Mapping[str, Any]) -> str:
    words = {
        "minimum": "at least",
        "exclusiveMinimum": "above",
        "maximum": "at most",
        "exclusiveMaximum": "below",
    }
    bounds = [f"{word} {schema[key]}" for key, word in words.items() if key in schema]
    return f" {' and '.join(bounds)}" if bounds else ""


def _flow(value: Any) -> str:
    """Return a value as it stands in a config."""
    return (
        yaml.safe_dump(value, default_flow_style=True, width=10_000, sort_keys=False)
        .removesuffix("\n...\n")
        .strip()
    )


def config_page() -> str:
    """Return docs/config.md."""
    lines = ["# Every key of a config", "", *_wrapped(INTRODUCTION, "")]
    for block in [key for key in every_key() if "." not in key.name]:
        page = block.page.removeprefix("docs/")
        more = f" See [{page}]({page})." if page != PAGE.name else ""
        lines += ["", f"## {block.name}", "", *_wrapped(f"{_entry(block)}{more}", "")]
        inside = [key for key in every_key() if key.name.startswith(f"{block.name}.")]
        lines += _list([key for key in inside if not key.where])
        for kind in [key for key in inside if key.is_kind]:
            lines += ["", f"### {kind.name}, {kind.where}", "", *_wrapped(kind.meaning, "")]
            lines += _list([key for key in inside if key.where == kind.where and not key.is_kind])
    return "\n".join(lines) + "\n"


def _list(keys: Sequence[ExplainedKey]) -> list[str]:
    lines = [line for key in keys for line in _wrapped(f"`{key.name}`: {_entry(key)}", "- ")]
    return ["", *lines] if lines else []


def _entry(key: ExplainedKey) -> str:
    default = f"; default {key.default}" if key.default else ""
    default = "; required" if key.default == REQUIRED else default
    is_default = key.example == f"{key.name.rpartition('.')[2]}: {key.default}"
    example = f"; `{key.example}`" if key.example and not is_default else ""
    return f"{key.type}{default}{example}. {key.meaning}".strip()


def _wrapped(text: str, bullet: str) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=bullet,
        subsequent_indent=" " * len(bullet),
        break_on_hyphens=False,
        break_long_words=False,
    )


def main() -> None:
    """Write docs/config.md again."""
    PAGE.write_text(config_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
