"""open_clip's trainer (`python -m open_clip_train.main`) and the two that are built on it.

OPEN_CLIP is release line 2 and 3, read from version 3.3.0. OPEN_CLIP_MAIN is line 4 (the main branch), read
from 4.2.0.dev0: there `--image-key` and `--text-key` name the members that make a pair, and with
`--json-text-key` the caption is a field of the `json`. MOBILECLIP is a patch for commit 7260a46 (2025-03-17)
that trains on reinforced shards: it has the pipeline of line 3, and needs members from teacher models in
addition. All three log and save alike.
"""

from __future__ import annotations

import glob
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from tasks.trainers.command import Command
from tasks.trainers.contract import (
    Assignment,
    Contrast,
    DataArguments,
    LogLine,
    Reached,
    Rule,
    Trainer,
)

DATA = "open_clip_train/data.py"
SHUFFLE_INITIAL, SHUFFLE_SIZE = 1000, 5000
"""`_SAMPLE_SHUFFLE_INITIAL` and `_SAMPLE_SHUFFLE_SIZE` of DATA: samples per worker, undecoded."""
_IMAGES = ("png", "jpg", "jpeg", "webp")
_LINE_4_OPTIONS = ("--image-key", "--text-key", "--json-text-key", "--max-image-pixels", "--length-bucketing")

SAVED = re.compile(r"epoch_(?P<epoch>\d+)\.pt")

_LINES = (
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


def _is_open_clip(command: Command) -> bool:
    """Return whether the command starts open_clip's trainer, in any release line."""
    module, script = command.module.removeprefix("src."), command.script.replace("\\", "/")
    return module in ("open_clip_train.main", "training.main") or script.endswith(
        ("open_clip_train/main.py", "training/main.py")
    )


def _contrast(settings: Mapping[str, str]) -> Contrast | None:
    """Return what the parameters say of the loss; None before they are printed, and for a sigmoid loss."""
    try:
        pairs = math.prod(int(settings[name]) for name in ("batch_size", "accum_freq", "world_size"))
        is_contrast = settings["siglip"] == "False"
        return Contrast(pairs, int(settings["warmup"]) * pairs) if is_contrast else None
    except (KeyError, ValueError):
        return None


def _data(command: Command) -> DataArguments | None:
    """Return the data arguments of the command, with the defaults of open_clip_train/params.py."""
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
        warmup_steps=int(command.number("--warmup", default=10_000)),
        learning_rate=command.number("--lr", default=5e-4),
        buffered=SHUFFLE_INITIAL,
        buffer=SHUFFLE_SIZE,
    )


