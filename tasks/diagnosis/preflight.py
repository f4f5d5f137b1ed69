"""Predicts in seconds, without a GPU, whether every rank and worker of a training gets a first batch.

For a command of another trainer, the tars are surveyed and the trainer's own pipeline runs on samples of each
kind. For a config of Tarmac, the manifest, the index and the tables hold all that is needed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tasks.core.child import call
from tasks.core.errors import UsageError
from tasks.core.findings import Finding, Report
from tasks.core.process import available_cores
from tasks.core.schema import Config
from tasks.core.screen import Progress, no_progress
from tasks.dataset.version.layout import resolve
from tasks.dataset.version.manifest import read_manifest
from tasks.diagnosis import memory, own_run
from tasks.diagnosis.foreign import judgement
from tasks.diagnosis.foreign.case import Case, look_at_data, nothing_to_look_at
from tasks.diagnosis.foreign.mend import Mended, mend
from tasks.diagnosis.own_run import OwnCase
from tasks.models.needs import UnknownNeed
from tasks.models.recipes import check_recipe
from tasks.runs.footprint import footprint_of
from tasks.runs.gpus import memory_of_gpu, trains_on_gpus
from tasks.trainers import recognise
from tasks.trainers.command import Command
from tasks.trainers.contract import Trainer

MEMORY_ESTIMATED = "memory: estimated by the model's image size; --deep measures it"
PACKS_UNSEEN = "memory, and how many rows the packs make: --deep measures both"
GPU_UNSEEN = "memory of a GPU: --deep computes it"
KEYS = {"--workers": "loader.workers", "--batch-size": "train.batch_size", "--warmup": "train.warmup"}
"""The config's keys for the options that Tarmac gives to another trainer's command."""


@dataclass(frozen=True)
class Preflight:
    """The findings, and how much was examined for them."""

    report: Report
    trainer: str
    seconds: float
    samples: int = 0
    shards: int = 0
    mended: Mended | None = None


def preflight_command(
    words: Sequence[str], folder: Path, is_deep: bool = False, progress: Progress = no_progress
) -> Preflight:
    """Examine a training's command, which runs in `folder`; mended files are written there.

    UsageError where the command trains on no tars that Tarmac can look at.
    """
    began = time.monotonic()
    command = Command.of(words, folder)
    case, not_seen = look_at_data(command, recognise(command), is_deep, progress)
    findings = judgement.judge_command(case)
    mended = mend(case, findings, folder)
    findings = [mended.finding(one, folder) for one in findings]
    report = Report(findings, list(judgement.ruled_out(case, findings)), not_seen)
    return _of_case(case, report, began, mended)


def preflight_external(
    config: Config,
    own: Preflight,
    words: Sequence[str],
    trainer: Trainer,
    is_deep: bool = False,
    progress: Progress = no_progress,
) -> Preflight:
    """Examine the command that trains a config of recipe external; `words` are the command with all options.

    The command is examined like any other, but remedies name the config's keys. `own` is the result of
    `preflight_config` for the same config. Raises UsageError like `preflight_command`.
    """
    began = time.monotonic() - own.seconds
    command = Command.of(words)
    data = trainer.data(command)
    if data is None or data.tars is None:
        unseen = f"the command: {nothing_to_look_at(command, trainer)}"
        return replace(own, report=replace(own.report, not_seen=[unseen, *own.report.not_seen]))
    case, not_seen = look_at_data(command, trainer, is_deep, progress)
    assert config.train is not None
    given = Command.of(config.train.model.get("command", ()))
    known = {one.code for one in own.report.findings}
    more = [
        _by_config(one, given)
        for one in judgement.judge_command(case)
        if one.code not in known and not _is_of_epochs(one, given, case)
    ]
    findings = [*own.report.findings, *more]
    ruled_out = list(judgement.ruled_out(case, findings))
    return _of_case(case, Report(findings, ruled_out, [*not_seen, *own.report.not_seen]), began)


def _is_of_epochs(one: Finding, given: Command, case: Case) -> bool:
    """Return whether a finding is about the samples of an epoch, which end with each checkpoint by design."""
    option = case.data.samples_option
    return one.code == "count.mismatch" and one.severity == "warning" and not given.has(option)


def _by_config(one: Finding, given: Command) -> Finding:
    """Return the finding with the config's keys in place of options that the user's command lacks."""
    flags, config, remedy = dict(one.flags or {}), dict(one.config or {}), one.remedy
    for option, key in KEYS.items():
        if not given.has(option):
            remedy = remedy.replace(option, key)
            if option in flags:
                config[key] = flags.pop(option)
    return replace(one, remedy=remedy, flags=flags or None, config=config or None)


def _of_case(case: Case, report: Report, began: float, mended: Mended | None = None) -> Preflight:
    seconds, survey = time.monotonic() - began, case.survey
    return Preflight(report, case.trainer.name, seconds, survey.looked_at, len(survey.locations), mended)


def preflight_config(config: Config, is_deep: bool = False, unknown: Sequence[UnknownNeed] = ()) -> Preflight:
    """Examine a config of Tarmac's own on the current version of its dataset.

    A deep look also loads some samples, so that memory is measured instead of estimated, which takes torch,
    and reads the weights that were fetched. `unknown` are the downloads of its evaluations. UsageError
    without a train block, or before the dataset is built.
    """
    began = time.monotonic()
    if config.train is None:
        raise UsageError("train: missing; preflight examines a run that trains, `tarmac verify` checks data")
    options = check_recipe(config.train)
    version = resolve(config.dataset.output)
    manifest = read_manifest(version)
    found: dict[str, Any] = {}
    if is_deep and not options.is_external:
        given = {"config": config.model_dump(mode="json", by_alias=True), "version": str(version)}
        found = call("tasks.diagnosis.preflight:measured", given)
    cores, limits, free = available_cores(), memory.limits(), own_run.room(config.runs)
    cost = memory.LoaderCost(**found["cost"]) if found else None
    case = OwnCase(
        config, config.train, version, manifest, cores, limits, free, cost, is_deep, found.get("rows")
    )
    not_seen = []
    if trains_on_gpus(config.engine.train) and not options.is_external:
        if is_deep:
            case = replace(case, footprint=footprint_of(config), gpu_bytes=memory_of_gpu())
        else:
            not_seen.append(GPU_UNSEEN)
    if not is_deep and not options.is_external:
        not_seen.append(MEMORY_ESTIMATED if config.train.pack is None else PACKS_UNSEEN)
    unseen = [*(need for need in options.needs if isinstance(need, UnknownNeed)), *unknown]
    not_seen += [f"{need.key}: {need.why}" for need in unseen]
    report = Report(own_run.judge_own_run(case), [], not_seen)
    return Preflight(report, "tarmac", time.monotonic() - began, case.samples, case.shards)


def measured(config: dict[str, Any], version: Path) -> dict[str, Any]:
    """Load some samples to measure what loading costs, and how many rows the samples fill.

    It runs in a child process, because it imports torch.
    """
    from tasks.diagnosis.measure import feed_of, rows_an_epoch
    from tasks.loader import forkserver
    from tasks.models.recipes import load_recipe, module_of

    settings = Config.model_validate(config)
    assert settings.train is not None
    forkserver.fork(module_of(settings.train))
    feed = feed_of(settings, version, load_recipe(settings.train))
    return {"cost": asdict(memory.measure(feed)), "rows": rows_an_epoch(feed)}
