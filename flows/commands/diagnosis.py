"""The commands on whether a training works: `preflight` before it starts, `doctor` and `watch` beside it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from flows.commands.arguments import AsJson, Changes, RunsFolder
from flows.commands.output import answer, print_json
from tasks.core import screen
from tasks.core.errors import UsageError
from tasks.core.findings import MARKS, Finding
from tasks.core.units import counted, format_duration, near

if TYPE_CHECKING:
    from tasks.core.schema import Config
    from tasks.diagnosis.preflight import Preflight
    from tasks.diagnosis.watch import WatchResult

CONFIGS = (".yaml", ".yml")
Deep = Annotated[bool, Parameter(help="Read and decode every sample, instead of some of each kind.")]


def preflight(
    *words: Annotated[str, Parameter(help="A config file; or -- and the command of any training.")],
    deep: Deep = False,
    changes: Changes = None,
    as_json: AsJson = False,
) -> int:
    """Report whether a training will get its first batch, before it starts.

    For a command, the trainer's own data pipeline is run on samples of its
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
                found = _preflight_external(config, found, deep, progress)
        elif changes:
            raise UsageError("tarmac preflight: --set changes a config, and a command has none")
        else:
            found = preflight_command(words, Path.cwd(), deep, progress)
    return answer(as_json, lambda: _preflight_facts(found), _preflight_lines(found), found.report.ok)


def _preflight_external(config: Config, own: Preflight, deep: bool, progress: screen.Progress) -> Preflight:
    """Add the preflight of the other trainer's command that a run of this config would start."""
    from tasks.dataset.version.layout import resolve
    from tasks.diagnosis.preflight import preflight_external
    from tasks.runs import plan
    from tasks.supervision.attempt.tuning import left_to_trainer
    from tasks.training.external_command import command_of

    version = resolve(config.dataset.output)
    workers = left_to_trainer(config.loader).workers
    with tempfile.TemporaryDirectory(prefix="tarmac-preflight-") as folder:
        words, trainer = command_of(plan.resolve(config, version), version, workers, Path(folder))
        return preflight_external(config, own, words, trainer, deep, progress)


def _preflight_facts(found: Preflight) -> dict[str, object]:
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


def _preflight_lines(found: Preflight) -> Iterator[str]:
    report = found.report
    for finding in report.findings:
        yield from _problem_lines(finding)
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
    summary = ", ".join([*named, looked, format_duration(found.seconds), "no GPU used"])
    yield f"✓ every worker of every rank gets a batch: {summary}" if report.ok else summary


def _problem_lines(finding: Finding) -> Iterator[str]:
    """Yield what is wrong, what was found, by which rule, and the fix."""
    problem = finding.evidence.get("problem", "")
    yield f"{MARKS[finding.severity]} {finding.code:<17} {problem}"
    facts = {**finding.evidence, **finding.where}
    for name in ("found", "first", "least", "largest", "said", "rule"):
        if name in facts:
            yield f"    {name:<6} {facts[name]}"
    yield f"    fix    {finding.remedy}"


