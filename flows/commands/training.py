"""The commands that train: `run`, `train` and `bench`, and the last screen of a run.

`run` first checks on disk alone whether there is anything to do, because Prefect takes longer to start.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from flows.commands.arguments import AsJson, Changes, ConfigFile, Fresh
from flows.commands.output import print_result, say
from tasks.core import screen
from tasks.core.errors import UsageError
from tasks.core.units import counted, duration, near, number, size

if TYPE_CHECKING:
    from flows.stages import Stages
    from tasks.core.schema import Config
    from tasks.diagnosis.staged import StagedFindings
    from tasks.runs.folder import RunFolder


def run(
    config: ConfigFile, /, *, changes: Changes = None, fresh: Fresh = False, as_json: AsJson = False
) -> int:
    """Take a config from raw data to a report of evaluated checkpoints.

    It builds, tunes, trains, evaluates and reports. What is up to date stays
    as it is, and the same command resumes a run that was interrupted.

    For example:
      tarmac run configs/digits-clip.yaml
      tarmac run configs/digits-clip.yaml --set train.steps=1200
    """
    from flows.operate import start
    from flows.parameters import Overrides, configured
    from tasks.core.files import require_writable
    from tasks.dataset.building.freshness import is_up_to_date
    from tasks.supervision.beforehand import require_startable

    overrides = Overrides(set=changes or [])
    settings = configured(config, overrides)
    if settings.train is None:
        raise UsageError(f"{config}: train: is required and missing; for data alone: tarmac build")
    began = time.monotonic()
    require_writable(settings.runs, "runs")
    version = is_up_to_date(settings, for_build=True)
    require_startable(settings, version, fresh=fresh)  # before Prefect, whose start takes longer
    if version is not None and not fresh and (done := finished_run(settings, version)) is not None:
        return show_up_to_date(version, done, began, as_json)
    stages = start.flow(
        "flows.pipeline:pipeline", settings.runs, config=config, overrides=overrides, fresh=fresh
    )
    return show_run(_run_of(stages), stages, began, as_json)


def train(
    config: ConfigFile,
    /,
    *,
    changes: Changes = None,
    fresh: Fresh = False,
    rehearse_preemption: Annotated[
        bool,
        Parameter(help="Only prove, in a few steps, that a preempted training goes on bit for bit."),
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Tune, train, evaluate and report on a dataset that is built.

    The same command resumes a run that was interrupted.

    For example:
      tarmac train configs/digits-clip.yaml --set train.lr=1e-4
      tarmac train configs/digits-clip.yaml --rehearse-preemption
    """
    from flows.operate import start
    from flows.parameters import Overrides, configured
    from tasks.core.files import require_writable
    from tasks.dataset.version.versions import resolve
    from tasks.supervision.beforehand import require_startable

    overrides = Overrides(set=changes or [])
    settings = configured(config, overrides)
    if settings.train is None:
        raise UsageError(f"{config}: train: is required and missing")
    if rehearse_preemption and fresh:
        raise UsageError("--rehearse-preemption, --fresh: choose one; a rehearsal touches no run")
    require_writable(settings.runs, "runs")
    began, version = time.monotonic(), resolve(settings.dataset.output)
    require_startable(settings, version, fresh=fresh)
    if rehearse_preemption:
        return _rehearse(settings, as_json)
    if not fresh and (done := finished_run(settings, version)) is not None:
        return show_up_to_date(version, done, began, as_json)
    stages = start.flow(
        "flows.train:train_flow", settings.runs, config=config, overrides=overrides, fresh=fresh
    )
    return show_run(_run_of(stages), stages, began, as_json)


