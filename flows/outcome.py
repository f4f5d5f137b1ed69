"""The last screen of a command: what came out, and where it lies. Nothing here starts any work."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.output import print_json
from tasks.core import screen
from tasks.core.config import dump
from tasks.core.schema import Config
from tasks.core.units import counted, size
from tasks.dataset.build.freshness import is_up_to_date
from tasks.dataset.manifest import read_manifest
from tasks.dataset.quarantine import NAME, by_split, home, notice, of_version, read
from tasks.dataset.rejects import reject_lines
from tasks.reporting.left_out import left_out
from tasks.reporting.report import is_current, read_headline
from tasks.runs.folder import RunFolder
from tasks.runs.metrics import finite
from tasks.runs.plan import locate, resolve
from tasks.supervision import gathering
from tasks.supervision.status import look

CHANGED = ("previous", "gained", "lost", "released", "shards", "shards_rewritten")


@dataclass(frozen=True)
class Finished:
    """A pipeline in which every stage is up to date."""

    settings: Config
    version: Path
    run: RunFolder


def of_finished(settings: Config) -> Finished | None:
    """The finished pipeline of a config, found on disk alone; None when any stage has something to do."""
    version = is_up_to_date(settings)
    if version is None:
        return None
    run = locate(settings, version)
    if not all(path.exists() for path in (run.record, run.loader, run.config)):
        return None
    if run.config.read_text(encoding="utf-8") != dump(resolve(settings, version)):
        return None  # what does not shape the weights has changed, such as the evaluations asked for
    if not look(run).is_complete:
        return None
    is_gathered = settings.track.mode == "disabled" or gathering.is_complete(run)
    return Finished(settings, version, run) if is_gathered and is_current(run) else None


def show_up_to_date(done: Finished, began: float, as_json: bool) -> int:
    """The screen of a pipeline in which nothing was to be done."""
    if not as_json:
        manifest = read_manifest(done.version)
        says = f"up to date: version {done.version.name}, {manifest.accepted:,} samples, run {done.run.name}"
        screen.finished("pipeline", says, time.monotonic() - began)
        if skipped := left_out(done.run):
            screen.warn(skipped)
    return show(done.settings, [], began, as_json, done.run)


def show(
    settings: Config,
    stages: Sequence[dict[str, Any]],
    began: float,
    as_json: bool,
    run: RunFolder | None = None,
) -> int:
    """The result of a run: its headline and its paths. Always exit code 0; failures were raised before."""
    if run is None:
        path = next(stage["details"]["run"] for stage in stages if "run" in stage["details"])
        run = RunFolder(Path(path))
    first = read_headline(run)
    if as_json:
        print_json(
            {
                "ok": True,
                "findings": [],
                "run": run.id,
                "folder": str(run.path),
                "report": str(run.report),
                "metrics": {} if first is None else {f"{first.task}_{first.metric}": finite(first.value)},
                "stages": stages,
                "seconds": round(time.monotonic() - began, 2),
            }
        )
        return 0
    lines = [
        "",
        str(first) if first is not None else "No evaluation was asked for.",
        f"  report  {_near(run.report)}",
    ]
    if run.best.exists():
        lines.append(f"  model   {_near(run.best)}")
    if upload := gathering.upload(run):
        lines.append(f"  wandb   {upload}")
    lines.append("Your own data: tarmac init PATH")
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def show_dataset(
    settings: Config,
    version: Path,
    began: float,
    as_json: bool,
    *,
    built: Mapping[str, Any] | None = None,
) -> int:
    """The result of a build: the counts, the rejects by reason, what has changed; `built` is what the stage
    told, None when nothing was to be done."""
    manifest = read_manifest(version)
    quarantined = of_version(version, read(home(version) / NAME))
    if as_json:
        print_json(
            {
                "ok": True,
                "findings": [],
                "up_to_date": built is None or built["up_to_date"],
                "version": version.name,
                "path": str(version),
                **manifest.model_dump(
                    mode="json", include={"read", "accepted", "filtered", "rejects", "splits"}
                ),
                "left_out": by_split(quarantined),
                **{name: built[name] for name in CHANGED if built is not None},
                "seconds": round(time.monotonic() - began, 2),
            }
        )
        return 0
    if built is None:
        screen.finished("build", f"up to date: version {version.name}", time.monotonic() - began)
    share = f" ({manifest.rejected / manifest.read:.1%}, budget {settings.dataset.reject_budget:.1%})"
    lines = [
        f"{manifest.read:,} read = {manifest.accepted:,} accepted + {manifest.filtered:,} filtered "
        f"+ {manifest.rejected:,} rejected{share if manifest.rejected else ''}",
        *reject_lines(version, manifest.rejects, settings.dataset.private),
    ]
    for name, split in manifest.splits.items():
        samples, shards = counted(split.samples, "sample"), counted(split.shards, "shard")
        lines.append(f"  {name:<8} {samples} in {shards}, {size(split.bytes)}")
    if skipped := notice(version, quarantined):
        lines.append(f"! {skipped}")
    if built is not None:
        was = built["previous"]
        change = (
            f" (was {was}: +{built['gained']:,} −{built['lost']:,})"
            if was not in (None, version.name)
            else ""
        )
        written = f"{built['shards_rewritten']} of {built['shards']} shards written"
        lines.append(f"✓ version {version.name}{change}; {written}")
    lines.append(f"  data     {_near(settings.dataset.output / 'current')}")
    lines.append(f"  look     tarmac look {_near(settings.dataset.output)}")
    if "train" not in manifest.splits:
        lines.append("! no split is named train, which a training needs: see dataset.splits")
    if manifest.rejected:
        where = _near(version / "rejects.parquet")
        lines.append(f"  rejects  {where}; mend the sources and run again: only these are redone")
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def _near(path: Path) -> str:
    """The path as a person in this folder would type it."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
