"""Will this training get a first batch on every rank and worker? Answered in seconds, without a GPU.

Of somebody's command the tars are looked at and the trainer's own pipeline is run on samples of each kind;
of a config of Tarmac's own the manifest, the index and the tables say all that is needed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tasks.core.child import call
from tasks.core.errors import UsageError
from tasks.core.findings import Finding, Report
from tasks.core.folders import open_store
from tasks.core.patterns import expand_braces
from tasks.core.process import available_cores
from tasks.core.schema import Config
from tasks.core.screen import Progress, no_progress
from tasks.core.stores import is_remote, split_location
from tasks.dataset.layout import resolve
from tasks.dataset.manifest import read_manifest
from tasks.diagnosis import memory, own_run
from tasks.diagnosis.foreign import judgement
from tasks.diagnosis.foreign.case import Case
from tasks.diagnosis.foreign.mend import Mended, mend
from tasks.diagnosis.foreign.probe import NoAnswer, probe_pipeline
from tasks.diagnosis.foreign.survey import Example, TarSurvey, survey
from tasks.diagnosis.own_run import OwnCase
from tasks.models.needs import UnknownNeed
from tasks.models.recipes import check_recipe
from tasks.trainers import recognise
from tasks.trainers.command import Command
from tasks.trainers.contract import Trainer

MEMORY_ESTIMATED = "memory: estimated by the model's image size; --deep measures it"
PACKS_UNSEEN = "memory, and how many rows the packs make: --deep measures both"
DRAWN_BYTES = 16 << 20
"""Read from a tar to learn how fast its disk is."""
KEYS = {"--workers": "loader.workers", "--batch-size": "train.batch_size", "--warmup": "train.warmup"}
"""What a config calls the options that another trainer's command is told."""


@dataclass(frozen=True)
class Preflight:
    """What was found, and what was looked at for it."""

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

    UsageError where the command trains on no tars that Tarmac could look at.
    """
    began = time.monotonic()
    command = Command.of(words, folder)
    case, not_seen = _look(command, recognise(command), is_deep, progress)
    findings = judgement.judge_command(case)
    mended = mend(case, findings, folder)
    findings = [_mended(one, mended, folder) for one in findings]
    report = Report(findings, list(judgement.ruled_out(case, findings)), not_seen)
    return _found(case, report, began, mended)


def preflight_external(
    config: Config,
    own: Preflight,
    words: Sequence[str],
    trainer: Trainer,
    is_deep: bool = False,
    progress: Progress = no_progress,
) -> Preflight:
    """Examine the command that trains a config of recipe external, which `words` are with all options.

    It is looked at as anybody's; what to mend is named by the config's keys. `own` is what `preflight_config`
    said of the same config. UsageError as of `preflight_command`.
    """
    began = time.monotonic() - own.seconds
    command = Command.of(words)
    data = trainer.data(command)
    if data is None or data.tars is None:
        unseen = f"the command: {_nothing_to_look_at(command, trainer.name)}"
        return replace(own, report=replace(own.report, not_seen=[unseen, *own.report.not_seen]))
    case, not_seen = _look(command, trainer, is_deep, progress)
    assert config.train is not None
    given = Command.of(config.train.model.get("command", ()))
    findings = [
        _by_config(one, given) for one in judgement.judge_command(case) if not _is_of_epochs(one, given, case)
    ]
    codes = {one.code for one in own.report.findings}
    findings = [*own.report.findings, *(one for one in findings if one.code not in codes)]
    ruled_out = list(judgement.ruled_out(case, findings))
    return _found(case, Report(findings, ruled_out, [*not_seen, *own.report.not_seen]), began)


def _is_of_epochs(one: Finding, given: Command, case: Case) -> bool:
    """Whether it is about an epoch's samples, which are as many as lie between two checkpoints."""
    option = case.data.samples_option
    return one.code == "count.mismatch" and one.severity == "warning" and not given.has(option)


def _by_config(one: Finding, given: Command) -> Finding:
    """The finding with the config's keys in the place of options that its own command does not give."""
    flags, config, remedy = dict(one.flags or {}), dict(one.config or {}), one.remedy
    for option, key in KEYS.items():
        if not given.has(option):
            remedy = remedy.replace(option, key)
            if option in flags:
                config[key] = flags.pop(option)
    return replace(one, remedy=remedy, flags=flags or None, config=config or None)


def _found(case: Case, report: Report, began: float, mended: Mended | None = None) -> Preflight:
    seconds, seen = time.monotonic() - began, case.survey
    return Preflight(report, case.trainer.name, seconds, seen.looked_at, len(seen.locations), mended)


def _look(command: Command, trainer: Trainer, is_deep: bool, progress: Progress) -> tuple[Case, list[str]]:
    """The tars that a command trains on, what the trainer's own pipeline makes of them, and what was not
    seen. UsageError where it trains on none that Tarmac could look at."""
    data, folder = trainer.data(command), command.folder
    if data is None or data.tars is None:
        raise UsageError(_nothing_to_look_at(command, trainer.name))
    found = survey(_locations(data.tars, folder), is_deep, progress)
    answer, not_seen = None, _unseen(found, is_deep)
    try:
        answer = probe_pipeline(command, trainer, _present(found), list(found.locations) if is_deep else ())
    except NoAnswer as error:
        versions = ", ".join(dict.fromkeys(rule.read_from for rule in trainer.rules(command)))
        not_seen.append(f"{error}; its rules are those of {versions}" if versions else str(error))
    return Case(command, trainer, data, found, answer, _bytes_per_s(found), memory.limits()), not_seen


