"""Makes a run's folder out of a config and a version of the data; planning twice finds the same folder.

The config kept in the folder is complete: defaults filled in, epochs turned into steps, paths absolute, so
that the processes of a run need nothing but the folder, wherever they start.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tasks.core import config as configs
from tasks.core import screen
from tasks.core.errors import TarmacError, UsageError
from tasks.core.files import digest, fsync_path, write_atomic, write_json
from tasks.core.lock import Held, Lease, pin
from tasks.core.quarantine_file import Quarantined, to_text
from tasks.core.schema import Config, TaskSpec, Train, TrainEngine
from tasks.core.schema.recipes import defaults_of
from tasks.core.stores import absolute_location
from tasks.core.units import near
from tasks.runs import record
from tasks.runs.checkpoints import list_checkpoints, newest_sound
from tasks.runs.data import (
    current_of,
    dataset_of,
    datasets_of,
    left_out_of_all,
    quarantine_digest,
    train_samples,
    version_path,
)
from tasks.runs.folder import ARCHIVE, RunFolder
from tasks.runs.followed import Followed, read_followed
from tasks.runs.gpus import compute_in_bf16, trains_on_gpus
from tasks.runs.identity import DataRef, identity, run_id, weight_files
from tasks.runs.record import RunRecord

WRITTEN_S = 15.0
"""How long the holder of a new run's lease may take to write its record."""
POLL_S = 0.1


def locate(config: Config, version: Path, followed: Followed | None = None) -> RunFolder:
    """Return the folder of this config and data, whether or not it is there yet; writes nothing.

    With `followed` it is that of the run which evaluates checkpoints of another trainer.
    """
    run, *_ = _located(config, version, followed)
    return run


def _located(
    config: Config, version: Path, followed: Followed | None = None
) -> tuple[RunFolder, Config, list[DataRef], list[Quarantined], dict[str, Any]]:
    """The run's folder, its resolved config, its data, the samples that it leaves out, and its identity."""
    resolved = resolve(config if followed is None else _without_training(config), version)
    data = datasets_of(resolved, version)
    quarantined = left_out_of_all(data)
    fields = identity(resolved, data, quarantine_digest(quarantined))
    if followed is not None:
        fields = {**fields, "follows": str(followed.path)}
        fields["digest"] = digest({name: value for name, value in fields.items() if name != "digest"})
    run = RunFolder(resolved.runs / f"{config.name}-{run_id(fields)}")
    return run, resolved, data, quarantined, fields


def _without_training(config: Config) -> Config:
    """Return the config of a run that follows another trainer, which starts from no weights of its own and
    removes no checkpoint."""
    train, evaluate = config.train, config.evaluate
    assert train is not None and evaluate is not None  # or there is nothing to evaluate by
    return config.model_copy(
        update={
            "train": train.model_copy(update={"keep": None}),
            "evaluate": evaluate.model_copy(update={"start": False}),
        }
    )


def plan(
    config: Config, version: Path, *, fresh: bool = False, followed: Followed | None = None
) -> RunFolder:
    """Return the run's folder with its record, its config and the data's quarantine, and pin the version.

    With `followed` the run trains nothing and evaluates checkpoints of another trainer.

    An existing run keeps its record, except for the folders of the data; its config follows the given one
    (they differ only in keys that do not shape the weights) unless an agent works on it, of which a warning
    is printed. `fresh` moves an existing run to `runs/archive/` first; TarmacError when it is in use.
    UsageError for evaluations of steps that an existing run has passed without a checkpoint.
    """
    run, resolved, data, quarantined, fields = _located(config, version, followed)
    if fresh and run.record.exists():
        _archive(run)
    resolved = _as_it_began(run, resolved)
    try:
        run.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"runs: {run.path} cannot be made: {error.strerror}") from None
    try:
        with Lease(run.lease):
            _write(run, resolved, fields, data, quarantined, followed)
    except Held as held:
        _leave_alone(run, resolved, held)
        if followed is not None and followed != read_followed(run):
            screen.warn(
                f"{run.name} is at work without this --until-step; tarmac cancel {run.handle} ends it"
            )
    pinned: set[Path] = set()
    for mine in (*(version_path(ref) for ref in data), *_evaluated_on(resolved)):
        dataset = dataset_of(mine)
        if dataset is not None and dataset not in pinned:
            pin(dataset, run.id, mine.resolve().name, run.path)
            pinned.add(dataset)
    return run


def _evaluated_on(config: Config) -> list[Path]:
    """The versions of other datasets that the tasks of a resolved config are evaluated on."""
    tasks = config.evaluate.tasks if config.evaluate is not None else []
    return [Path(given) for task in tasks if isinstance(given := task.arguments.get("dataset"), str)]


def resolve_for(run: RunFolder, config: Config, version: Path, followed: Followed | None = None) -> Config:
    """Return the config as `plan` writes it into the folder of a run, which may be there already."""
    return _as_it_began(run, resolve(config if followed is None else _without_training(config), version))


