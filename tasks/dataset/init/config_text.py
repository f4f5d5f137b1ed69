"""Write what a survey found as a config file: each key with its reason, alternatives commented out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from tasks.core.errors import UsageError
from tasks.core.stores import is_remote
from tasks.dataset.building.check import beside, lies_inside
from tasks.dataset.init.evidence import ConfigKey, shown
from tasks.dataset.init.survey import PlaceSurvey
from tasks.dataset.init.train_block import propose_training

WIDTH = 110
COLUMN = 36
"""Where comments begin, unless the value is longer."""
_PLAIN = re.compile(r"(?:(?:s3|gs|https?)://|[A-Za-z_/]|\.\./)[\w/. -]*(?<! )|\d+[kMGT]?B")


def config_text(survey: PlaceSurvey, has_gpu: bool = False) -> str:
    """Return the config of the best reading, with a model that this machine can train."""
    best = survey.best
    private = "no sample or key on any page, counts only"
    stops = "a build stops when it is certain to pass this share of rejects"
    dataset = [
        ConfigKey("output", output_of(survey), "the dataset's folder"),
        ConfigKey("modality", best.modality, best.what),
        ConfigKey("private", best.is_private, private if best.is_private else f"true: {private}"),
        ConfigKey("source", best.source),
        *best.dataset,
        ConfigKey("reject_budget", best.reject_budget, stops),
    ]
    lines = [f"# {line}" for line in _head(survey)]
    keys = [ConfigKey("name", survey.name), ConfigKey("dataset", dataset), *propose_training(best, has_gpu)]
    return "\n".join([*lines, *_lines(keys)]) + "\n"


def output_of(survey: PlaceSurvey) -> str:
    """Return `data/NAME`, or another folder where the raw data lies there or the source would include it."""
    location = survey.inventory.store.location
    wanted = f"data/{survey.name}"
    if is_remote(location):
        return wanted
    raw, out = Path(location), Path(wanted).absolute()
    if raw == out or out in raw.parents or (raw in out.parents and raw != Path.cwd()):
        wanted = f"{wanted}-shards"
    joins = [one.value for one in survey.best.source if one.key == "join"]
    paths = [survey.best.path, *(joined["path"] for join in joins for joined in join)]
    is_inside = any(lies_inside(wanted, path) for path in paths)
    return beside(survey.inventory.given) if is_inside else wanted


def _head(survey: PlaceSurvey) -> Iterator[str]:
    best = survey.best
    yield f"{survey.name}: {best.what}, written by: tarmac init {shown(survey.inventory.given, 200)}"
    if not best.is_private:  # they name files
        yield from (f"  ! {shown(warning, 200)}" for warning in best.warnings)
    for other in survey.readings[1:4]:
        yield f"  or {other.what}: source {{kind: {other.kind}, path: {shown(other.path, 80)}, …}}"
    yield "Next: tarmac plan FILE, then tarmac run FILE."


def _lines(keys: Iterable[ConfigKey], indent: int = 0, is_alternative: bool = False) -> Iterator[str]:
    for one in keys:
        is_comment = is_alternative or one.is_alternative
        is_block = isinstance(one.value, list) and bool(one.value) and isinstance(one.value[0], ConfigKey)
        line = " " * indent + ("# " if is_comment else "") + f"{_scalar(one.key)}:"
        if not is_block:
            line += f" {flow(one.value)}"
        reason = f"# {shown(one.evidence, WIDTH)}"
        if not one.evidence:
            yield line
        elif max(len(line), COLUMN) + len(reason) + 2 <= WIDTH:
            yield f"{line:<{COLUMN}}  {reason}"
        else:
            yield from (" " * indent + reason, line)
        if is_block:
            yield from _lines(one.value, indent + 2, is_comment)


def flow(value: Any) -> str:
    """Return a value as one line of YAML that OmegaConf reads back unchanged."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_scalar(name)}: {flow(its)}" for name, its in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(flow(one) for one in value) + "]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, float):  # YAML reads 5e-05 as a text
        return re.sub(r"^(-?\d+)e", r"\1.0e", json.dumps(value))
    if not isinstance(value, str):
        return json.dumps(value)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UsageError(f"PATH: {shown(value)} is not UTF-8, so no config can hold it; rename it") from None
    text: str = value.replace("${", "\\${")
    if _PLAIN.fullmatch(text) and text.isascii() and yaml.safe_load(text) == text:
        return text
    if text.isprintable():
        return "'" + text.replace("'", "''") + "'"
    return json.dumps(text)
