"""The training loop. Everything it needs comes in, everything it finds out goes to the run's folder.

It talks to no network, and to no process but the other ranks of its training: it appends metrics, writes
checkpoints by rename and reports what it is doing. Whatever kills it, at most the steps since the last
checkpoint are done again, with one result.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from tasks.core import config as configs
from tasks.core.errors import UsageError
from tasks.core.files import append_line, read_lines
from tasks.core.schema import Config, Train
from tasks.core.screen import Progress, no_progress
from tasks.core.units import counted
from tasks.dataset.version.versions import read_manifest
from tasks.loader import forkserver, worker_state
from tasks.loader.bad import Budget, PassedOver, most_replaced
from tasks.loader.batches import TRAIN
from tasks.loader.collate import Batch
from tasks.loader.feed import Data, Feed, FeedState
from tasks.loader.settings import LoaderSettings
from tasks.loader.workers import Batches
from tasks.models import recipes
from tasks.runs import record
from tasks.runs.data import left_out_by, version_path
from tasks.runs.folder import RunFolder
from tasks.runs.footprint import read_footprint
from tasks.runs.metrics import TRAIN_AXIS, MetricsWriter, make_row
from tasks.runs.phases import PhaseWriter
from tasks.training.checkpoints import CheckpointSaver
from tasks.training.devices import Device, Uploads
from tasks.training.meter import Meter, check_outcomes, check_weights, pauses
from tasks.training.ranks import ALONE, RankRequest, Ranks
from tasks.training.resume import Start, generators_of, is_due, take_up
from tasks.training.sanity.sanity import Sanity
from tasks.training.step import Step
from tasks.training.validation import Validation

logger = logging.getLogger(__name__)


def train(
    run: RunFolder,
    config: Config,
    settings: LoaderSettings,
    phases: PhaseWriter,
    device: Device,
    ranks: Ranks = ALONE,
) -> int:
    """Train from the newest sound checkpoint to the last step, in one piece because it is read as one.

    Ends earlier, at the next step, once `run.stop` is there. Returns the step reached, of which there is a
    checkpoint. TarmacError for whatever a person can mend.
    """
    options = options_of(run, config)
    metrics = MetricsWriter(run.metrics if ranks.is_first else None)
    kind, recipe = recipes.check_recipe(options), recipes.load_recipe(options)
    datasets = _datasets(run, options, kind)
    worker_state.clear(run.workers, ranks.rank)
    own = {"workers": settings.workers, "prefetch": settings.prefetch, "pin_memory": device.is_cuda}
    feed = Feed.of(
        config, datasets, recipe, rank=ranks.rank, world_size=ranks.count, states=run.workers, **own
    )
    feed = _packing(run, options, feed, ranks)
    start = take_up(run, options, recipe, device, feed, ranks)
    take_step, step = start.take_step, start.step
    saver = CheckpointSaver(run, ranks)
    sanity = Sanity(run, config, recipe, take_step, feed, ranks, step)
    validation = Validation(run, config, device, metrics, phases, feed, saver, ranks)
    logger.info("%s: from step %d of %d, on %s%s", run.name, step, options.steps, device.torch, ranks)

    is_over, saved, uploads = step == options.steps, step, Uploads(device)
    meter = Meter(options.batch_size, device.is_cuda, take_step.laps, _share_per_s(run, device))
    with saver, feed.train(start.place) as batches:
        if _saved_start(config, start, saver, phases, ranks) or start.is_unmeasured:
            validation.measure(step, take_step, batches.worker_pids)
        phases.set("first_batch", step)
        replaced = _replaced_ledger(run, step, feed)
        while not is_over:
            batch = _next_batch(run, step + 1, batches, feed.parts, replaced, meter, saver, ranks)
            is_over = batch is None
            if batch is not None:
                for part in batch:
                    meter.count(recipe.counts(part))
                with sanity.step(step + 1, batch):
                    taken = take_step(step, *uploads.put(batch))
                step += 1
                sanity.note(step, taken)
                meter.add(taken.loss, taken.logs, taken.overflow)
                phases.set("step", step, batches.worker_pids)
                rates, is_over = _rates(taken.rates), step == options.steps

            saving = (is_over or is_due(step, options)) and step > saved
            if meter.steps and (saving or step == 1 or step % options.log_every == 0):
                values, outcomes = {**rates, **meter.values(ranks), **device.memory()}, meter.outcomes(step)
                phases.data_wait_s += values["train/data_wait"] * values["train/step_s"] * meter.steps
                if config.loader.on_bad == "replace":
                    values["data/replaced"] = int(ranks.sum(torch.tensor(replaced.count)))
                for number, scale in outcomes.skipped.items():
                    skipped = {"train/skipped": 1, "train/loss_scale": scale}
                    metrics.append(make_row(TRAIN_AXIS, number, "skipped", skipped))
                metrics.append(make_row(TRAIN_AXIS, step, "train", values))
                check_outcomes(outcomes, device.precision)
                sanity.row(step, outcomes)
                meter.restart()
            if saving:
                with ranks.agreeing():
                    check_weights(take_step.task.model, step, device.precision)
                sanity.checkpoint(step)
                phases.set("checkpoint", step, batches.worker_pids)
                metrics.settle()
                began = time.perf_counter()
                _save(saver, step, take_step, feed.state(step, start.place), ranks)
                saved_s = time.perf_counter() - began
                logger.info("step %d: loss %.4f", step, values.get("train/loss", math.nan))
                saved = step
                sanity.validated(step, validation.measure(step, take_step, batches.worker_pids))
                took = {"train/save_s": saved_s, "train/validate_s": time.perf_counter() - began - saved_s}
                metrics.append(make_row(TRAIN_AXIS, step, "save", pauses(took, ranks)))
                meter.restart()
        phases.set("checkpoint", step, batches.worker_pids)
        with ranks.agreeing():
            saver.wait()
    phases.set("end", step)
    return step


def _share_per_s(run: RunFolder, device: Device) -> float | None:
    """The share of what the device computes in a second that a step is; None where either is not known."""
    at_most, computed = device.flops_per_s(), read_footprint(run)
    return None if at_most is None or computed is None else computed.flops / at_most


def _saved_start(
    config: Config, start: Start, saver: CheckpointSaver, phases: PhaseWriter, ranks: Ranks
) -> bool:
    """Save the weights that a new training starts from, if they are to be evaluated; return whether."""
    if not start.is_new or not config.evaluates_start:
        return False
    phases.set("checkpoint", 0)
    _save(saver, 0, start.take_step, start.place, ranks)
    return True


def _save(saver: CheckpointSaver, step: int, take_step: Step, place: FeedState, ranks: Ranks) -> None:
    state = {**take_step.state(), "feed": place.to_json(), **generators_of(ranks)}
    saver.save(step, take_step.model, state, take_step.parts())


def options_of(run: RunFolder, config: Config) -> Train:
    """Return the train block of a planned run; UsageError where it is missing, or counts no steps yet."""
    if config.train is None or config.train.steps is None:
        raise UsageError(f"{run.config}: needs a train block with its steps; plan the run again")
    return config.train


def measure_lengths(run: Path, progress: Progress = no_progress) -> None:
    """Write into the run's folder how long each sample is, for `train.pack`; for a child process of its
    agent.

    BadSampleError or DataError for a sample that cannot be read.
    """
    folder = RunFolder(run)
    config = configs.reload(folder.config)
    assert config.train is not None
    forkserver.fork(recipes.module_of(config.train))
    datasets = _datasets(folder, config.train, recipes.check_recipe(config.train))
    Feed.of(config, datasets, recipes.load_recipe(config.train)).measure(folder.lengths, progress=progress)


def _packing(run: RunFolder, options: Train, feed: Feed, ranks: Ranks) -> Feed:
    """The feed, in packs where `train.pack` asks for them.

    The agent has had the samples measured, because that takes minutes in which no rank may wait for another.
    A rank that is alone measures what is missing.
    """
    if options.pack is None:
        return feed
    if ranks.count == 1:
        feed.measure(run.lengths)
    packed = feed.packing(options.pack, run.lengths)
    assert packed.packed is not None
    limits = packed.packed.limits
    for data, lengths in zip(packed.datasets, packed.packed.lengths, strict=True):
        left_out = int((~limits.takes(lengths)).sum())
        if left_out and ranks.is_first:
            logger.warning(
                "%s with more than %d tokens or %d images left out of %s",
                *(counted(left_out, "sample"), limits.tokens, limits.most_images, data.version),
            )
    return packed


def _next_batch(
    run: RunFolder,
    step: int,
    batches: Batches,
    parts: int,
    replaced: ReplacedLedger,
    meter: Meter,
    saver: CheckpointSaver,
    ranks: Ranks,
) -> list[Batch] | None:
    """The batch of `step`, in `parts`; None when the training is to stop before it, which all ranks
    decide."""
    batch: list[Batch] = []
    with ranks.agreeing() as vote:
        saver.check()
        if ranks.is_first and run.stop.exists():
            vote.order = RankRequest.STOP
        else:
            for _ in range(parts):
                with meter.waiting():
                    batch.append(next(batches))
                replaced.add(step, batches.passed_over)
    return None if vote.order is RankRequest.STOP else batch


def _rates(rates: Mapping[str, float]) -> dict[str, float]:
    """The highest learning rate, and that of each part where they differ."""
    differ = len(set(rates.values())) > 1
    by_part = {f"train/lr_{part}": rate for part, rate in rates.items() if differ}
    return {"train/lr": max(rates.values()), **by_part}


def _datasets(run: RunFolder, options: Train, kind: recipes.Options) -> list[Data]:
    """The datasets of the run's record without the samples in the run's quarantine; its own dataset first.

    UsageError for one that is not of the recipe's modality.
    """
    left_out = left_out_by(run)
    datasets = [Data(version_path(ref), left_out, ref.weight) for ref in record.load_record(run).data]
    for manifest in (read_manifest(data.version) for data in datasets):
        if not kind.takes(manifest.modality):
            raise UsageError(
                f"train.recipe: {options.recipe} takes datasets of modality {kind.modality}, "
                f"and {manifest.name} is one of {manifest.modality}"
            )
    return datasets


class ReplacedLedger:
    """`replaced.rank_<r>.jsonl`: the bad samples that one rank trained without, and the samples in their
    place.

    A line is written before its step counts as done. Steps that are done again after a resume find their
    lines there already, by the position in the sequence of samples, so each is recorded once.
    """

    def __init__(
        self,
        path: Path,
        step: int,
        budget: Budget,
        earlier: Sequence[Path],
        is_read_here: Callable[[int], bool],
    ) -> None:
        """The rank goes on after `step`; `count` includes the samples replaced before.

        `is_read_here` decides whether this rank reads a position: the files `earlier`, of all ranks, may be
        those of another number of ranks.
        """
        self._path = path
        self._budget = budget
        lines = [line for file in earlier for line in read_lines(file)[0]]
        self._recorded = {line["position"] for line in lines if line["step"] > step}
        before = {
            line["position"] for line in lines if line["step"] <= step and is_read_here(line["position"])
        }
        self.count = len(before)
        epoch = max(before, default=0) // budget.samples
        budget.spend(position for position in sorted(before) if position // budget.samples == epoch)

    def add(self, step: int, passed_over: Sequence[PassedOver]) -> None:
        """Record the replaced samples of the batch of `step`; DataError when the budget does not allow so
        many."""
        for one in passed_over:
            if one.position not in self._recorded:
                where = {"step": step, "position": one.position, **dataclasses.asdict(one.defect)}
                line = {**where, "stand_in": one.stand_in, "at": time.time()}
                append_line(self._path, json.dumps(line, ensure_ascii=False))
                logger.warning("replaced by %s: %s (%s)", one.stand_in, one.defect, one.defect.reason)
        self.count += len(passed_over)
        self._budget.spend(one.position for one in passed_over)


def _replaced_ledger(run: RunFolder, step: int, feed: Feed) -> ReplacedLedger:
    """The ledger of this rank, which goes on after `step`; an epoch is all samples, of whatever dataset."""
    versions, path = [data.version for data in feed.datasets], run.replaced(feed.rank)
    left_out = sum(entry.split == TRAIN for entry in feed.data.quarantined)
    samples = sum(read_manifest(version).splits[TRAIN].samples for version in versions) - left_out
    hint = f"{path} lists them; `tarmac verify {versions[0]}` finds all that there are"
    most = most_replaced(feed.loader.bad_budget, samples, feed.world_size)
    budget = Budget(", ".join(f"{version}/{TRAIN}" for version in versions), samples, most, hint)
    return ReplacedLedger(path, step, budget, run.all_replaced(), feed.is_read_here)
