"""The command `plan`: what a run would do, why, and what it needs, in lines for people."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.commands.arguments import AsJson, Changes, ConfigFile
from flows.commands.output import print_result, say, with_config
from tasks.core import screen
from tasks.core.errors import TarmacError, UsageError, first_line
from tasks.core.units import count, counted, duration, near, percent, size

if TYPE_CHECKING:
    from tasks.core.schema import Config, Train
    from tasks.dataset.building.forecast import ConversionWork, Forecast, ReadingWork
    from tasks.dataset.version.quarantine import Quarantined
    from tasks.runs.footprint import Footprint

LISTED = 3
"""The number of changed containers that a plan names."""


def plan(config: ConfigFile, /, *, changes: Changes = None, as_json: AsJson = False) -> int:
    """Show what a run would do, why, and what it needs; write nothing.

    It lists the sources and converts 20 samples in a temporary folder to
    estimate size and time. The exit code is 1 if the build would stop.

    For example:
      tarmac plan configs/photos.yaml --set train.batch_size=512
    """
    from flows.parameters import Overrides, configured
    from tasks.dataset.building.forecast import forecast
    from tasks.dataset.version.quarantine import by_split
    from tasks.runs.footprint import Footprint

    settings = configured(config, Overrides(set=changes or []))
    if settings.schedule is not None and find_spec("prefect") is not None:  # which a plan does not need
        from flows.operate.offers import of_config

        of_config(settings, config)  # UsageError for a schedule that Prefect cannot read
    with screen.running("plan") as progress:
        build = forecast(settings, progress)
    most = _most_samples(build)
    training, refused = None, None
    try:
        training = training_left(settings, build.up_to_date, most)
    except UsageError as error:
        refused = error if build.stops is None else None  # what stops the build comes first
    taken = taken_of_gpu(settings, training)
    if as_json:
        print_result(
            ok=build.stops is None and refused is None,
            **({"error": str(refused)} if refused is not None else {}),
            build={**asdict(build), "stops": build.stops},
            left_out=by_split(_left_out(settings, build.up_to_date)),
            train=training.settings.model_dump(mode="json") if training else None,
            training=training.summary if training else None,
            doubts=training.doubts if training else [],
            evaluations=evaluation_line(settings, training.settings) if training else None,
            pace=_pace_json(settings, training),
            rank=asdict(taken) if isinstance(taken, Footprint) else None,
        )
        return 2 if refused is not None else 0 if build.stops is None else 1
    lines = list(_build_lines(settings, build))
    if refused is not None:
        say(with_config("\n".join(lines), config, changes))
        raise refused
    if training is not None:
        lines.append(f"train     {training.summary}")
        lines += [f"          {line}" for line in setting_lines(settings, training.settings)]
        if training.is_left:
            lines += [f"          {line}" for line in time_lines(settings, training.settings)]
        lines += [f"          {line}" for line in gpu_lines(settings, taken)]
        lines += [f"!         {doubt}" for doubt in training.doubts]
        if (evaluations := evaluation_line(settings, training.settings)) is not None:
            lines.append(f"evaluate  {evaluations}")
    if build.stops is not None:
        lines.append("✗ the build would stop, as shown above; nothing was written")
    elif build.up_to_date is None or (training is not None and training.is_left):
        pairs = [part for change in changes or [] for part in ("--set", change)]
        command = ["tarmac", "run" if training else "build", str(config), *pairs]
        lines.append(f"nothing was written; to do it: {shlex.join(command)}")
    say(with_config("\n".join(lines), config, changes))
    return 0 if build.stops is None else 1


def _pace_json(settings: Config, training: TrainingLeft | None) -> dict[str, Any] | None:
    from tasks.supervision.beforehand import known_pace

    pace = known_pace(settings, training.settings) if training is not None else None
    return None if pace is None else asdict(pace)


def _most_samples(build: Forecast) -> int | None:
    """Return the most samples that the build can accept; None where that is not known."""
    if build.work is not None:
        return build.work.listed - build.work.filtered - sum(build.work.rejected.values())
    return build.reading.samples if build.reading is not None and build.reading.is_stated else None


def _build_lines(settings: Config, build: Forecast) -> Iterator[str]:
    from tasks.dataset.version.quarantine import notice

    if build.up_to_date is not None:
        yield f"build     up to date: version {build.up_to_date}"
        version = _version_folder(settings, build.up_to_date)
        if skipped := notice(version, _left_out(settings, build.up_to_date)):
            yield f"!         {skipped}"
        return
    yield f"build     {build.why}"
    is_private = settings.dataset.private
    if build.holder is not None:
        yield f"          {build.holder} builds this dataset just now"
    if build.reading is not None:
        yield from _reading_lines(settings, build.reading)
    if build.work is not None:
        yield from _work_lines(settings, build.work, "under way" if build.holder else "interrupted")
    tried = build.work or build.reading
    if tried is not None and tried.to_compare:
        most = "" if build.work is not None else "up to "
        took = f"about {_work_time(settings, tried.compare_seconds)}" if tried.taken else "time unknown"
        yield (
            f"          {most}{counted(tried.to_compare, 'sample')} are compared first, which decodes each "
            f"once more: {took}; which of them are copies, and move, is known only then"
        )
    yield from _tried_lines(settings, build)
    yield from (f"!         {doubt}" for doubt in build.doubts if not is_private)
    if tried is None or tried.taken or not tried.tried:  # else the size is not known
        mark = "!" if build.needed_bytes > build.free_bytes else " "
        room = f"{size(build.needed_bytes)} of {size(build.free_bytes)} free on the disk of"
        yield f"{mark}         {room} {settings.dataset.output}"
    if build.stops is not None:
        yield f"!         the build would stop: {build.stops}"


def _tried_lines(settings: Config, build: Forecast) -> Iterator[str]:
    """Say why samples were rejected that were tried, and where they are named if the data is private."""
    tried, is_private = build.work or build.reading, settings.dataset.private
    if tried is None:
        return
    for reason, sample in tried.tried_rejects.items():
        shown = "" if is_private else f"   {sample}"
        number = f"{count(tried.tried_reasons[reason])} of {counted(tried.tried, 'sample')} tried"
        yield f"!         {number}: {reason}{shown}"
    if is_private and (tried.tried_rejects or (build.work and build.work.rejected)):
        look = f"tarmac rejects {shlex.quote(near(settings.dataset.output))}"
        yield f"          the data is private, so no sample is named; once built, {look} names each"


def _reading_lines(settings: Config, reading: ReadingWork) -> Iterator[str]:
    names, is_private = reading.containers, settings.dataset.private
    every = counted(len(names), "container")
    if reading.changed is not None and reading.gone is not None:
        shown = "" if is_private else ", ".join(names[place] for place in reading.changed[:LISTED])
        more = ", …" if len(reading.changed) > LISTED else ""
        which = f" ({shown}{more})" if shown else ""
        gone = f", and {count(reading.gone)} have gone" if reading.gone else ""
        yield f"          {count(len(reading.changed))} of {every} are new or changed{which}{gone}"
    if reading.samples is None:
        number = "the number of samples is known only then"
    else:
        about = "" if reading.is_stated else "about "
        number = f"{about}{counted(reading.samples, 'sample')} in them"
    all_of_them = "all of " if reading.changed is not None else ""
    why = ", because each shard holds samples of many" if all_of_them and len(names) > 1 else ""
    yield f"          reads {all_of_them}{every} in order, {size(reading.read_bytes)}{why}; {number}"
    if reading.read_before:
        yield (
            f"          {count(reading.read_before)} of {every} were read already by a build that was "
            "interrupted, which goes on there"
        )
    if not reading.tried:
        yield "          no sample is tried, because its joined files would have to be indexed first"
    elif reading.taken and reading.samples is not None:
        much = f"about {size(reading.bytes)}, {_work_time(settings, reading.seconds)}"
        yield f"          to convert them: {much}, by the first {counted(reading.tried, 'sample')}"


def _work_lines(settings: Config, work: ConversionWork, build: str) -> Iterator[str]:
    from tasks.dataset.version.manifest import passed_over_lines

    yield (
        f"          {count(work.listed)} raw samples: {count(work.filtered)} filtered, "
        f"{count(sum(work.rejected.values()))} rejected unopened"
    )
    for reason, number in work.rejected.items():
        example = "" if settings.dataset.private else f"   {work.rejected_examples[reason]}"
        yield f"          {number:>7,} {reason}{example}"
    much = f": about {size(work.bytes)}, {_work_time(settings, work.seconds)}"
    if not work.tried:
        much = ""
    elif not work.taken:
        much = f": none of {counted(work.tried, 'sample')} tried is accepted, so size and time are unknown"
    if work.staged_shards:
        there = "is there" if work.staged_shards == 1 else "are there"
        which = f"the build that is {build}" if build == "under way" else f"a build that was {build}"
        yield (
            f"          {count(work.staged_shards)} of {counted(work.shards, 'shard')} {there} from {which}"
        )
    yield (
        f"          {count(work.to_convert)} to convert into {count(work.to_convert_shards)} of "
        f"{count(work.shards)} shards{much}"
    )
    yield from (f"          {line}" for line in passed_over_lines(work.passed_over, settings.dataset.private))


def _work_time(settings: Config, seconds: float) -> str:
    """Return how long the engine takes for work that takes one process so many seconds."""
    engine = settings.engine.for_build()
    if engine.kind == "dask":
        return f"{duration(seconds)} of work for the Dask cluster"
    jobs = engine.jobs or 4 if engine.kind == "slurm" else 1
    workers = jobs * (engine.workers or engine.cpus or 1)
    return f"{duration(max(seconds / workers, 1))} with {counted(workers, 'worker')}"


def _left_out(settings: Config, version: str | None) -> list[Quarantined]:
    """Return the samples of the dataset's version that training leaves out; none if it is yet to be built."""
    from tasks.dataset.version import quarantine

    if version is None:
        return []
    folder = _version_folder(settings, version)
    return quarantine.of_version(
        folder, quarantine.read_quarantine(quarantine.home(folder) / quarantine.NAME)
    )


