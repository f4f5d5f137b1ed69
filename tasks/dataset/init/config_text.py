"""What was seen as a config file: each key with its reason, alternatives commented out."""

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
from tasks.dataset.init.evidence import Key, shown
from tasks.dataset.init.survey import PlaceSurvey
from tasks.dataset.init.train_block import train_keys

WIDTH = 110
COLUMN = 36
"""Where comments begin, unless the value is longer."""
_PLAIN = re.compile(r"(?:(?:s3|gs|https?)://|[A-Za-z_/]|\.\./)[\w/. -]*(?<! )|\d+[kMGT]?B")


def config_text(survey: PlaceSurvey, has_gpu: bool = False) -> str:
    """The config of the best reading, with a model that this machine can train."""
    best = survey.best
    private = (
        "no sample or key on any page, counts only" if best.is_private else "true: counts only on every page"
    )
    dataset = [
        Key("output", output_of(survey), "the dataset's folder"),
        Key("modality", best.modality, best.what),
        Key("private", best.is_private, private),
        Key("source", best.source),
        *best.dataset,
        Key("reject_budget", 0.05, "a build stops when it is certain to pass this share of rejects"),
    ]
    lines = [f"# {line}" for line in _head(survey)]
    lines += _lines([Key("name", survey.name), Key("dataset", dataset)])
    lines += _lines(train_keys(best, has_gpu))
    return "\n".join(lines) + "\n"


def output_of(survey: PlaceSurvey) -> str:
    """`data/NAME`, unless the raw data lies there, or the source would hold it."""
    location = survey.inventory.store.location
    wanted = f"data/{survey.name}"
    if is_remote(location):
        return wanted
    raw, out = Path(location), Path(wanted).absolute()
    if raw == out or out in raw.parents or (raw in out.parents and raw != Path.cwd()):
        wanted = f"{wanted}-shards"
    joins = (key.value for key in survey.best.source if key.name == "join")
    paths = [survey.best.path, *(joined["path"] for join in joins for joined in join)]
    is_inside = any(lies_inside(wanted, path) for path in paths)
    return beside(survey.inventory.given) if is_inside else wanted


def _head(survey: PlaceSurvey) -> Iterator[str]:
    best = survey.best
    yield f"{survey.name}: {best.what}, as seen by: tarmac init {shown(survey.inventory.given, 200)}"
    width = max(len(what) for what, _ in best.seen)
    yield from (f"  {what:<{width}}  {shown(evidence, 200)}" for what, evidence in best.seen)
    if not best.is_private:  # they name files
        yield from (f"  ! {shown(warning, 200)}" for warning in best.warnings)
    for other in survey.readings[1:4]:
        yield f"  or {other.what}: source {{kind: {other.kind}, path: {shown(other.path, 80)}, …}}"
    yield "Next: tarmac plan FILE, then tarmac run FILE."


def _lines(keys: Iterable[Key], indent: int = 0, is_alternative: bool = False) -> Iterator[str]:
    for key in keys:
        is_comment = is_alternative or key.is_alternative
        start = " " * indent + ("# " if is_comment else "") + f"{_scalar(key.name)}:"
        if isinstance(key.value, list | tuple) and key.value and isinstance(key.value[0], Key):
            yield from _commented(start, key.why, indent)
            yield from _lines(key.value, indent + 2, is_comment)
        else:
            yield from _commented(f"{start} {flow(key.value)}", key.why, indent)


def _commented(line: str, why: str, indent: int) -> Iterator[str]:
    """Why beside the line, or above it where both together are too long."""
    comment = f"# {shown(why, WIDTH)}"
    if not why:
        yield line
    elif max(len(line), COLUMN) + len(comment) + 2 <= WIDTH:
        yield f"{line:<{COLUMN}}  {comment}"
    else:
        yield from (" " * indent + comment, line)


def flow(value: Any) -> str:
    """A value in one line of YAML that OmegaConf reads back as it is."""
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