def _rehearse(config: Config, as_json: bool) -> int:
    """Print what a rehearsal of a preemption showed; the exit code is 1 where it did not go on bit for
    bit."""
    from tasks.dataset.version.versions import resolve
    from tasks.supervision.rehearsal import rehearse

    with screen.running("rehearse") as progress:
        found = rehearse(
            config,
            resolve(config.dataset.output),
            lambda what, status: progress(status.step, status.steps, f"steps, {what}"),
        )
    if as_json:
        print_result(
            ok=found.is_exact,
            steps=found.steps,
            preempted_at=found.preempted_at,
            obeyed_s=round(found.obeyed_s, 2),
            grace_s=found.grace_s,
            difference=found.difference or None,
        )
        return 0 if found.is_exact else 1
    grace = f"{duration(found.obeyed_s)} of the {duration(found.grace_s)} that a stopped training has"
    if found.is_exact:
        how = f"preempted at step {found.preempted_at} of {found.steps}, the training went on bit for bit"
        return say(f"✓ {how}\n  its checkpoint and its end took {grace}")
    say(f"✗ preempted at step {found.preempted_at}, the training went on otherwise: {found.difference}")
    say(f"  its checkpoint and its end took {grace}\n  both trainings: {near(found.folder)}")
    if config.train is not None and not config.train.deterministic:
        say("  next    --set train.deterministic=true: kernels of a GPU give other bits each time without it")
    return 1


def bench(
    config: ConfigFile,
    /,
    *,
    out: Annotated[Path | None, Parameter(help="Where to write the page, instead of among the runs.")] = None,
    changes: Changes = None,
    as_json: AsJson = False,
) -> int:
    """Measure loader settings on a built dataset, choose the best, and name the bottleneck.

    The figures and their plots are written to a page. tarmac run measures by itself.

    For example:
      tarmac bench configs/digits-clip.yaml
    """
    from flows.parameters import Overrides, configured
    from tasks.core.findings import Report
    from tasks.dataset.version.versions import resolve
    from tasks.diagnosis.staged import bench as measure
    from tasks.diagnosis.staged import save_bench_page

    settings = configured(config, Overrides(set=changes or []))
    if settings.train is None:
        raise UsageError("train: missing; only a config that trains has loader settings")
    with screen.running("bench") as progress:
        found = measure(settings, resolve(settings.dataset.output), progress)
    page = out or Path(settings.runs, f"{settings.name}-bench.html")
    save_bench_page(found, settings.name, page)
    if as_json:
        return print_result(**Report([found.limit]).to_json(), **found.to_json(), page=str(page))
    return say("\n".join([*_bench_lines(found), f"  {'page':<12} {page}"]))


def _brief(seconds: float) -> str:
    """Return such as `31.7 s`, `28.1 ms` or `58 µs`."""
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{1e3 * seconds:.1f} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.0f} µs"


def _bench_lines(found: StagedFindings) -> Iterator[str]:
    """Yield where a sample's time goes, the rate per number of workers, the bottleneck, and the settings to
    copy."""
    chosen = found.settings
    unit = chosen.unit.removesuffix("s")
    for name, seconds in ((f"first {unit}", found.first), (f"a {unit}", found.steady)):
        parts = ", ".join(f"{stage} {_brief(value)}" for stage, value in seconds.items())
        yield f"  {name:<12} {_brief(sum(seconds.values())):>9}: {parts}"
    for one in chosen.measurements:
        keys = ("workers", "prefetch", "reader")
        mark = "✓" if all(getattr(one, key) == getattr(chosen, key) for key in keys) else " "
        ahead = f"{one.prefetch} ahead" if one.workers else ""
        rate = f"{one.samples_per_s:>9,.0f} {chosen.unit}/s"
        memory = f"  {size(one.memory_bytes)}" if one.memory_bytes is not None else ""
        first = f"first batch {one.first_batch_s:.2f} s"
        busy = f"  {one.cores_busy:.1f} cores" if one.cores_busy is not None else ""
        setting = f"{ahead:<8} {one.reader:<9}"
        yield f"{mark} {counted(one.workers, 'worker'):<12} {rate}  {setting}  {first}{memory}{busy}"
    yield f"  {'sustained':<12} {found.sustained:>9,.0f} {chosen.unit}/s  slowest second {found.slowest:,.0f}"
    if chosen.taken_per_s is not None:
        taken = f"{number(chosen.taken_per_s, 2):>9} {chosen.unit}/s"
        yield f"  {'training':<12} {taken} with batches that cost nothing"
    if chosen.headspace is not None:
        yield f"  {'headspace':<12} {chosen.headspace}"
    yield from (f"  {'shuffle':<12} {line}" for line in found.shuffle_lines())
    yield from found.limit.lines()
    yield f"{chosen.to_config()}   # {chosen.reason}"