def _version_folder(settings: Config, name: str) -> Path:
    return settings.dataset.output / "versions" / name


@dataclass(frozen=True)
class TrainingLeft:
    """What is left to train, by which settings, whether anything is, and which settings are probably a
    mistake."""

    summary: str
    settings: Train
    is_left: bool = True
    doubts: Sequence[str] = ()


def training_left(settings: Config, version: str | None, most: int | None = None) -> TrainingLeft | None:
    """Return what is left to train; None without a train block. A version yet to be built has `most` samples
    at most. UsageError if the folder of runs cannot be written, or the version or the checkpoints do not fit
    the config."""
    from tasks.core.config import dump
    from tasks.core.files import require_writable
    from tasks.evaluation.fit import doubtful_classes
    from tasks.runs.plan import locate, require_checkpoints, resolve_for, settled
    from tasks.supervision.beforehand import doubts, doubts_of, lacking_weights, require_startable

    if settings.train is None:
        return None
    folder = None if version is None else _version_folder(settings, version)
    require_startable(settings, folder, most=most, asks_hub=False)
    lacking = lacking_weights(settings, folder)
    if folder is None:
        require_writable(settings.runs, "runs")
        summary = f"{settings.train.recipe}, after the build{_place(settings)}"
        doubted = (*lacking, *doubts_of(settings), *doubtful_classes(settings, None))
        known = settled(settings.train, settings.engine.train)
        return TrainingLeft(summary, known, doubts=doubted)
    from tasks.supervision.status import look_at_run

    run = locate(settings, folder)
    resolved = resolve_for(run, settings, folder)
    assert resolved.train is not None
    known = resolved.train
    doubted = (*lacking, *doubts(resolved, folder), *doubtful_classes(resolved, folder))
    if not run.record.exists():
        require_writable(settings.runs, "runs")
        return TrainingLeft(f"a new run, {run.name}{_place(settings)}", known, doubts=doubted)
    require_checkpoints(run, resolved)
    status = look_at_run(run)
    if status.is_complete and run.config.read_text(encoding="utf-8") == dump(resolved):
        return TrainingLeft(f"up to date: {run.name}", known, is_left=False)
    gone = f"whose agent is gone at step {status.step:,} of {status.steps:,}"
    at = gone if status.is_abandoned else status.state
    return TrainingLeft(f"goes on: {run.name}, {at}{_place(settings)}", known, doubts=doubted)


