"""The commands that begin a project, before anything is built: `example`, `init`, `explain` and `schema`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from flows.commands.arguments import AsJson
from flows.commands.output import print_json, print_result, say
from tasks.core.errors import UsageError
from tasks.core.units import counted

if TYPE_CHECKING:
    from tasks.dataset.init import PlaceSurvey

EVIDENCE_WIDTH = 300
"""The number of characters that a line of `init` shows of a name or a value from the raw data."""


def example(
    name: Annotated[str, Parameter(help="digits, digits-chat, phantoms or reinforced.")],
    path: Annotated[Path | None, Parameter(help="The folder to write (default: data/raw/NAME).")] = None,
    /,
    *,
    as_json: AsJson = False,
) -> int:
    """Write a small raw dataset to start from.

    A folder that exists already is left alone.

    For example:
      tarmac example digits
      tarmac run configs/digits-clip.yaml
    """
    from tasks.core.files import disk_full_as_error
    from tasks.dataset import examples

    if name not in examples.EXAMPLES:
        raise UsageError(f"NAME: no example is named {name!r}; there are: {', '.join(examples.EXAMPLES)}")
    folder = path or examples.home(name)
    try:
        with disk_full_as_error(folder):
            samples = examples.write_example(name, folder)
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"PATH: {folder} cannot be written ({reason}); choose another") from None
    if as_json:
        return print_result(path=str(folder), samples=samples)
    written = f"✓ example   {samples:,} samples in {folder}"
    return say(written if samples else f"{folder} exists already: left alone")


def init(
    path: Annotated[str, Parameter(help="A folder, a table, or a quoted pattern of files, local or remote.")],
    /,
    *,
    out: Annotated[Path | None, Parameter(help="The config to write (default: configs/NAME.yaml).")] = None,
    as_json: AsJson = False,
) -> int:
    """Look at raw data and write a commented config for it.

    It opens at most a few dozen files, reports what it found, and never
    overwrites a config.

    For example:
      tarmac init /photos
      tarmac init 's3://bucket/scans/*.nii.gz' --out configs/scans.yaml
    """
    from tasks.dataset.init import config_text, survey
    from tasks.dataset.init.evidence import shown
    from tasks.runs.gpus import gpus_here

    found = survey(path)
    config = out or Path(f"configs/{found.name}.yaml")
    text = config_text(found, has_gpu=gpus_here() > 0)
    try:
        config.parent.mkdir(parents=True, exist_ok=True)
        with config.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"--out: {config} exists and stays as it is; give another path with --out") from None
    except OSError as error:
        raise UsageError(f"--out: {config} cannot be written ({error.strerror}); give another PATH") from None
    if as_json:
        readings = [reading.as_json() for reading in found.readings]
        files = {shown(suffix): number for suffix, number in sorted(found.inventory.counts.items())}
        return print_result(config=str(config), files=files, readings=readings)
    return say("\n".join(_survey_lines(found, config)))


def _survey_lines(found: PlaceSurvey, config: Path) -> Iterator[str]:
    from tasks.dataset.init.evidence import shown

    yield shown(f"{found.inventory.given}: {found.inventory.described}", EVIDENCE_WIDTH)
    width = max(9, *map(len, found.best.seen))
    for key, evidence in found.best.seen.items():
        yield f"  {key:<{width}} {shown(evidence, EVIDENCE_WIDTH)}"
    yield from (f"! {shown(warning, EVIDENCE_WIDTH)}" for warning in found.best.warnings)
    for other in found.readings[1:]:
        yield f"  {'or':<{width}} {other.kind}: {other.what}, {counted(other.samples, 'sample')}"
    yield f"✓ {config}: {found.best.what}"
    yield f"  {'next':<{width}} tarmac plan {shlex.quote(str(config))}"
    yield f"  {'':<{width}} tarmac run {shlex.quote(str(config))}"


def explain(
    key: Annotated[
        str | None,
        Parameter(help="A key of a config, such as dataset.splits (default: list the first ones)."),
    ] = None,
    /,
    *,
    as_json: AsJson = False,
) -> int:
    """Explain a key of a config: its meaning, type, default and an example.

    A key of a source, a recipe or an evaluation may have its kind in it, as in
    dataset.source.table.image or evaluate.tasks.zero_shot.templates.

    For example:
      tarmac explain
      tarmac explain dataset.splits
      tarmac explain train.model.clip.name
    """
    from flows.config_keys import every_key, find_keys

    if key is None:
        found = [one for one in every_key() if "." not in one.name]
        width = max(len(one.name) for one in found)
        lines = [f"{one.name:<{width}}  {one.meaning.partition('. ')[0].rstrip('.')}" for one in found]
        lines.append("next: tarmac explain KEY, such as dataset.splits")
    else:
        found = find_keys(key)
        lines = [line for one in found for line in one.lines()]
    if as_json:
        return print_result(keys=[{**asdict(one), "page": one.page} for one in found])
    return say("\n".join(lines))


def schema(*, as_json: AsJson = False) -> int:
    """Print the JSON Schema of a config, with the meaning of every key.

    With it, an editor completes and checks configs; tarmac explain KEY is for
    people.

    For example:
      tarmac schema > config.schema.json
    """
    from flows.config_schema import config_schema

    if as_json:
        return print_json(config_schema())
    return say(json.dumps(config_schema(), indent=2, ensure_ascii=False))
