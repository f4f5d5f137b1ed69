"""The training loop. Everything it needs comes in, everything it finds out goes to the run's folder.

It talks to no network and to no other process: it appends metrics, writes checkpoints by rename and says what
it is doing. Whatever kills it, at most the steps since the last checkpoint are done again, with one result.
"""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from torch import nn

from tasks.core.errors import UsageError
from tasks.core.schema import Config, Train
from tasks.dataset.versions import Manifest, read_manifest
from tasks.loader.bad import Budget, most_replaced
from tasks.loader.batches import TRAIN, train_batches
from tasks.loader.settings import LoaderSettings
from tasks.models import recipes
from tasks.models.recipes import Recipe
from tasks.runs.checkpoints import Checkpoint, read_meta
from tasks.runs.folder import RunFolder
from tasks.runs.metrics import TRAIN_AXIS, MetricsWriter, make_row
from tasks.runs.phases import PhaseWriter
from tasks.runs.quarantine import of_run
from tasks.training import checkpoints, devices
from tasks.training.devices import Device
from tasks.training.finite import check_losses, check_weights
from tasks.training.meter import Meter
from tasks.training.replaced import ReplacedLedger
from tasks.training.schedule import learning_rate
from tasks.training.validation import Validation, held_out_batches

logger = logging.getLogger(__name__)


def train(
    run: RunFolder, config: Config, version: Path, settings: LoaderSettings, phases: PhaseWriter
) -> int:
    """Train from the newest sound checkpoint to the last step, in one piece because it is read as one.

    Ends earlier, at the next step, once `run.stop` is there. Returns the step reached, of which there is a
    checkpoint. TarmacError for whatever a person can mend.
    """
    options = config.train
    if options is None or options.steps is None:
        raise UsageError(f"{run.config}: needs a train block with its steps; plan the run again")
    metrics = MetricsWriter(run.metrics)
    recipe, manifest = recipes.load(options), read_manifest(version)
    quarantined = of_run(run)
    samples = manifest.splits[TRAIN].samples - sum(entry.split == TRAIN for entry in quarantined)
    _check(options, recipe, manifest)
    device = devices.choose(options)
    model, optimizer, step = _take_up(run, options, recipe, device)
    held_out = held_out_batches(version, manifest, recipe, config, options, settings.workers, quarantined)
    validation = Validation(run, recipe, device, metrics, phases, held_out)
    logger.info("%s: from step %d of %d, on %s", run.name, step, options.steps, device.torch)

    if _is_unmeasured(run, step, options):
        validation.measure(step, model)
    phases.set("first_batch", step)
    stopping = run.stop.exists()
    meter = Meter(options.batch_size)
    with train_batches(
        version,
        recipe.transform(is_train=True),
        batch_size=options.batch_size,
        seed=options.seed,
        shuffle=config.loader.shuffle,
        workers=settings.workers,
        prefetch=settings.prefetch,
        start_step=step,
        pin_memory=device.is_cuda,
        reader=config.loader.reader,
        quarantined=quarantined,
        on_bad=config.loader.on_bad,
    ) as batches:
        replaced = _ledger(run, step, version, config, samples)
        while step < options.steps and not stopping:
            with meter.waiting():
                batch = next(batches)
            replaced.add(step + 1, batches.passed_over)
            rate = learning_rate(step, peak=options.lr, warmup=options.warmup_steps, steps=options.steps)
            for group in optimizer.param_groups:
                group["lr"] = rate
            with device.autocast():
                loss = recipe.loss(model, device.put(batch))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            recipe.after_step(model)
            step += 1
            meter.add(loss)
            phases.set("step", step, batches.worker_pids)

            stopping = run.stop.exists()
            saving = stopping or _is_due(step, options)
            if saving or step == 1 or step % options.log_every == 0:
                values = {"train/lr": rate, **meter.values(), **device.memory()}
                if config.loader.on_bad == "replace":
                    values["data/replaced"] = replaced.count
                metrics.append(make_row(TRAIN_AXIS, step, "train", values))
                check_losses(meter.losses(), step, device.precision)
                meter.restart()
            if saving:
                check_weights(model, step, device.precision)
                phases.set("checkpoint", step, batches.worker_pids)
                metrics.settle()
                checkpoints.save(run, step, model, optimizer)
                logger.info("step %d: loss %.4f", step, values["train/loss"])
                validation.measure(step, model, batches.worker_pids)
                stopping = run.stop.exists()
                meter.restart()
    phases.set("end", step)
    return step


def _is_due(step: int, options: Train) -> bool:
    """Whether a checkpoint belongs at `step`, which is validated; a stop leaves others."""
    return step == options.steps or step % options.checkpoint_every == 0


def _is_unmeasured(run: RunFolder, step: int, options: Train) -> bool:
    """Whether the checkpoint of `step` is one to validate, and a stop or a death came before."""
    meta = read_meta(Checkpoint(step, run.checkpoint(step)))
    return meta is not None and meta.val_loss is None and _is_due(step, options)


def _check(options: Train, recipe: Recipe, manifest: Manifest) -> None:
    if manifest.modality != recipe.modality:
        raise UsageError(
            f"train.recipe: {options.recipe} takes datasets of modality {recipe.modality}, "
            f"and {manifest.name} is one of {manifest.modality}"
        )


def _ledger(run: RunFolder, step: int, version: Path, config: Config, samples: int) -> ReplacedLedger:
    """Of this rank, which goes on after `step`; `samples` are an epoch."""
    share = config.loader.bad_budget
    hint = f"{run.replaced()} lists them; `tarmac verify {version}` finds all that there are"
    budget = Budget(f"{version}/{TRAIN}", samples, most_replaced(share, samples), hint)
    return ReplacedLedger(run.replaced(), step, budget)


def _take_up(
    run: RunFolder, options: Train, recipe: Recipe, device: Device
) -> tuple[nn.Module, torch.optim.Optimizer, int]:
    """Model and optimizer as the newest sound checkpoint has them, or new, and the step they are at."""
    found = checkpoints.newest(run)
    torch.manual_seed(options.seed)
    model = recipe.build_model(pretrained=found is None).to(device.torch).train()
    optimizer = torch.optim.AdamW(recipe.parameter_groups(model, options.weight_decay), fused=True)
    if found is None:
        return model, optimizer, 0
    checkpoints.restore(found, model, optimizer)
    return model, optimizer, found.step
