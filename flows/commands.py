"""The commands behind `tarmac`, one function a name in `flows.cli.COMMANDS`; each returns its exit code.

A command that a person waits for calls the library directly. Only run, build, train and evaluate are flows,
and they find out first whether there is anything to do, because Prefect takes longer to start than that.
"""

from __future__ import annotations

import time
from argparse import Namespace
from pathlib import Path

from flows import start
from flows.output import print_json, say
from flows.parameters import Overrides, configured
from tasks.core import screen
from tasks.core.errors import TarmacError, UsageError
from tasks.core.files import require_writable
from tasks.core.units import counted


def run(arguments: Namespace) -> int:
    """The whole pipeline."""
    from flows import outcome

    settings = configured(Path(arguments.config), Overrides(set=arguments.set))
    if settings.train is None:
        raise UsageError(f"{arguments.config}: train: is required and missing; for data alone: tarmac build")
    began = time.monotonic()
    done = None if arguments.fresh else outcome.of_finished(settings)
    if done is not None:
        return outcome.show_up_to_date(done, began, arguments.json)
    require_writable(settings.runs, "runs")
    stages = start.flow("pipeline", arguments, settings)
    return outcome.show(settings, stages, began, arguments.json)


def train(arguments: Namespace) -> int:
    """Training and evaluation on a built dataset."""
    from flows import outcome

    settings = configured(Path(arguments.config), Overrides(set=arguments.set))
    if settings.train is None:
        raise UsageError(f"{arguments.config}: train: is required and missing")
    require_writable(settings.runs, "runs")
    began = time.monotonic()
    stages = start.flow("train", arguments, settings)
    return outcome.show(settings, stages, began, arguments.json)


def evaluate(arguments: Namespace) -> int:
    """What is missing, or what `--step` and `--task` name, again."""
    from flows import outcome
    from tasks.runs.folder import find
    from tasks.supervision.status import config_of, look

    folder = find(Path(arguments.runs), arguments.run)
    asked = look(folder).evaluations
    if not asked:
        raise UsageError(
            f"evaluate: the config of {folder.name} asks for none; add an evaluate block and run it again"
        )
    chosen = [
        entry
        for entry in asked
        if arguments.step in (None, entry.step) and arguments.task in (None, entry.task)
    ]
    if not chosen:
        there = ", ".join(f"step {entry.step} {entry.task}" for entry in asked)
        raise UsageError(f"--step, --task: {folder.name} has no such evaluation; it has {there}")
    again = chosen if arguments.step is not None or arguments.task is not None else []
    began = time.monotonic()
    stages = start.evaluation(folder, [(entry.step, entry.task) for entry in again])
    return outcome.show(config_of(folder), stages, began, arguments.json)


def bench(arguments: Namespace) -> int:
    """Loader settings, measured and chosen; kept nowhere."""
    from tasks.dataset.versions import resolve
    from tasks.diagnosis.bench import tune

    settings = configured(Path(arguments.config), Overrides(set=arguments.set))
    with screen.running("bench") as progress:
        chosen = tune(settings, resolve(settings.dataset.output), progress)
    if arguments.json:
        return print_json({"ok": True, "findings": [], **chosen.model_dump(mode="json")})
    for one in chosen.measurements:
        mark = "✓" if one.workers == chosen.workers else " "
        rate = f"{one.samples_per_s:>9,.0f} samples/s"
        say(f"{mark} {counted(one.workers, 'worker'):<10} {rate}  first batch {one.first_batch_s:.2f} s")
    say(f"loader: {{workers: {chosen.workers}, prefetch: {chosen.prefetch}}}   # {chosen.reason}")
    return 0


def status(arguments: Namespace) -> int:
    """What runs, and what needs somebody."""
    from flows import listing

    return listing.show(Path(arguments.runs), arguments.json)


def cancel(arguments: Namespace) -> int:
    """Stop a run at its next step."""
    from tasks.core.lock import holder_of
    from tasks.runs.folder import find
    from tasks.runs.record import OVER
    from tasks.supervision.launch import cancel as ask
    from tasks.supervision.status import look

    folder = find(Path(arguments.runs), arguments.run)
    holder = holder_of(folder.lease)
    state = look(folder).state
    if state == "planned" and holder is not None and holder.is_alive():
        raise TarmacError(f"{folder.name} is still being prepared by {holder}; end that command with Ctrl-C")
    obeys = ask(folder)
    text = "is not running"
    if obeys and state in OVER:
        text = f"stops evaluating; tarmac evaluate {folder.handle} does what is missing"
    elif obeys:
        text = "stops at its next step, with a checkpoint"
    if arguments.json:
        return print_json({"ok": True, "findings": [], "run": folder.name, "stopping": obeys})
    say(f"{folder.name} {text}")
    return 0


def gather(arguments: Namespace) -> int:
    """Results into the wandb run."""
    from tasks.runs.folder import find
    from tasks.supervision import gathering
    from tasks.supervision.status import agent_is_alive

    folder = find(Path(arguments.runs), arguments.run)
    is_going_on = agent_is_alive(folder)
    if is_going_on and arguments.sync:
        raise TarmacError(f"{folder.name} goes on, and its gatherer with it; upload it once it has ended")
    if is_going_on:
        gathering.accompany(folder)
    else:
        gathering.complete(folder)
    if arguments.sync:
        gathering.sync(folder)
    evaluations = counted(len(gathering.results_of(folder)), "evaluation")
    upload = gathering.upload(folder)
    if arguments.json:
        return print_json(
            {
                "ok": True,
                "findings": [],
                "run": folder.name,
                "wandb": str(folder.wandb),
                "going_on": is_going_on,
                "uploaded": upload is None and not is_going_on,
            }
        )
    if is_going_on:
        say(f"{folder.name} goes on, and its own gatherer is at work: {evaluations} so far, {folder.wandb}")
        return 0
    say(f"✓ gathered {evaluations} and the metrics: {folder.wandb}")
    if upload is not None:
        say(f"  {upload}")
    return 0


def report(arguments: Namespace) -> int:
    """Write a run's report again."""
    from tasks.reporting.report import write_report
    from tasks.runs.folder import find

    page = write_report(find(Path(arguments.runs), arguments.run))
    return print_json({"ok": True, "findings": [], "report": str(page)}) if arguments.json else say(str(page))


def deploy(arguments: Namespace) -> int:
    """Register flows and schedules."""
    from flows import environment

    environment.prepare(quiet=True)
    from flows.deployments import deploy as register

    made = register([Path(path) for path in arguments.configs])
    if arguments.json:
        return print_json({"ok": True, "findings": [], "deployments": [entry.__dict__ for entry in made]})
    for entry in made:
        say(f"✓ {entry.name:<32} {entry.state:<10} {entry.schedule or 'on demand':<12} {entry.url}")
    return 0
