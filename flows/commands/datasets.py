"""The commands that make versions of a dataset: `build`, `reinforce` and `index`."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from flows.commands.arguments import AsJson, Changes, ConfigFile
from flows.commands.output import print_result, say, with_config
from tasks.core import screen
from tasks.core.units import counted, near, size

if TYPE_CHECKING:
    from tasks.build import Published
    from tasks.core.schema import Config
    from tasks.dataset.building.conversion.result import BuildResult
    from tasks.dataset.version.manifest import Manifest

CHANGED = ("previous", "gained", "lost", "replaced", "rekeyed", "released", "shards", "shards_rewritten")
"""The fields that `build --json` takes from the stage."""
ACCOUNT = {"read", "accepted", "filtered", "rejects", "splits", "passed_over"}
"""The fields that `build --json` takes from the manifest."""


def build(
    config: ConfigFile,
    /,
    *,
    changes: Changes = None,
    rehash: Annotated[bool, Parameter(help="Compare raw files by content, not by size and time.")] = False,
    accept_loss: Annotated[
        bool, Parameter(help="Publish a version that has lost or replaced more than 5 % of the samples.")
    ] = False,
    no_wait: Annotated[bool, Parameter(help="Fail instead of waiting for another builder.")] = False,
    as_json: AsJson = False,
) -> int:
    """Turn raw data into verified shards with a manifest.

    Only shards whose samples changed are written. The new version becomes
    current once it is verified. Every raw sample is accounted for:
    read = accepted + filtered + rejected.

    For example:
      tarmac build configs/photos.yaml
      tarmac build configs/photos.yaml --set dataset.shard.samples=512
    """
    from flows.operate import start
    from flows.parameters import Overrides, configured
    from tasks.dataset.building.freshness import is_up_to_date

    overrides = Overrides(set=changes or [])
    settings = configured(config, overrides)
    began = time.monotonic()
    version = None if rehash else is_up_to_date(settings, for_build=True)
    if version is not None:
        took_s = time.monotonic() - began
        return _show_build(settings, version, None, took_s, as_json, again=_run_again(config, changes))
    stages = start.flow(
        "flows.build:build_flow",
        settings.runs,
        config=config,
        overrides=overrides,
        rehash=rehash,
        accept_loss=accept_loss,
        wait=not no_wait,
    )
    built: BuildResult = stages[0].details
    published: Published = stages[-1].details
    took_s = time.monotonic() - began
    again, removed = _run_again(config, changes), published.removed
    return _show_build(settings, built.version, built, took_s, as_json, removed, again)


def reinforce(config: ConfigFile, /, *, changes: Changes = None, as_json: AsJson = False) -> int:
    """Write teachers' embeddings of a dataset's pairs into shards, and build them.

    The config's block reinforce names the dataset, the teachers and the
    synthetic captions. Finished shards are not made again, so the same command
    goes on after an interruption.

    For example:
      tarmac reinforce configs/taught.yaml
    """
    from tasks.core import config as configs
    from tasks.models.reinforced import teachers

    began = time.monotonic()
    with screen.running("reinforce") as progress:
        found = teachers.reinforce(configs.load_config(config, changes or []), progress)
    if not as_json:
        widths = f", embeddings {' + '.join(map(str, found.widths))} wide" if found.widths else ""
        summary = f"{found.made} of {counted(found.tars, 'shard')} written{widths}"
        screen.finished("reinforce", summary, time.monotonic() - began)
    return build(config, changes=changes, as_json=as_json)


def index(
    shards: Annotated[str, Parameter(help="Tars to train on: a folder, a pattern or an address.")],
    dataset: Annotated[Path, Parameter(help="The folder of the new dataset.")],
    /,
    *,
    val: Annotated[str | None, Parameter(help="Tars to hold out, in the form of SHARDS.")] = None,
    modality: Annotated[
        Literal["image_text", "reinforced", "volume_report", "chat"] | None,
        Parameter(help="The kind of samples (default: recognised by the members of the first sample)."),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Index tars that others wrote, to train on them where they lie.

    The tars are read once and stay where they are: on this machine, a web
    server or in a bucket. The key dataset.output of a config then names
    DATASET, and its samples are read one by one, with exact resume.

    For example:
      tarmac index 's3://bucket/cc3m/{00000..00331}.tar' data/cc3m
      tarmac index https://host/train/ data/pairs --val https://host/val/
    """
    from tasks.dataset.indexing import index_tars
    from tasks.dataset.version.manifest import read_manifest

    version = index_tars({"train": shards, **({"val": val} if val else {})}, dataset, modality)
    manifest = read_manifest(version)
    if as_json:
        return print_result(
            version=version.name,
            path=str(version),
            modality=manifest.modality,
            splits={name: asdict(split) for name, split in manifest.splits.items()},
        )
    lines = [f"{dataset} is version {version.name}, {manifest.modality}"]
    lines += [
        f"  {name}  {counted(one.samples, 'sample')} in {counted(one.shards, 'shard')}, {size(one.bytes)}"
        for name, one in manifest.splits.items()
    ]
    return say("\n".join(lines))