def _options(given: Assignment) -> dict[str, str]:
    """Return the options under the names of open_clip_train/params.py. The training resumes from its newest
    checkpoint, if it has any."""
    train = given.train
    options = {
        "--train-data": given.tars,
        "--dataset-type": "webdataset",
        "--train-num-samples": str(given.samples),
        "--epochs": str(given.epochs),
        "--batch-size": str(train.batch_size // given.ranks // given.accumulation),
        "--accum-freq": str(given.accumulation),
        "--workers": str(given.workers),
        "--model": given.model,
        **given.model_options,
        "--lr": f"{train.peak('model'):g}",
        "--warmup": str(train.warmup_steps),
        "--lr-scheduler": {"cosine": "cosine", "constant": "const"}[train.schedule],
        "--wd": f"{train.weight_decay:g}",
        "--beta1": f"{train.betas[0]:g}",
        "--beta2": f"{train.betas[1]:g}",
        "--eps": f"{train.eps:g}",
        "--precision": {"bf16": "amp_bf16", "fp16": "amp"}.get(train.precision, "fp32"),
        "--seed": str(train.seed),
        "--log-every-n-steps": str(train.log_every),
        "--save-frequency": "1",
        "--logs": str(given.folder.parent),
        "--name": given.folder.name,
        "--resume": "latest",
    }
    if train.grad_clip:
        options["--grad-clip-norm"] = f"{train.grad_clip:g}"
    if given.held_out is not None:
        options |= {"--val-data": given.held_out, "--val-num-samples": str(given.held_out_samples)}
    return options


def _checkpoints(command: Command) -> Sequence[str]:
    """Return `LOGS/NAME/checkpoints/*.pt`; without --name the trainer makes one up from the time, and any
    name matches."""
    if command.option("--save-frequency") == "0" and not command.has("--save-most-recent"):
        last = f"epoch_{command.number('--epochs', default=32):.0f}.pt"
    else:
        last = "epoch_*.pt"
    logs = command.path(command.option("--logs") or "logs")
    name = command.option("--name")
    return (f"{glob.escape(str(logs))}/{glob.escape(name) if name else '*'}/checkpoints/{last}",)


def _params(folder: Path) -> Reached | None:
    """Return the newest epoch that is saved, of those in `params.txt`, which the trainer writes at its start.

    It saves the last one whatever its options, and ends then.
    """
    path = folder / "params.txt"
    with suppress(OSError):
        asked = re.search(r"^epochs: (\d+)$", path.read_text(errors="replace"), re.MULTILINE)
        saved = [SAVED.fullmatch(one.name) for one in (folder / "checkpoints").iterdir()]
        epochs = [int(found["epoch"]) for found in saved if found is not None]
        if asked is not None:
            return Reached(max(epochs, default=0), int(asked[1]), path, path.stat().st_mtime)
    return None


def _is_line_4(command: Command) -> bool:
    if not _is_open_clip(command):
        return False
    version = command.version("open_clip_torch")
    return command.has(*_LINE_4_OPTIONS) if version is None else int(version.partition(".")[0]) >= 4


def _rules_of_line_4(command: Command) -> Sequence[Rule]:
    images = tuple((command.option("--image-key") or "jpg;png;jpeg;webp").split(";"))
    texts = tuple((command.option("--text-key") or "txt").split(";"))
    if command.has("--json-text-key"):
        texts = ("json",)
    needs = {"caption": texts, "image": images}
    return (Rule("FilterValidSample", DATA, "open_clip_torch 4.2.0.dev0", needs),)


def _options_of_mobileclip(given: Assignment) -> Mapping[str, str]:
    """Leave held-out tars out: the fork's own validation does not accept what its pipeline makes of
    reinforced samples."""
    options = {name: value for name, value in _options(given).items() if not name.startswith("--val-")}
    return {**options, "--dataset-reinforcement": ""}


_FILTER = Rule(
    "filter_no_caption_or_no_image",
    DATA,
    "open_clip_torch 3.3.0",
    {"caption": ("txt",), "image": _IMAGES},
)
_REINFORCED_FILTER = replace(
    _FILTER,
    read_from="ml-mobileclip's patch of open_clip 7260a46",
    needs={
        **_FILTER.needs,
        "augmentations": ("paug.json",),
        "synthetic captions": ("syn.json",),
        "teacher embeddings": ("npz", "pth.gz"),
    },
)

OPEN_CLIP = Trainer(
    name="open_clip",
    workers_option="--workers N",
    recognises=_is_open_clip,
    data=_data,
    rules=lambda command: (_FILTER,),
    lines=_LINES,
    checkpoints=_checkpoints,
    record=_params,
    options=_options,
    failures=(re.compile(r"^Error\. Experiment already exists"), re.compile(r"Error: remote sync failed")),
    setting=re.compile(
        r"\| INFO \|   (?P<name>batch_size|accum_freq|world_size|warmup|siglip): (?P<value>\S+)$"
    ),
    contrast=_contrast,
    must_log_steps=True,
    probe="open_clip_probe.py",
    webdataset=">=0.2.5,<1",
)
OPEN_CLIP_MAIN = replace(
    OPEN_CLIP, name="open_clip main", recognises=_is_line_4, rules=_rules_of_line_4, webdataset=""
)
MOBILECLIP = replace(
    OPEN_CLIP,
    name="MobileCLIP",
    recognises=lambda command: _is_open_clip(command) and command.has("--dataset-reinforcement"),
    rules=lambda command: (_REINFORCED_FILTER,),
    options=_options_of_mobileclip,
    needs_reinforcement=True,
)