def setting_lines(settings: Config, train: Train) -> Iterator[str]:
    """Say by which steps, rates and arithmetic the weights are changed, whoever decided on them."""
    from tasks.diagnosis.own_run import checkpoints_of
    from tasks.runs.gpus import trains_on_gpus

    if train.recipe == "external":  # what the command gives itself wins over the block
        return
    unit = "samples" if train.pack is None else "rows"
    length = counted(train.epochs, "epoch") if train.steps is None else f"{count(train.steps)} steps"
    peaks = train.lr if isinstance(train.lr, dict) else {"": train.lr}
    if len(set(peaks.values())) == 1:
        peaks = {"": next(iter(peaks.values()))}
    rates = ", ".join(f"{rate:g} {part}".strip() for part, rate in peaks.items())
    falls = "as a cosine" if train.schedule == "cosine" else "over the last steps" if train.cooldown else ""
    then = (
        f"falling {falls} to {percent(train.lr_floor, 0) if train.lr_floor else 0}" if falls else "constant"
    )
    begin = "" if train.steps is None else f" after {count(train.warmup_steps)} steps of warm-up"
    yield f"{length} of {count(train.batch_size)} {unit}; learning rate {rates}{begin}, then {then}"
    decayed = {"all": "all parameters"}.get(train.decay, train.decay)
    decay = f"{train.weight_decay:g} on {decayed}" if train.weight_decay else "0"
    clip = f"gradients clipped at {train.grad_clip:g}" if train.grad_clip else "no clipping"
    betas = " and ".join(f"{beta:g}" for beta in train.betas)
    yield f"AdamW with betas {betas}, eps {train.eps:g}, weight decay {decay}; {clip}"
    on_gpus = trains_on_gpus(settings.engine.train)
    exact = not on_gpus if train.deterministic is None else train.deterministic
    price = ", which forbids TensorFloat-32 and the fastest kernels" if exact and on_gpus else ""
    bits = f"a resume is exact to the bit{price}" if exact else "a resume is not exact to the bit"
    yield f"{train.precision} on {'GPUs' if on_gpus else 'the CPU'}; {bits}"
    if train.steps is not None:
        checkpoints, each = checkpoints_of(settings, train, train.steps)
        of = f" of {size(each)}, {size(checkpoints * each)} in all" if each else ""
        kept = "" if train.keep is not None else "; train.keep keeps fewer"
        yield f"checkpoints on the disk: at most {count(checkpoints)}{of}{kept}"