def preflight_config(config: Config, is_deep: bool = False, unknown: Sequence[UnknownNeed] = ()) -> Preflight:
    """Examine a config of Tarmac's own on the current version of its dataset.

    A deep look also loads some samples, so that memory is measured instead of estimated, which takes torch,
    and reads the weights that were fetched. `unknown` is what its evaluations download by themselves.
    UsageError without a train block, or before the dataset is built.
    """
    began = time.monotonic()
    if config.train is None:
        raise UsageError("train: missing; only a run that trains is looked at, `tarmac verify` checks data")
    options = check_recipe(config.train)
    version = resolve(config.dataset.output)
    manifest = read_manifest(version)
    is_measured = is_deep and not options.is_external
    found = call("tasks.diagnosis.preflight:measured", _arguments(config, version)) if is_measured else None
    case = OwnCase(
        config,
        config.train,
        version,
        manifest,
        available_cores(),
        memory.limits(),
        own_run.room(config.runs),
        None if found is None else memory.LoaderCost(**found["cost"]),
        is_deep,
        None if found is None else found["rows"],
    )
    is_estimated = not is_deep and not options.is_external
    unmeasured = PACKS_UNSEEN if config.train.pack is not None else MEMORY_ESTIMATED
    not_seen = [unmeasured] if is_estimated else []
    unseen = [*(need for need in options.needs if isinstance(need, UnknownNeed)), *unknown]
    not_seen += [f"{need.key}: {need.why}" for need in unseen]
    report = Report(own_run.judge_own_run(case), [], not_seen)
    return Preflight(report, "tarmac", time.monotonic() - began, case.samples, case.shards)


def _arguments(config: Config, version: Path) -> dict[str, Any]:
    return {"config": config.model_dump(mode="json", by_alias=True), "version": str(version)}


def measured(config: dict[str, Any], version: Path) -> dict[str, Any]:
    """What loading costs, by some samples, and how many rows they are packed into; for a child process, as it
    imports torch."""
    from tasks.diagnosis.measure import feed_of, rows_an_epoch
    from tasks.loader import forkserver
    from tasks.models.recipes import load_recipe, module_of

    settings = Config.model_validate(config)
    assert settings.train is not None
    forkserver.fork(module_of(settings.train))
    feed = feed_of(settings, version, load_recipe(settings.train))
    return {"cost": asdict(memory.measure(feed)), "rows": rows_an_epoch(feed)}


def _nothing_to_look_at(command: Command, trainer: str) -> str:
    program = command.program or " ".join(command.words)
    if trainer == "generic":
        return f"{program}: no trainer that Tarmac knows; preflight reads the tars of open_clip's, watch any"
    return f"{program}: trains on no WebDataset tars, which are what preflight looks at; give --train-data"


def _locations(tars: str, folder: Path) -> list[str]:
    """The tars by the trainer's own syntax: braces and `::`."""
    found = []
    for part in tars.split("::"):
        if part.startswith("pipe:"):
            raise UsageError(f"--train-data: {part.split()[0]}… is a command, which preflight does not run")
        found += expand_braces(part, "--train-data")
    return [one if is_remote(one) else os.path.join(folder, one) for one in found]


def _present(found: TarSurvey) -> dict[frozenset[str], list[Example]]:
    return {kind: its for kind, its in found.examples.items() if its}


def _unseen(found: TarSurvey, is_deep: bool) -> list[str]:
    unseen = []
    if not found.is_whole and not is_deep:
        unseen.append(f"{found.samples - found.looked_at:,} more samples (estimated); --deep reads them all")
    elif not is_deep:
        unseen.append("whether every image decodes: a few of each kind were decoded, --deep decodes all")
    return unseen


def _bytes_per_s(found: TarSurvey) -> float | None:
    """How fast the end of the largest tar is read: what the look has not read yet, so not from memory."""
    local = [one for one in found.tars.values() if one.looked_at and not is_remote(one.location)]
    if not local:
        return None
    largest = max(local, key=lambda one: one.size_bytes)
    folder, name = split_location(largest.location)
    began = time.perf_counter()
    read = len(open_store(folder).read_end(name, DRAWN_BYTES))
    return read / max(time.perf_counter() - began, 1e-6)


def _mended(one: Finding, mended: Mended, folder: Path) -> Finding:
    """The finding with the command that mends it, where a config was written for it."""
    if mended.config is None or one.code not in ("keys.mismatch", "keys.partial", "json.conflict"):
        return one
    name = os.path.relpath(mended.config, folder)
    made = ", ".join(f"{target} ← {origin}" for target, origin in mended.members.items())
    have = "; ".join(f"present in {origin.samples:,}" for origin in mended.members.values())
    said = f"   (written; {made}, {have})" if made else "   (written)"
    said += f"; it leaves out {', '.join(mended.left_out)}" if mended.left_out else ""
    command = f"tarmac build {name}"
    return replace(one, command=command, remedy=f"{command}{said}")
