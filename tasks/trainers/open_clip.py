"""open_clip's trainer of the lines 2 and 3 (`python -m open_clip_train.main`), read from version 3.3.0."""

from __future__ import annotations

import glob
import re
from collections.abc import Mapping, Sequence

from tasks.trainers.command import Command
from tasks.trainers.contract import Assignment, DataArguments, LogLine, Rule, Trainer

READ_FROM = "open_clip_torch 3.3.0"
DISTRIBUTION = "open_clip_torch"
MODULES = ("open_clip_train.main", "training.main")
DATA = "open_clip_train/data.py"
SHUFFLE_INITIAL, SHUFFLE_SIZE = 1000, 5000
"""`_SAMPLE_SHUFFLE_INITIAL` and `_SAMPLE_SHUFFLE_SIZE` of DATA: samples per worker, undecoded."""
IMAGES = ("png", "jpg", "jpeg", "webp")
_WARMUP, _LR = 10_000, 5e-4

LINES = (
    LogLine(
        "step",
        re.compile(
            r"Train Epoch: (?P<epoch>\d+) \[\s*(?P<done>\d+)/(?P<total>\d+) "
            r"(?:.*?\b[A-Za-z_]*[Ll]oss: (?P<loss>\S+))?"
        ),
    ),
    LogLine("validate", re.compile(r"Eval Epoch: (?P<epoch>\d+)")),
    LogLine("validate", re.compile(r"Starting zero-shot|Building zero-shot|Using classifier")),
    LogLine("first_batch", re.compile(r"\| Start epoch (?P<epoch>\d+)")),
)
FAILURES = (re.compile(r"^Error\. Experiment already exists"), re.compile(r"Error: remote sync failed"))


def is_open_clip(command: Command) -> bool:
    """Whether the command starts open_clip's trainer, of whatever line."""
    module, script = command.module.removeprefix("src."), command.script.replace("\\", "/")
    return module in MODULES or script.endswith(("open_clip_train/main.py", "training/main.py"))


def data(command: Command) -> DataArguments | None:
    """The training data by the command's options, with the defaults of open_clip_train/params.py."""
    tars, kind = command.option("--train-data"), command.option("--dataset-type") or "auto"
    is_tars = tars is not None and (kind == "webdataset" or (kind == "auto" and tars.endswith("tar")))
    samples = command.option("--train-num-samples")
    return DataArguments(
        tars=tars if is_tars else None,
        batch_size=int(command.number("--batch-size", default=64)),
        workers=int(command.number("--workers", "-j", default=4)),
        is_resampled=command.has("--dataset-resampled"),
        samples=int(samples) if samples is not None and samples.isdigit() else None,
        samples_option="--train-num-samples",
        epochs=int(command.number("--epochs", default=32)),
        accumulation=int(command.number("--accum-freq", default=1)),
        warmup_steps=int(command.number("--warmup", default=_WARMUP)),
        learning_rate=command.number("--lr", default=_LR),
        buffered=SHUFFLE_INITIAL,
        buffer=SHUFFLE_SIZE,
    )


def options(given: Assignment) -> Mapping[str, str]:
    """As open_clip_train/params.py names them. It goes on from its newest checkpoint, if it has any."""
    told = {
        "--train-data": given.tars,
        "--dataset-type": "webdataset",
        "--train-num-samples": str(given.samples),
        "--epochs": str(given.epochs),
        "--batch-size": str(given.batch_size // given.ranks // given.accumulation),
        "--accum-freq": str(given.accumulation),
        "--workers": str(given.workers),
        "--model": given.model,
        **given.model_options,
        "--lr": f"{given.learning_rate:g}",
        "--warmup": str(given.warmup_steps),
        "--lr-scheduler": {"cosine": "cosine", "constant": "const"}[given.schedule],
        "--wd": f"{given.weight_decay:g}",
        "--beta1": f"{given.betas[0]:g}",
        "--beta2": f"{given.betas[1]:g}",
        "--eps": f"{given.eps:g}",
        "--precision": {"fp32": "fp32", "bf16": "amp_bf16", "fp16": "amp"}[given.precision],
        "--seed": str(given.seed),
        "--log-every-n-steps": str(given.log_every),
        "--save-frequency": "1",
        "--logs": str(given.folder.parent),
        "--name": given.folder.name,
        "--resume": "latest",
    }
    if given.grad_clip is not None:
        told["--grad-clip-norm"] = f"{given.grad_clip:g}"
    if given.held_out is not None:
        told |= {"--val-data": given.held_out, "--val-num-samples": str(given.held_out_samples)}
    return told


def _rules(command: Command) -> Sequence[Rule]:
    needs = {"caption": ("txt",), "image": IMAGES}
    return (Rule("filter_no_caption_or_no_image", DATA, READ_FROM, needs),)


def checkpoints(command: Command) -> Sequence[str]:
    """`LOGS/NAME/checkpoints/*.pt`, of any name where the trainer makes one up from the time."""
    if command.option("--save-frequency") == "0" and not command.has("--save-most-recent"):
        last = f"epoch_{command.number('--epochs', default=32):.0f}.pt"
    else:
        last = "epoch_*.pt"
    logs = command.path(command.option("--logs") or "logs")
    name = command.option("--name")
    return (f"{glob.escape(str(logs))}/{glob.escape(name) if name else '*'}/checkpoints/{last}",)


OPEN_CLIP = Trainer(
    name="open_clip",
    recognises=is_open_clip,
    data=data,
    rules=_rules,
    lines=LINES,
    checkpoints=checkpoints,
    options=options,
    failures=FAILURES,
    must_log_steps=True,
    probe="open_clip_probe.py",
    webdataset=">=0.2.5,<1",
)
