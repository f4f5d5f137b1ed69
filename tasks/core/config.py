"""Reads a config file and reports what is wrong with it, a line per mistake; writes one that is complete.

OmegaConf reads the YAML, resolves interpolations and applies `--set` overrides; the models in
`tasks.core.schema` check the values; `tasks.core.mistakes` turns their errors into key, reason and fix.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from tasks.core.errors import UsageError, first_line, list_mistakes
from tasks.core.mistakes import describe_mistakes
from tasks.core.schema import Config
from tasks.core.schema.recipes import RECIPES, earlier_adam
from tasks.core.schema.source import TABLES

RUN_RECORD = "run.json"
"""It lies beside the config of a run."""
FAST_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
PAIR = re.compile(r"[^=\s]+=")
"""Matches the start of an override: a key of the config and the equals sign."""


def load_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Load the config in `path` and apply `overrides` such as `train.lr=1e-4`; a UsageError names key and
    fix."""
    if path.suffix.lower() in TABLES:  # it might parse as YAML, and the error would then show its rows
        raise UsageError(f"{path}: is a table, not a config; `tarmac init {path}` writes a config for it")
    text = _read(path)
    with _yaml_errors(path):
        values = _resolved(path, text, overrides)
    _keep_meaning(path, values)
    return validate(values, str(path))


def _resolved(path: Path, text: str, overrides: Sequence[str]) -> Any:
    """Parse `text`, apply `overrides`, resolve interpolations, and return plain values."""
    from omegaconf import OmegaConf  # imported here because `reload` does not need it
    from omegaconf.errors import OmegaConfBaseException

    try:
        tree: Any = OmegaConf.create(text)
        if not OmegaConf.is_dict(tree):
            raise UsageError(f"{path}: holds no keys; it starts with `name:` and `dataset:`")
        for override in overrides:
            _override(tree, override)
        return OmegaConf.to_container(tree, resolve=True)
    except OmegaConfBaseException as error:
        raise UsageError(f"{path}: {error.full_key or 'config'}: {first_line(error)}") from None


def dump(config: Config) -> str:
    """Return the config as YAML with every key; `reload` reads it back to the same config."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def reload(path: Path) -> Config:
    """Read a config that `dump` wrote, without resolving anything; raises UsageError as `load_config` does.

    This takes a twentieth of the time of `load_config`, which matters where there are hundreds of runs.
    """
    text = _read(path)
    with _yaml_errors(path):
        values = yaml.load(text, FAST_LOADER)
    _keep_meaning(path, values)
    return validate(values, str(path))


def _keep_meaning(path: Path, values: Any) -> None:
    """Give an older run's own config, which `dump` wrote whole, the keys that came later, with the values
    that it was trained with."""
    train = values.get("train") if isinstance(values, dict) else None
    if not isinstance(train, dict) or not (path.parent / RUN_RECORD).exists():
        return
    model, evaluate = train.get("model"), values.get("evaluate")
    if isinstance(evaluate, dict) and isinstance(model, dict) and model.get("pretrained") is not None:
        evaluate.setdefault("start", False)
    if "decay" not in train and train.get("recipe") in RECIPES:
        train |= {"decay": "matrices", "lr_floor": 0, **earlier_adam(train["recipe"], train.get("model"))}
        train["grad_clip"] = train.get("grad_clip") or 0


def validate(values: Any, origin: str) -> Config:
    """Build the config from plain values; an error message starts with `origin`."""
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise UsageError(list_mistakes(describe_mistakes(error, Config), origin)) from None


def differing_keys(one: Mapping[str, Any], other: Mapping[str, Any], above: str = "") -> list[str]:
    """Return the sorted dotted keys whose values differ between two trees of plain values."""
    keys = []
    for key in sorted(one.keys() | other.keys()):
        mine, its = one.get(key), other.get(key)
        if isinstance(mine, dict) and isinstance(its, dict):
            keys += differing_keys(mine, its, f"{above}{key}.")
        elif mine != its:
            keys.append(f"{above}{key}")
    return keys


def json_schema(model: type[BaseModel] = Config) -> dict[str, Any]:
    """Return the JSON Schema of a config file, or of a block in it. It accepts what `load_config` accepts,
    including short forms and interpolations, and rejects unknown keys."""
    return model.model_json_schema(schema_generator=_SchemaOfFile)


class _SchemaOfFile(GenerateJsonSchema):
    """Accepts an interpolation such as `${train.steps}` in place of a number or boolean."""

    def int_schema(self, schema: core_schema.IntSchema) -> dict[str, Any]:
        return _or_interpolation(super().int_schema(schema))

    def float_schema(self, schema: core_schema.FloatSchema) -> dict[str, Any]:
        return _or_interpolation(super().float_schema(schema))

    def bool_schema(self, schema: core_schema.BoolSchema) -> dict[str, Any]:
        return _or_interpolation(super().bool_schema(schema))


def _or_interpolation(schema: dict[str, Any]) -> dict[str, Any]:
    return {**schema, "type": [schema["type"], "string"], "pattern": r"\$\{"}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        fix = "give the path of a config file"
        raise UsageError(f"{path}: cannot be read ({error.strerror}); {fix}", field="config") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: is not UTF-8 text; give the path of a YAML config") from None


@contextlib.contextmanager
def _yaml_errors(path: Path) -> Iterator[None]:
    """Turn a YAML error into a UsageError that names the line."""
    try:
        yield
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}:" if mark is not None else ""
        problem = str(getattr(error, "problem", error)).splitlines()[0]
        if "'\\t'" in problem or ("cannot start any token" in problem and _has_tab(path, mark)):
            problem = "a tab stands where YAML takes spaces only"
        raise UsageError(f"{path}:{line} {problem}; this is no valid YAML") from None
    except ValueError as error:  # such as a number of five thousand digits
        raise UsageError(f"{path}: {error}; this is no valid YAML") from None


def _has_tab(path: Path, mark: Any) -> bool:
    """Whether the place of an error is a tab."""
    try:
        return (
            mark is not None and path.read_text(encoding="utf-8").splitlines()[mark.line][mark.column] == "\t"
        )
    except (OSError, ValueError, IndexError):
        return False


def _override(tree: Any, override: str) -> None:
    """Replace the value of one key; if the value is a block, it replaces the whole old block."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    require_pair(override)
    key, _, text = override.partition("=")
    try:
        value = OmegaConf.to_container(OmegaConf.from_dotlist([f"value={text}"]), resolve=False)
    except (ValueError, yaml.YAMLError, OmegaConfBaseException) as error:
        problem = getattr(error, "problem", None) or first_line(error)
        text = f"{problem}; a text goes into quotes, as in --set {key}='\"TEXT\"'"
        raise UsageError(f"--set {override}: what follows the = is no valid YAML: {text}") from None
    assert isinstance(value, dict)
    try:
        OmegaConf.update(tree, key, value["value"], merge=False, force_add=True)
    except (IndexError, KeyError, TypeError, ValueError):
        raise UsageError(f"--set {override}: is no KEY=VALUE, such as --set train.lr=1e-4") from None


def require_pair(override: str) -> None:
    """Raise UsageError for an override that is not KEY=VALUE."""
    if not PAIR.match(override):
        raise UsageError(f"--set {override}: needs KEY=VALUE, such as --set train.lr=1e-4")