def _as_it_began(run: RunFolder, config: Config) -> Config:
    """Return the config with what the run's evaluations began with: the versions of other datasets, on which
    all of its checkpoints are judged, and no step 0 where it has passed that without saving it."""
    evaluate = config.evaluate
    if evaluate is None or not run.config.exists():
        return config
    before = configs.reload(run.config).evaluate
    known = {} if before is None else {task.name: task.arguments.get("dataset") for task in before.tasks}
    tasks = [_on_known_version(task, known.get(task.name)) for task in evaluate.tasks]
    is_past = (
        not run.followed.exists()
        and bool(list_checkpoints(run))
        and not (run.checkpoint(0).exists() or run.evaluation(0, "any").parent.exists())
    )
    start = False if is_past and config.evaluates_start else evaluate.start
    return config.model_copy(
        update={"evaluate": evaluate.model_copy(update={"tasks": tasks, "start": start})}
    )


def _on_known_version(task: TaskSpec, known: Any) -> TaskSpec:
    given = task.arguments.get("dataset")
    if not isinstance(given, str) or not isinstance(known, str) or not Path(known).is_dir():
        return task
    is_of_same = dataset_of(Path(known)) == dataset_of(Path(given))
    return task.model_copy(update={"dataset": known}) if is_of_same else task


def command_to_resume(run: RunFolder) -> str:
    """Return the command that resumes the run, or follows on, from the folder where this process is."""
    return shlex.join(["tarmac", "resume", run.name if run.is_here else near(run.path)])


def changes_to_resume(run: RunFolder) -> list[str]:
    """Return the changes of its own config, as for `--set`, with which the run is planned again where it lies
    and on its own versions, even where newer ones are current by now.

    UsageError where that makes another run, as when the folder was renamed.
    """
    own, data = configs.reload(run.config), record.load_record(run).data
    changes = []
    if own.runs.resolve() != run.path.parent.resolve():
        changes.append(f"runs={run.path.parent.resolve()}")
    if not all(map(_is_current, data)):
        changes += _on_versions(own, data)
    config = configs.load_config(run.config, changes)
    made = locate(config, version_path(data[0]), read_followed(run))
    if made.path.resolve() != run.path.resolve():
        raise UsageError(
            f"RUN: {run.name} cannot go on: its config makes {made.name} now, because the folder was renamed "
            f"or other samples are left out of the data; tarmac train {near(run.config)} starts that one"
        )
    return changes


def _is_current(ref: DataRef) -> bool:
    version = version_path(ref)
    dataset = dataset_of(version)
    return dataset is None or (dataset / "current").resolve() == version.resolve()


def _on_versions(config: Config, data: Sequence[DataRef]) -> list[str]:
    """The changes that name the versions themselves in the place of their datasets."""
    changes = [f"dataset.output={version_path(data[0])}"]
    if config.train is not None and config.train.data:
        known = {
            os.path.realpath(one): version_path(ref)
            for ref in data
            for one in (ref.dataset, version_path(ref))
        }
        shares = [
            {"dataset": str(known.get(os.path.realpath(one.dataset), one.dataset)), "weight": one.weight}
            for one in config.train.data
        ]
        changes.append(f"train.data={json.dumps(shares)}")
    return changes


def resolve(config: Config, version: Path) -> Config:
    """Return the config with epochs as steps and absolute paths."""
    source = config.dataset
    sources = [
        entry.model_copy(update={"path": absolute_location(entry.path)}) for entry in source.all_sources
    ]
    single = source.source is not None
    dataset = source.model_copy(
        update={
            "output": _absolute(source.output),
            "source": sources[0] if single else None,
            "sources": None if single else sources,
        }
    )
    train = None if config.train is None else _resolved(config.train, config.engine.train, version)
    evaluate = config.evaluate
    if evaluate is not None:
        tasks = [_on_its_version(task, config, version) for task in evaluate.tasks]
        folder = None if evaluate.results_dir is None else _absolute(evaluate.results_dir)
        evaluate = evaluate.model_copy(update={"tasks": tasks, "results_dir": folder})
    changes = {"runs": _absolute(config.runs), "dataset": dataset, "train": train, "evaluate": evaluate}
    return config.model_copy(update=changes)


def _on_its_version(task: TaskSpec, config: Config, version: Path) -> TaskSpec:
    """Return the task with the version that its dataset has now: all checkpoints are judged on one."""
    given = task.arguments.get("dataset")
    if not isinstance(given, str):
        return task
    is_own = os.path.abspath(given) == os.path.abspath(config.dataset.output)
    found = version if is_own else current_of(Path(given))
    if found is None:
        raise UsageError(
            f"evaluate.tasks: {task.name}: dataset: {given} holds no version of a dataset; build it first"
        )
    return task.model_copy(update={"dataset": str(found.resolve())})