def finished_run(settings: Config, version: Path) -> RunFolder | None:
    """Return the finished run of a config on the version that its build would make, found on disk alone; None
    when any stage after the build has something to do."""
    from tasks.core.config import dump
    from tasks.runs.plan import locate, resolve_for
    from tasks.supervision.status import look_at_run

    run = locate(settings, version)
    if not all(path.exists() for path in (run.record, run.loader, run.config)):
        return None
    if run.config.read_text(encoding="utf-8") != dump(resolve_for(run, settings, version)):
        return None  # what does not shape the weights has changed, such as the evaluations asked for
    return run if look_at_run(run).is_complete and is_reported(run) else None


def is_reported(run: RunFolder) -> bool:
    """Whether the wandb run and the report hold everything that the run's folder has."""
    from tasks.reporting.report import is_current
    from tasks.supervision.status import config_of
    from tasks.supervision.tracking import gathering

    is_gathered = config_of(run).track.mode == "disabled" or gathering.is_complete(run)
    return is_gathered and is_current(run)


def show_up_to_date(version: Path, run: RunFolder, began: float, as_json: bool) -> int:
    """Print the screen of a pipeline of which every stage was up to date; returns its exit code."""
    from tasks.dataset.version.manifest import read_manifest
    from tasks.reporting.left_out import left_out

    if not as_json:
        samples = read_manifest(version).accepted
        summary = f"up to date: version {version.name}, {samples:,} samples, run {run.name}"
        screen.finished("pipeline", summary, time.monotonic() - began)
        if skipped := left_out(run):
            screen.warn(skipped)
    return show_run(run, [], began, as_json)


def show_run(run: RunFolder, stages: Stages, began: float, as_json: bool) -> int:
    """Print the headline and the paths of a run; returns 1 if the training has found an error of its own.
    Failures were raised before."""
    from tasks.dataset.examples import is_example
    from tasks.evaluation.results import full_name
    from tasks.reporting.report import read_headline
    from tasks.runs.metrics import finite
    from tasks.supervision.status import config_of, look_at_run
    from tasks.supervision.tracking import gathering

    first, doubts = read_headline(run), look_at_run(run).doubts
    is_ok = all(finding.severity != "error" for finding in doubts)
    if as_json:
        print_result(
            ok=is_ok,
            findings=[asdict(finding) for finding in doubts],
            run=run.id,
            folder=str(run.path),
            report=str(run.report),
            metrics={}
            if first is None
            else {full_name(first.result.task, first.metric): finite(first.value)},
            stages=[stage.to_json() for stage in stages],
            seconds=round(time.monotonic() - began, 2),
        )
        return 0 if is_ok else 1
    headline = str(first) if first is not None else "No evaluation was asked for."
    lines = ["", headline]
    lines += [f"  {one.line}" for one in doubts]
    if doubts:
        lines.append(f"  next    tarmac doctor --run {run.handle}")
    lines.append(f"  report  {near(run.report)}")
    if run.best.exists():
        lines.append(f"  model   {near(run.best)}")
    if upload := gathering.upload(run):
        lines.append(f"  wandb   {upload}")
    if all(is_example(source.path) for source in config_of(run).dataset.all_sources):
        lines.append("Your own data: tarmac init PATH")
    say("\n".join(lines))
    return 0 if is_ok else 1


def _run_of(stages: Stages) -> RunFolder:
    from tasks.runs.folder import RunFolder
    from tasks.train import TrainedRun

    return RunFolder(next(one.details.run for one in stages if isinstance(one.details, TrainedRun)))
