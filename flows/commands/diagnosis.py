"""The commands that say whether a training will run, before it starts, and why it stands still, beside it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from flows.commands.arguments import AsJson, Changes
from flows.commands.output import print_json, say
from tasks.core import screen
from tasks.core.errors import UsageError
from tasks.core.findings import MARKS, Finding
from tasks.core.units import counted, format_duration

if TYPE_CHECKING:
    from tasks.core.schema import Config
    from tasks.diagnosis.preflight import Preflight

CONFIGS = (".yaml", ".yml")
Deep = Annotated[bool, Parameter(help="Read every sample and decode it, instead of some of each kind.")]


def preflight(
    *words: Annotated[str, Parameter(help="A config file; or -- and the command of any training.")],
    deep: Deep = False,
    changes: Changes = None,
    as_json: AsJson = False,
) -> int:
    """Report whether a training will get its first batch, before it starts.

    Of a command the trainer's own data pipeline is run on samples of its
    shards, without a GPU. All causes are reported, and a mended config and
    command are written out. The exit code is 1 when it would not run.

    For example:
      tarmac preflight configs/digits-clip.yaml
      tarmac preflight -- python -m open_clip_train.main --train-data 't-{00..17}.tar'
    """
    from flows.parameters import Overrides, configured
    from tasks.diagnosis.preflight import preflight_command, preflight_config
    from tasks.evaluation import evaluators
    from tasks.models.recipes import options_type

    if not words:
        raise UsageError("tarmac preflight: give a config file, or -- and the command of a training")
    with screen.running("preflight") as progress:
        if len(words) == 1 and words[0].endswith(CONFIGS):
            config = configured(Path(words[0]), Overrides(set=changes or []))
            found = preflight_config(config, deep, evaluators.needs(config))
            if config.train is not None and options_type(config.train.recipe).is_external:
                found = _external(config, found, deep, progress)
        elif changes:
            raise UsageError("tarmac preflight: --set changes a config, and a command has none")
        else:
            found = preflight_command(words, Path.cwd(), deep, progress)
    if as_json:
        print_json(_facts(found))
    else:
        say("\n".join(_lines(found)))
    return 0 if found.report.ok else 1


def _external(config: Config, own: Preflight, deep: bool, progress: screen.Progress) -> Preflight:
    """Of a config that another trainer's command trains: also the command as a run would start it."""
    from tasks.dataset.layout import resolve
    from tasks.diagnosis.preflight import preflight_external
    from tasks.runs import plan
    from tasks.supervision.tuning import left_to_trainer
    from tasks.training.external_command import command_of

    version = resolve(config.dataset.output)
    workers = left_to_trainer(config.loader).workers
    with tempfile.TemporaryDirectory(prefix="tarmac-preflight-") as folder:
        words, trainer = command_of(plan.resolve(config, version), version, workers, Path(folder))
        return preflight_external(config, own, words, trainer, deep, progress)


def _facts(found: Preflight) -> dict[str, object]:
    mended = found.mended
    return {
        **found.report.to_json(),
        "trainer": found.trainer,
        "samples": found.samples,
        "shards": found.shards,
        "mended": {
            "config": None if mended is None or mended.config is None else str(mended.config),
            "command": None if mended is None else mended.command,
            "left_out": [] if mended is None else list(mended.left_out),
        },
    }


def _lines(found: Preflight) -> Iterator[str]:
    report = found.report
    for finding in report.findings:
        yield from _finding_lines(finding)
    if report.findings:
        yield from (f"    not    {entry['code']}: {entry['evidence']}" for entry in report.ruled_out)
    if found.mended is not None and found.mended.command is not None:
        first = "then  " if found.mended.config is not None else "mended"
        yield f"  {first}   {found.mended.command}"
    yield from (f"  not seen: {one}" for one in report.not_seen)
    severities = [finding.severity for finding in report.findings]
    counts = [(severities.count("error"), "error"), (severities.count("warning"), "warning")]
    named = [counted(count, name) for count, name in counts if count]
    seen = "by the manifest" if found.trainer == "tarmac" else "looked at"
    looked = f"{counted(found.samples, 'sample')} of {counted(found.shards, 'shard')} {seen}"
    took = f"{format_duration(found.seconds)}, no GPU used"
    if report.ok:
        yield f"✓ every worker of every rank gets a batch: {', '.join([*named, looked, took])}"
    else:
        yield f"{', '.join([*named, looked, took])}"


def _finding_lines(finding: Finding) -> Iterator[str]:
    """The finding in lines: what is wrong, what was found, by which rule, and the fix."""
    problem = finding.evidence.get("problem", "")
    yield f"{MARKS[finding.severity]} {finding.code:<17} {problem}"
    facts = {**finding.evidence, **finding.where}
    for name in ("found", "first", "least", "largest", "said", "rule"):
        if name in facts:
            yield f"    {name:<6} {facts[name]}"
    yield f"    fix    {finding.remedy}"