def doctor(
    *,
    pid: Annotated[int | None, Parameter(help="The training's process, or its launcher's.")] = None,
    run: Annotated[str | None, Parameter(help="A run: its folder, or the start of its id or name.")] = None,
    log: Annotated[
        Path | None, Parameter(help="The training's output: alone, or beside --pid where it is piped.")
    ] = None,
    runs: RunsFolder = Path("runs"),
    out: Annotated[
        Path | None,
        Parameter(help="Where to save the page (default: the folder of the run, or of the runs)."),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Explain why a training hangs or is slow, with evidence.

    It observes the process and its workers for five seconds, without stopping
    them, whichever trainer it is. The exit code is 1 when a cause is an error.

    For example:
      tarmac doctor --pid 50277
      tarmac doctor --run 3f9a
      tarmac doctor --log train.log
    """
    from tasks.diagnosis import examination as examinations

    folder = runs if runs.is_dir() else Path(tempfile.gettempdir())  # none is made beside another trainer
    if pid is not None:
        done = examinations.examine_process(pid, log)
    elif run is not None:
        from tasks.diagnosis.run_doctor import examine_run
        from tasks.runs.folder import find

        found = find(runs, run)
        folder, done = found.path, examine_run(found)
    elif log is not None:
        done = examinations.examine_log(log)
    else:
        raise UsageError("tarmac doctor: name what to examine: --pid PID, --run RUN or --log FILE")
    page = out or folder / f"doctor-{done.name}.html"
    examinations.save_doctor_page(done, page)
    saved = f"SAVED      {near(page)} (redacted; safe to attach to a bug report)"
    lines = chain(examinations.text_of(done), [saved])
    return answer(as_json, lambda: {**done.to_json(), "page": str(page)}, lines, done.verdict.report.ok)


def watch(
    *words: Annotated[str, Parameter(help="-- and the command of any training.")],
    progress: Annotated[
        str | None,
        Parameter(
            metavar="PATTERN",
            help="A regular expression of lines that show a step; groups done, total and loss are numbers.",
        ),
    ] = None,
    stop: Annotated[
        bool, Parameter(help="End the training when a stall has a cause that is an error.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Run any training, and explain why when it stalls.

    Its output passes through unchanged, and so do signals and its exit code,
    which becomes 1 if it ended with 0 without having trained, or was
    stopped by --stop.

    For example:
      tarmac watch -- python -m open_clip_train.main --train-data 't-{00..17}.tar'
      tarmac watch --progress 'it (?P<done>[0-9]+)' -- ./train.sh
    """
    from tasks.diagnosis.watch import to_stderr
    from tasks.diagnosis.watch import watch as run

    if not words:
        raise UsageError("tarmac watch: give -- and the command of a training")
    screen.end_passing()  # the terminal is the training's from here on
    done = run(words, Path.cwd(), to_stderr, pattern=progress, stops=stop, output_to_stderr=as_json)
    if as_json:
        print_json(_watch_facts(done))
    else:
        to_stderr("\n".join(_watch_lines(done)))
    return done.exit_code


def _watch_facts(done: WatchResult) -> dict[str, object]:
    from tasks.runs.metrics import finite

    return {
        **done.report.to_json(),
        "ok": done.exit_code == 0,
        "exit_code": done.exit_code,
        "stopped": done.was_stopped,
        "trainer": done.trainer,
        "steps": done.steps,
        "loss": finite(done.loss),
        "seconds": round(done.seconds, 2),
        "checkpoint": done.checkpoint,
        "stalls": [one.to_json() for one in done.stalls],
        "goodput": done.goodput.to_json(),
    }


def _watch_lines(done: WatchResult) -> Iterator[str]:
    """Yield how the training ended, for standard error. If it was stopped, the verdict is repeated, because
    the training has printed more since."""
    from tasks.diagnosis.examination import verdict_of

    shown = {one.code for stall in done.stalls for one in stall.verdict.report.findings}
    for one in done.report.findings:
        if one.code not in shown:
            mark = "✗" if one.severity == "error" else "!"
            yield f"{mark} {one.code:<17} {one.evidence['what']}"
            yield f"    fix    {one.remedy}"
    saved = f", {near(Path(done.checkpoint))} written" if done.checkpoint is not None else ""
    steps = f"{counted(done.steps, 'line')} of progress" if done.steps else "no line of progress"
    loss = f", loss {done.loss:.4g}" if done.loss is not None else ""
    facts = f"{steps}{loss}{saved}, {format_duration(done.seconds)}"
    if done.was_stopped:
        yield f"✗ watch: it stopped the training: {facts}"
        yield from verdict_of(done.stalls[-1])
    elif done.exit_code == 0 and done.doubts:
        yield f"! watch: it ended, and {' and '.join(done.doubts)}: exit code 0, {facts}"
    elif done.exit_code == 0 and (done.steps or done.checkpoint is not None):
        yield f"✓ watch: it ended well: exit code 0, {facts}"
    elif done.exit_code == 0:
        yield f"· watch: exit code 0, {facts}: nothing shows whether it trained"
        yield "    fix    --progress PATTERN names the lines that show a step"
    else:
        yield f"✗ watch: exit code {done.exit_code}, {facts}"
    if done.steps and not done.was_stopped:
        yield f"  {done.goodput}"
