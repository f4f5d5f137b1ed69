"""The commands on datasets and raw data, one function a name; each returns its exit code.

All but `build` call the library directly, because a person waits for them.
"""

from __future__ import annotations

import shlex
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from flows import looking, start, verifying
from flows.forecasting import build_lines, left_out, training_left
from flows.history import show_history
from flows.output import print_json, say
from flows.parameters import Overrides, configured
from tasks.core import screen
from tasks.core.errors import UsageError
from tasks.core.files import disk_full_as_error
from tasks.core.units import counted
from tasks.dataset.quarantine import by_split

KEPT = 3
"""Versions that a prune keeps unless it is told a number."""


def build(arguments: Namespace) -> int:
    """Raw data to a verified version."""
    from flows import outcome
    from tasks.dataset.build.freshness import is_up_to_date

    settings = configured(Path(arguments.config), Overrides(set=arguments.set))
    began = time.monotonic()
    asks = arguments.rehash or arguments.shard
    version = None if asks else is_up_to_date(settings)
    if version is not None:
        return outcome.show_dataset(settings, version, began, arguments.json)
    stages = start.flow("build", arguments, settings)
    version = Path(stages[0]["details"]["version"])
    return outcome.show_dataset(settings, version, began, arguments.json, built=stages[0]["details"])


def plan(arguments: Namespace) -> int:
    """What a run would do; writes nothing."""
    from tasks.dataset.build.forecast import forecast

    settings = configured(Path(arguments.config), Overrides(set=arguments.set))
    if settings.schedule is not None and find_spec("prefect") is not None:  # which plans need not have
        from flows.offers import of_config

        of_config(settings, Path(arguments.config))
    with screen.running("plan") as progress:
        told = forecast(settings, progress)
    training = training_left(settings, told.up_to_date)
    if arguments.json:
        skipped = by_split(left_out(settings, told.up_to_date))
        plans = {
            "build": asdict(told),
            "left_out": skipped,
            "train": training.told if training else None,
            "doubts": training.doubts if training else [],
        }
        return print_json({"ok": True, "findings": [], **plans})
    lines = list(build_lines(settings, told))
    if training is not None:
        lines.append(f"train     {training.told}")
        lines += [f"!         {doubt}" for doubt in training.doubts]
    if told.work is not None and told.work.stops is not None:
        lines.append("nothing was written")
    elif told.up_to_date is None or (training is not None and training.is_left):
        command = ["tarmac", "run" if training else "build", arguments.config]
        changes = [part for pair in arguments.set for part in ("--set", pair)]
        lines.append(f"nothing was written; to do it: {shlex.join([*command, *changes])}")
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def init(arguments: Namespace) -> int:
    """Look at raw data, say what is there, and write a config for it."""
    from tasks.dataset.init import config_text, survey
    from tasks.dataset.init.evidence import shown

    seen = survey(arguments.data)
    path = Path(arguments.out or f"configs/{seen.name}.yaml")
    text = config_text(seen)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"--out: {path} is there and stays as it is; give another path with --out") from None
    except OSError as error:
        raise UsageError(f"--out: {path} cannot be written ({error.strerror}); give another PATH") from None
    if arguments.json:
        readings = [reading.as_json() for reading in seen.readings]
        files = {shown(suffix): number for suffix, number in sorted(seen.inventory.counts.items())}
        return print_json(
            {"ok": True, "findings": [], "config": str(path), "files": files, "readings": readings}
        )
    sys.stdout.write("\n".join(_survey_lines(seen, path)) + "\n")
    return 0


def _survey_lines(seen: Any, path: Path) -> Iterator[str]:
    from tasks.dataset.init.evidence import shown

    yield shown(f"{seen.inventory.given}: {seen.inventory.described}", 300)
    width = max(9, *(len(what) for what, _ in seen.best.seen))
    yield from (f"  {what:<{width}} {shown(evidence, 300)}" for what, evidence in seen.best.seen)
    yield from (f"! {shown(warning, 300)}" for warning in seen.best.warnings)
    for other in seen.readings[1:]:
        yield f"  {'or':<{width}} {other.kind}: {other.what}, {counted(other.samples, 'sample')}"
    yield f"✓ {path}: {seen.best.what}"
    yield f"  {'next':<{width}} tarmac plan {shlex.quote(str(path))}"
    yield f"  {'':<{width}} tarmac build {shlex.quote(str(path))}"


def verify(arguments: Namespace) -> int:
    """Is a dataset sound?"""
    return verifying.verify(arguments)


def repair(arguments: Namespace) -> int:
    """Make a damaged dataset sound again."""
    from flows.repairing import repair as mend

    return mend(arguments)


def look(arguments: Namespace) -> int:
    """A page of a dataset's version."""
    return looking.look(arguments)


def versions(arguments: Namespace) -> int:
    """A dataset's history."""
    from tasks.dataset import versions as history

    dataset, keep = Path(arguments.dataset), arguments.keep
    if arguments.version is not None and arguments.action != "rollback":
        fix = "; it keeps the newest --keep N" if arguments.action == "prune" else ""
        raise UsageError(f"VERSION: {arguments.action} takes none, and {arguments.version!r} is given{fix}")
    if keep is not None and arguments.action != "prune":
        raise UsageError(f"--keep: {arguments.action} removes no version; it is for prune")
    if arguments.action == "rollback":
        if arguments.version is None:
            raise UsageError("VERSION: rollback needs the version to go back to; see tarmac versions DATASET")
        version = history.rollback(dataset, arguments.version)
        if arguments.json:
            return print_json({"ok": True, "findings": [], "current": version.name})
        sys.stdout.write(f"✓ current is {version.name}; a build of changed sources makes a new version\n")
        return 0
    if arguments.action == "prune":
        keep = KEPT if keep is None else keep
        if keep < 1:
            raise UsageError("--keep: at least 1, the current version")
        removed = history.prune(dataset, keep)
        if arguments.json:
            return print_json({"ok": True, "findings": [], "removed": removed})
        sys.stdout.write(f"✓ removed {', '.join(removed) or 'nothing'}\n")
        for name, why in history.spared(dataset, keep).items():
            sys.stdout.write(f"  {name} stays: {why}\n")
        return 0
    return show_history(dataset, arguments.json)


def example(arguments: Namespace) -> int:
    """A small raw dataset to start from."""
    from tasks.dataset import examples

    if arguments.name not in examples.EXAMPLES:
        raise UsageError(
            f"NAME: no example is named {arguments.name!r}; there are: {', '.join(examples.EXAMPLES)}"
        )
    path = Path(arguments.path or f"data/raw/{arguments.name}")
    try:
        with disk_full_as_error(path):
            count = examples.EXAMPLES[arguments.name](path)
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"PATH: {path} cannot be written ({reason}); choose another") from None
    if arguments.json:
        return print_json({"ok": True, "findings": [], "path": str(path), "samples": count})
    written = f"✓ example   {count:,} samples in {path}"
    return say(written if count else f"{path} is there already: left alone")


def schema(arguments: Namespace) -> int:
    """The config's JSON Schema."""
    from tasks.core.schema import Config

    return print_json(Config.model_json_schema())