def time_lines(settings: Config, train: Train) -> Iterator[str]:
    """Say how long the training takes on this machine, as far as an earlier run of the config has shown."""
    from tasks.supervision.beforehand import known_pace

    if train.recipe == "external" or settings.engine.train.kind != "local":
        return
    pace = known_pace(settings, train)
    if pace is None:
        yield "how long it takes is not known yet: tarmac run measures it first, and tarmac status shows it"
    elif train.steps is None:
        yield f"{count(pace.per_s)} {pace.unit}/s on this machine, as measured for {pace.run}"
    else:
        took = duration(train.steps * train.batch_size / pace.per_s)
        by = f"{count(pace.per_s)} {pace.unit}/s that were measured for {pace.run}"
        yield f"about {took} on this machine without evaluations, by the {by}"


def taken_of_gpu(settings: Config, training: TrainingLeft | None) -> Footprint | str | None:
    """Return what a rank takes of its GPU, or why that is not known; None where no training is left for
    GPUs."""
    from tasks.models.recipes import options_type
    from tasks.runs.footprint import footprint_of
    from tasks.runs.gpus import trains_on_gpus

    if training is None or not training.is_left or not trains_on_gpus(settings.engine.train):
        return None
    if options_type(training.settings.recipe).is_external:
        return None
    with screen.running("plan") as progress:
        progress(0, 0, "what a rank takes of its GPU")
        try:
            return footprint_of(settings)
        except TarmacError as error:
            return first_line(error)