def _show_build(
    settings: Config,
    version: Path,
    built: BuildResult | None,
    seconds: float,
    as_json: bool,
    removed: Sequence[str] = (),
    again: str = "",
) -> int:
    """Print the result of a build; `built` is its stage's result, or None if the dataset was up to date."""
    from tasks.core import screen
    from tasks.dataset.quality.verdict import kept_findings, lines_of
    from tasks.dataset.version import quarantine
    from tasks.dataset.version.build_info import read_build_info
    from tasks.dataset.version.manifest import read_manifest

    manifest = read_manifest(version)
    entries = quarantine.read_quarantine(quarantine.home(version) / quarantine.NAME)
    left_out = quarantine.of_version(version, entries)
    findings = kept_findings(settings, version)
    unscored = read_build_info(version).unscored
    is_ok = not any(finding.severity == "error" for finding in findings)
    if as_json:
        print_result(
            ok=is_ok,
            findings=[asdict(finding) for finding in findings],
            up_to_date=built is None or built.up_to_date,
            version=version.name,
            path=str(version),
            **{name: value for name, value in asdict(manifest).items() if name in ACCOUNT},
            left_out=quarantine.by_split(left_out),
            unscored=unscored,
            **{name: getattr(built, name) for name in CHANGED if built is not None},
            removed=list(removed),
            seconds=round(seconds, 2),
        )
        return 0 if is_ok else 1
    if built is None:
        screen.finished("build", f"up to date: version {version.name}", seconds)
    notice = quarantine.notice(version, left_out)
    lines = list(_built_lines(settings, version, manifest, built, notice))
    lines += lines_of(findings)
    if unscored:
        lines.append(_unscored_line(settings, unscored))
    if is_ok and settings.train is not None and "train" in manifest.splits:
        lines.append(f"  next     {again}")
    say("\n".join(lines))
    return 0 if is_ok else 1


def _run_again(config: Path, changes: list[str] | None) -> str:
    """Return the command that trains on the dataset of a config, with the same changes."""
    return with_config("tarmac run CONFIG", config, changes)


def _unscored_line(settings: Config, unscored: int) -> str:
    from tasks.dataset.modalities import MODALITIES

    dataset = settings.dataset
    names = " or ".join(name for name in dataset.filter if name in MODALITIES[dataset.modality].scores)
    stay = f"{counted(unscored, 'sample')} without {names} {'stays' if unscored == 1 else 'stay'}"
    return f"! {stay}: tarmac score CONFIG scores what lacks it, then build again"


def _built_lines(
    settings: Config, version: Path, manifest: Manifest, built: BuildResult | None, notice: str | None
) -> Iterator[str]:
    from tasks.dataset.version.manifest import passed_over_lines
    from tasks.dataset.version.rejects import reject_lines

    share = f" ({manifest.rejected / manifest.read:.1%}, budget {settings.dataset.reject_budget:.1%})"
    yield (
        f"{manifest.read:,} read = {manifest.accepted:,} accepted + {manifest.filtered:,} filtered "
        f"+ {manifest.rejected:,} rejected{share if manifest.rejected else ''}"
    )
    yield from reject_lines(version, manifest.rejects, settings.dataset.private)
    yield from (f"  {line}" for line in passed_over_lines(manifest.passed_over, settings.dataset.private))
    for name, split in manifest.splits.items():
        samples, shards = counted(split.samples, "sample"), counted(split.shards, "shard")
        yield f"  {name:<8} {samples} in {shards}, {size(split.bytes)}"
    if notice:
        yield f"! {notice}"
    if built is not None:
        was = built.previous
        change = "" if was in (None, version.name) else f" (was {was}: {built.changed})"
        yield f"✓ version {version.name}{change}; {built.shards_rewritten} of {built.shards} shards written"
    output = near(settings.dataset.output)
    yield f"  data     {near(settings.dataset.output / 'current')}"
    look = f"tarmac look {shlex.quote(output)}"
    yield f"  look     {look}, and in Python: {look} --load"
    if "train" not in manifest.splits:
        yield "! no split is named train, which a training needs: see dataset.splits"
    if manifest.rejected:
        listed = f"tarmac rejects {shlex.quote(output)} lists all"
        yield f"  rejects  {listed}; mend the sources and run again: only these are redone"