def require_checkpoints(run: RunFolder, config: Config) -> None:
    """Raise UsageError for an evaluation without a result whose checkpoint will not appear any more.

    `config` is a resolved one, which need not be the one that the run had before.
    """
    if config.evaluate is None or config.train is None or config.train.steps is None:
        return
    saved = [checkpoint.step for checkpoint in list_checkpoints(run)]
    lacking = [
        step
        for step in config.evaluate.steps(config.train.steps)
        for task in config.evaluate.tasks
        if step < max(saved, default=0) and step not in saved and not run.evaluation(step, task.name).exists()
    ]
    reached = newest_sound(run) if lacking else None
    if reached is not None and lacking[0] < reached.step:
        raise UsageError(
            f"evaluate.every: {config.evaluate.every} asks for step {lacking[0]}, which {run.name} has "
            f"passed without a checkpoint (it has {', '.join(map(str, saved))}); choose a multiple of what "
            "train.checkpoint_every was, or train anew with --fresh",
            field="fresh",
        )


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))


def _resolved(train: Train, engine: TrainEngine, version: Path) -> Train:
    """Return the block as it will be trained, with its steps and with absolute paths."""
    shares = [share.model_copy(update={"dataset": _absolute(share.dataset)}) for share in train.data or ()]
    changes: dict[str, Any] = {"data": shares} if shares else {}
    weights = train.model.get("pretrained")
    if weight_files(train.model):
        changes["model"] = {**train.model, "pretrained": os.path.abspath(str(weights))}
    elif isinstance(weights, str) and os.path.isabs(weights):
        raise UsageError(
            f"train.model.pretrained: there is no file {weights}; the run's id depends on its content"
        )
    if train.epochs is not None:
        samples = train_samples(version)
        steps = train.epochs * samples // train.batch_size
        if steps < 1:
            raise UsageError(
                f"train.epochs: {train.epochs} epochs of {samples} samples make no "
                f"batch of {train.batch_size}; lower train.batch_size"
            )
        changes |= {"steps": steps, "epochs": None}
    return settled(train.model_copy(update=changes), engine)


def settled(train: Train, engine: TrainEngine) -> Train:
    """Return the block with the precision that `auto` stands for on the engine's device, and with the
    recipe's own warm-up where the steps are known."""
    changes: dict[str, Any] = {}
    if train.precision == "auto":
        has_bf16 = trains_on_gpus(engine) and (engine.kind == "slurm" or compute_in_bf16())
        changes["precision"] = "bf16" if has_bf16 else "fp32"
    if train.warmup is None:
        changes["warmup"] = defaults_of(train.recipe, train.model, train.steps)["warmup"]
    return train.model_copy(update=changes)


def _write(
    run: RunFolder,
    config: Config,
    fields: dict[str, Any],
    data: list[DataRef],
    quarantined: list[Quarantined],
    followed: Followed | None,
) -> None:
    text = configs.dump(config)
    if followed is None:
        require_checkpoints(run, config)
    elif not run.followed.exists() or read_followed(run) != followed:
        write_json(run.followed, followed.model_dump(mode="json"))
    if run.record.exists():
        there = record.load_record(run)
        if there.data != data:
            record.save_record(run, there.having(data=data))
    if quarantined and not run.quarantine.exists():
        write_atomic(run.quarantine, to_text(quarantined))
    if not run.config.exists() or run.config.read_text(encoding="utf-8") != text:
        write_atomic(run.config, text)
    if not run.record.exists():
        planned = RunRecord(
            id=run_id(fields),
            name=config.name,
            identity=fields,
            data=data,
            state="planned",
            wandb_id=f"{run_id(fields)}-{secrets.token_hex(4)}",
        )
        record.save_record(run, planned)


def _leave_alone(run: RunFolder, config: Config, held: Held) -> None:
    """Wait until the run's holder has written its record, and warn of the keys of `config` that the run
    lacks."""
    deadline = time.monotonic() + WRITTEN_S
    while not run.record.exists():
        if time.monotonic() > deadline:
            raise held
        time.sleep(POLL_S)
    kept, given = (one.model_dump(mode="json") for one in (configs.reload(run.config), config))
    changed = configs.differing_keys(kept, given)
    if changed:
        keys = ", ".join(changed)
        screen.warn(f"{run.name} is at work without these changes: {keys}; run it again when it has ended")


def _archive(run: RunFolder) -> None:
    target = run.path.parent / ARCHIVE / f"{run.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    target.parent.mkdir(parents=True, exist_ok=True)
    move_away(run, target)


def move_away(run: RunFolder, target: Path) -> None:
    """Rename a run's folder under its lease, so that no agent starts in it meanwhile; TarmacError while one
    works in it."""
    try:
        with Lease(run.lease):
            os.rename(run.path, target)
            (target / run.lease.name).unlink(missing_ok=True)
    except Held as held:
        raise TarmacError(
            f"{run.name} is in use ({held}); end it first: tarmac cancel {run.handle}"
        ) from None
    fsync_path(run.path.parent)