def gpu_lines(settings: Config, taken: Footprint | str | None) -> Iterator[str]:
    from tasks.runs.gpus import memory_of_gpu

    if isinstance(taken, str):
        yield f"what a rank takes of its GPU is not known: {taken}"
    elif taken is not None:
        room = memory_of_gpu() if settings.engine.train.kind == "local" else None
        there = "" if room is None else f"; a GPU here has {size(room)}"
        yield f"a rank takes {taken}{there}"
        yield (
            f"an evaluation takes {size(taken.beside)}, a checkpoint {size(taken.saving)} of the host of the "
            f"first rank; a step computes {taken.flops / 1e12:,.3g} TFLOP a rank"
        )


def _place(settings: Config) -> str:
    """Return where it trains: in a Slurm job, or on one of several GPUs; an empty text otherwise."""
    from tasks.runs.gpus import gpus_here

    train = settings.engine.train
    if train.kind == "slurm":
        on = "" if train.gpus is None else f" on {counted(train.gpus, 'GPU')}"
        if train.nodes is not None and train.nodes > 1:
            on = f" on {train.nodes} nodes" if train.gpus is None else f"{on} of each of {train.nodes} nodes"
        return f", as a Slurm job{on}"
    gpus = gpus_here()
    return f", on {train.gpus or 'one'} of {gpus} GPUs" if gpus > 1 and train.ranks is None else ""


def evaluation_line(settings: Config, train: Train) -> str | None:
    """Return what is evaluated, when and where; None where the config asks for no evaluation."""
    from tasks.runs.gpus import gpus_here, share_gpus

    evaluate, engines = settings.evaluate, settings.engine
    if evaluate is None:
        return None
    tasks = ", ".join(task.name for task in evaluate.tasks)
    start = settings.evaluates_start
    number = None if train.steps is None else len(evaluate.steps(train.steps)) + start
    what = f"checkpoints of every {count(evaluate.every)} steps" if number is None else ""
    what = what or counted(number or 0, "checkpoint")
    shares, saved = share_gpus(engines), "each as soon as it is saved"
    when = {"idle": saved, "beside": saved, "after": "when the training has ended"}[evaluate.when]
    if engines.evaluate.kind == "slurm":
        gpus = engines.evaluate.gpus
        where = "in Slurm jobs" if gpus is None else f"in Slurm jobs of {counted(gpus, 'GPU')}"
    elif engines.train.kind == "slurm":
        alone = shares and evaluate.when != "beside" and (engines.train.gpus or 1) > 1
        where = "in a Slurm job of one GPU" if alone else "in the training's Slurm job"
    else:
        where = "on a GPU of this machine" if gpus_here() else "on the CPU of this machine"
    if evaluate.when == "idle" and shares:
        when = "when the training, which takes all GPUs, has ended"
    elif evaluate.when == "beside" and shares:
        where += ", beside the training on its GPU"
    elif evaluate.when == "idle" and engines.evaluate.kind == "local" and gpus_here():
        when = "each as soon as no training holds a GPU"
    return f"{what} by {tasks}: {when}, {where} (evaluate.when: {evaluate.when})"
