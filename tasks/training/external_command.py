"""Completes the command of recipe external with options of the trainer's own, made from the config.

A trainer counts a batch per rank, while a config counts it over all of them, so the options depend on how
many ranks the command starts. A launcher's own options give that number, so nothing is run to find out.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from tasks.core.errors import UsageError
from tasks.core.files import write_json
from tasks.core.schema import Config, Train, TrainEngine
from tasks.core.units import counted
from tasks.dataset.version.versions import Manifest, read_manifest
from tasks.models import recipes
from tasks.models.clip.clip_options import DIGITS
from tasks.models.external_options import OPEN_CLIP, ExternalOptions
from tasks.models.held_out import held_out
from tasks.trainers import recognise
from tasks.trainers.command import Command
from tasks.trainers.contract import Assignment, Trainer


def command_of(config: Config, version: Path, workers: int, output: Path) -> tuple[list[str], Trainer]:
    """Return the words of the command with the trainer's missing options filled in, and the trainer.

    `config` is a resolved one, `workers` the wanted number, `output` the folder of the trainer's files, which
    gets the model's description. UsageError for a config that no command can be made of.
    """
    require_ranks(config)
    assert config.train is not None
    options = recipes.check_recipe(config.train)
    assert isinstance(options, ExternalOptions)
    command = _command(options, config.engine.train)
    trainer = recognise(command, options.trainer)
    if trainer.options is None:
        return list(command.words), trainer
    if not options.gives and not command.has("--model"):
        raise UsageError(
            f"train.model: {trainer.name} needs to know which model to train; give name or config"
        )
    given = trainer.options(_assignment(config, options, version, workers, output, command.ranks))
    lacking = [pair for pair in given.items() if not command.has(pair[0])]
    return command.having([word for pair in lacking for word in pair if word]), trainer


def require_ranks(config: Config) -> None:
    """Raise UsageError where the command does not start as many processes as `engine.train` asks for, or a
    batch does not go evenly to them. Other recipes have no command to check."""
    train, engine = config.train, config.engine.train
    options = None if train is None else recipes.check_recipe(train)
    if train is None or not isinstance(options, ExternalOptions):
        return
    command, key = _command(options, engine), "gpus" if engine.gpus is not None else "ranks"
    if not command.is_counted:
        raise UsageError(
            "train.model.command: how many ranks it starts is left to the launcher, and a step has "
            "train.batch_size samples over all of them; give --nproc_per_node a number"
        )
    ranks, is_asked = command.ranks, (engine.gpus or engine.ranks) is not None
    if is_asked and engine.processes != ranks:
        given = f"give it --nproc_per_node={engine.processes}, or leave the launcher out"
        other = (
            f"only a command that begins with python gets torchrun before it, as {', '.join(OPEN_CLIP)} does"
        )
        raise UsageError(
            f"engine.train.{key}: asks for {engine.processes} ranks, and train.model.command makes {ranks}; "
            f"{given if command.is_launched else other}"
        )
    try:
        train.require_even(ranks)
    except ValueError as error:
        raise UsageError(str(error)) from None
    share = train.batch_size // ranks
    if train.micro_batch is not None and share % train.micro_batch:
        raise UsageError(f"train.micro_batch: does not go evenly into a rank's part of a batch ({share})")
    _require_given_batch(train, command, recognise(command, options.trainer))


def _require_given_batch(train: Train, command: Command, trainer: Trainer) -> None:
    """Raise UsageError for a batch size in the command that makes other steps than the config's."""
    data = trainer.data(command) if trainer.options is not None and command.has("--batch-size") else None
    if data is None:
        return
    passes = data.accumulation if command.has("--accum-freq") else _accumulation(train, command.ranks)
    made = data.batch_size * passes * command.ranks
    if made != train.batch_size:
        raise UsageError(
            f"train.batch_size: a step has {train.batch_size} samples, and the command's --batch-size "
            f"{data.batch_size}, which is per rank and pass, makes {made}; leave the option out"
        )


def _command(options: ExternalOptions, engine: TrainEngine) -> Command:
    """The command, with `python` and `torchrun` of Tarmac's own environment; for several ranks, torchrun
    starts what `python` would."""
    first, *others = options.command
    torchrun = [sys.executable, "-m", "torch.distributed.run"]
    if first == "torchrun":
        return Command.of([*torchrun, *others])
    command = Command.of([sys.executable, *others] if first == "python" else [first, *others])
    if first == "python" and engine.processes > 1 and not command.is_launched:
        return Command.of([*torchrun, "--standalone", f"--nproc_per_node={engine.processes}", *others])
    return command


def _assignment(
    config: Config, options: ExternalOptions, version: Path, workers: int, output: Path, ranks: int
) -> Assignment:
    train = config.train
    assert train is not None and train.steps is not None
    options.require(train)
    manifest = read_manifest(version)
    split = held_out(manifest.splits)
    shards = manifest.splits["train"].shards
    if shards < ranks:
        raise UsageError(
            f"train.model.command: {ranks} ranks, each of which reads shards of its own, and "
            f"{counted(shards, 'shard')} to train on; build smaller ones by dataset.shard"
        )
    return Assignment(
        tars=_tars(version, manifest, "train"),
        samples=train.checkpoint_every * train.batch_size,
        held_out=None if split is None else _tars(version, manifest, split),
        held_out_samples=0 if split is None else manifest.splits[split].samples,
        epochs=train.steps // train.checkpoint_every,
        ranks=ranks,
        accumulation=_accumulation(train, ranks),
        workers=_workers(workers, shards // ranks, train),
        model=_model(options, output),
        model_options=_model_options(options),
        train=train,
        folder=output,
    )


def _tars(version: Path, manifest: Manifest, split: str) -> str:
    last = manifest.splits[split].shards - 1
    return f"{version}/{split}/" + ("000000.tar" if not last else f"{{000000..{last:06d}}}.tar")


def _accumulation(train: Train, ranks: int) -> int:
    """The number of passes that a rank's share of a batch takes."""
    share = train.batch_size // ranks
    return share // (train.micro_batch or share)


def _workers(wanted: int, shards: int, train: Train) -> int:
    """The number of loader workers of a rank that reads so many shards: at most one per shard, and a divisor
    of the batches in an epoch, as each worker yields equally many."""
    most = min(wanted, shards)
    return next((count for count in range(most, 0, -1) if train.checkpoint_every % count == 0), 0)


def _model(options: ExternalOptions, output: Path) -> str:
    """The trainer's name of the model; where it has none, the folder of the model's description."""
    if options.name is not None and options.name != DIGITS:
        return options.name
    folder = output / "model"
    folder.mkdir(exist_ok=True)
    write_json(folder / "open_clip_config.json", {"model_cfg": options.described, "preprocess_cfg": {}})
    return f"local-dir:{folder}"


def _model_options(options: ExternalOptions) -> Mapping[str, str]:
    size, dropout = options.image_size, options.patch_dropout
    given = {
        "--pretrained": options.pretrained,
        "--siglip": "" if options.is_sigmoid else None,
        "--force-image-size": None if size is None else str(size),
        "--force-patch-dropout": None if dropout is None else f"{dropout:g}",
    }
    return {option: value for option, value in given.items() if value is not None}
