"""The table of trainers, Tarmac's own and others.

A trainer that is known by its command, its log lines and its checkpoints is a row here. One that also has
rules about its data gets a module, as open_clip has.
"""

from __future__ import annotations

import glob
import json
import re
from contextlib import suppress
from pathlib import Path

from tasks.trainers.command import Command
from tasks.trainers.contract import LogLine, Phase, Reached, Trainer
from tasks.trainers.open_clip import MOBILECLIP, OPEN_CLIP, OPEN_CLIP_MAIN

_LIGHTNING_IMPORT = re.compile(r"^\s*(?:import|from) (?:lightning|pytorch_lightning)\b", re.MULTILINE)
_TRAINER_IMPORT = re.compile(
    r"^\s*(?:import|from) (?:transformers|trl|sentence_transformers)\b", re.MULTILINE
)
_ACCELERATE_IMPORT = re.compile(r"^\s*(?:import|from) accelerate\b", re.MULTILINE)
_YOLO_IMPORT = re.compile(r"^\s*(?:import|from) ultralytics\b", re.MULTILINE)
_OUTPUT = re.compile(
    r"""(?:output_dir\s*=|(?:Training|\w+Training)Arguments\(|\w+Config\()\s*["'](?P<folder>[^"']+)["']"""
)
_NANO_VLM_FILES = ("models/vision_language_model.py", "data/advanced_datasets.py")


def _is_tarmac(command: Command) -> bool:
    starts = command.module == "flows.cli" or command.program == "tarmac"
    return command.module == "tasks.training.rank" or (
        starts and command.arguments[:1] in (("run",), ("train",))
    )


def _is_nano_vlm(command: Command) -> bool:
    folder = command.path(command.script).parent
    return command.program == "train.py" and any((folder / file).is_file() for file in _NANO_VLM_FILES)


def _below_folder(command: Command, *patterns: str) -> tuple[str, ...]:
    return tuple(f"{glob.escape(str(command.folder))}/{pattern}" for pattern in patterns)


_COUNT = r"[ :=#\[(]+\s*(?P<done>\d[\d,]*)(?:\s*(?:/|of)\s*(?P<total>\d[\d,]*))?"
_LOSS = r"(?:.*?(?:\b|_)loss\b['\"]?[ :=]+(?P<loss>[-+]?(?:\d[\d.]*(?:e[-+]?\d+)?|nan|inf)))?"
_BAR = r"\d+%\|[^|]*\|\s*(?P<done>\d+)/(?P<total>\d+) \["
_PREPARING = (
    r"^(?:Map|Filter|Generat|Download|Load|Build|Tokeniz|Truncat|Dropp|"
    r"Pack|Comput|Fetch|Resolv|Extract|Prepar)"
)
_PATTERNS: tuple[tuple[Phase, str], ...] = (
    ("checkpoint", r"^(?:Writing|Saving) [^|]*:\s+\d+%\|"),
    ("validate", _BAR + r".*\x1b\[A"),
    ("validate", r"(?:eval|valid)\w*\b[^|]*\|[^|]*\|\s*(?P<done>\d+)/(?P<total>\d+) \["),
    ("validate", r"\{'eval_\w+': "),
    ("start", _PREPARING + r"[^|]*:\s+\d+%\||\d+%\|[^|]*\|.*\b(?:ex|examples?|files?|[kMG]?B)/s\]"),
    ("end", r"\{'train_runtime': (?:.*'train_loss': '?(?P<loss>[^',}]+))?"),
    ("step", r"\{'loss': .*'grad_norm': '?(?P<loss>nan)"),
    ("step", r"\{'loss': '?(?P<loss>[^',}]+)"),
    ("step", r"\|Loss: (?P<loss>[^\s:]+): *" + _BAR),
    ("step", _BAR + _LOSS),
    ("step", r"\b(?P<done>\d+)it \[\d+:\d\d"),
    ("step", r"\bepoch (?P<epoch>\d+):\s+(?P<done>\d+) / (?P<total>\d+) loss=(?P<loss>[^\s,]+)"),
    ("step", r"^(?!\s*wandb: ).*?\b(?:global[_ ])?(?:step|iter|iteration|batch|update)s?" + _COUNT + _LOSS),
)
_LINES = tuple(LogLine(phase, re.compile(pattern, re.IGNORECASE)) for phase, pattern in _PATTERNS)
"""The lines of any training: tqdm bars, the dictionaries of Hugging Face's Trainer, and counts of steps.

A count is progress where a word for a step stands before it. An epoch alone is not: many trainings print it
once before the wait for the first batch. A bar above which the cursor returns is one within another, which is
an evaluation's; a bar that counts examples or bytes prepares data. Lines of wandb are about its uploads. The
Trainer of transformers 5.23 prints a loss as `{'loss': '0.75', ...}`, torchtune as `1|25|Loss: 0.75: 10%|`,
fairseq as `epoch 001:    100 / 1102 loss=9.4, ...`.
"""


def _run_record(folder: Path) -> Reached | None:
    """Return how far a run of Tarmac came, once it has succeeded: by evidence, as its agent judges it."""
    path = folder / "run.json"
    with suppress(OSError, ValueError, KeyError, TypeError):
        run = json.loads(path.read_bytes())
        if run["state"] == "succeeded":
            steps = int(run["identity"]["steps"])
            return Reached(steps, steps, path, path.stat().st_mtime)
    return None


TARMAC = Trainer(
    name="tarmac",
    workers_option="loader.workers: N",
    recognises=_is_tarmac,
    record=_run_record,
    lines=(LogLine("step", re.compile(r"\btrain\s+(?P<done>[\d,]+)\s*/\s*(?P<total>[\d,]+) steps")),),
)
"""Tarmac's own training. Its ranks write their phases into the run folder, which is more exact than a log."""

NANO_VLM = Trainer(
    name="nanoVLM",
    recognises=_is_nano_vlm,
    lines=(
        LogLine("step", re.compile(r"Step:? (?P<done>\d+),? Loss: (?P<loss>[^\s,]+)")),
        LogLine("validate", re.compile(r"^Step: \d+, Val Loss: ")),
        LogLine("first_batch", re.compile(r"Warming up dataloaders|Starting training loop")),
        *_LINES,
    ),
    checkpoints=lambda command: _below_folder(command, "checkpoints/*/step_*/model.safetensors"),
    must_log_steps=True,
)
"""nanoVLM's `train.py`, read from its HEAD of 2025-10-27. It reads Hugging Face datasets, no tars."""

LIGHTNING = Trainer(
    name="Lightning",
    recognises=lambda command: bool(_LIGHTNING_IMPORT.search(command.text)),
    lines=(
        LogLine("validate", re.compile(r"(?:Sanity Checking|Validation)(?: DataLoader \d+)?:? ")),
        LogLine(
            "step",
            re.compile(
                r"Epoch (?P<epoch>\d+)(?::\s+\d+%\|[^|]*\||/\d+\s+[━╸╺ ]+)\s*(?P<done>\d+)/(?P<total>\d+)"
                r"(?:.*?\b(?:train_)?loss(?:_step)?(?:=|: )(?P<loss>[^\s,\]]+))?"
            ),
        ),
        LogLine("step", re.compile(r"^\s+(?:train_)?loss(?:_step)?: (?P<loss>\S+)\s*$")),
        LogLine("end", re.compile(r"`Trainer\.fit` stopped: ")),
        *_LINES,
    ),
    checkpoints=lambda command: _below_folder(
        command, "lightning_logs/version_*/checkpoints/*.ckpt", "checkpoints/*.ckpt"
    ),
)
"""Trainings by PyTorch Lightning (2.6, with tqdm's or rich's bar), recognised by what the script imports.

The progress bar is the same in all of them, and so is the checkpoints' folder unless the script names
another. The script decides what it reads, so there are no data rules.
"""


def _is_hugging_face(command: Command) -> bool:
    is_script = _TRAINER_IMPORT.search(command.text) is not None and "Trainer" in command.text
    return is_script or command.program in ("trl", "llamafactory-cli", "axolotl.cli.train")


def _output_folder(command: Command) -> str:
    """Return the folder that the command or else its script names, or else the Trainer's default."""
    given = command.option("--output_dir", "--output-dir")
    named = _OUTPUT.search(command.text)
    return given or (named["folder"] if named is not None else "trainer_output")


def _weights(command: Command, *folders: str) -> tuple[str, ...]:
    """Return patterns of the files of weights in these folders of the command's output folder."""
    base = glob.escape(str(command.path(_output_folder(command))))
    return tuple(f"{base}/{folder}/*model*.{end}" for folder in folders for end in ("safetensors", "bin"))


def _trainer_state(base: Path) -> Reached | None:
    """Return how far the newest `trainer_state.json` says that the training came."""
    found: list[tuple[float, Path]] = []
    for path in base.glob("checkpoint-*/trainer_state.json"):
        with suppress(OSError):
            found.append((path.stat().st_mtime, path))
    for written, path in sorted(found, reverse=True)[:1]:
        with suppress(OSError, ValueError, KeyError, TypeError):
            state = json.loads(path.read_bytes())
            return Reached(int(state["global_step"]), int(state["max_steps"]), path, written)
    return None


HUGGING_FACE = Trainer(
    name="Hugging Face Trainer",
    workers_option="--dataloader_num_workers N",
    recognises=_is_hugging_face,
    lines=_LINES,
    checkpoints=lambda command: _weights(command, "checkpoint-*"),
    reached=lambda command: _trainer_state(command.path(_output_folder(command))),
    record=_trainer_state,
)
"""The Trainer of transformers 5.23 and what builds on it: TRL 1.16, sentence-transformers 6.2, LLaMA-Factory,
axolotl."""

ACCELERATE = Trainer(
    name="accelerate",
    recognises=lambda command: bool(_ACCELERATE_IMPORT.search(command.text)),
    lines=_LINES,
    checkpoints=lambda command: (
        *_weights(command, "checkpoint-*", "step_*", "epoch_*", "*", ""),
        *_below_folder(
            command,
            *(
                f"{place}*model*.{end}"
                for place in ("", "*/", "*/*/", "*/*/*/")
                for end in ("safetensors", "bin")
            ),
        ),
    ),
)
"""Scripts on accelerate 1.15, as diffusers' examples are: their bars, and their folders of states, which a
script names as it likes."""

YOLO = Trainer(
    name="YOLO",
    workers_option="workers=N",
    recognises=lambda command: (
        (command.program == "yolo" and "train" in command.arguments[:2])
        or bool(_YOLO_IMPORT.search(command.text))
    ),
    lines=(
        LogLine(
            "step",
            re.compile(
                r"^\s*(?P<epoch>\d+)/\d+\s+[\d.]+G\s+(?P<loss>\S+)\s.*:\s*\d+%\s*"
                r"(?:\|[^|]*\||[━─╸╺ ]+)\s*(?P<done>\d+)/(?P<total>\d+)"
            ),
        ),
        LogLine("validate", re.compile(r"^\s*Class\s+Images\s+Instances")),
        LogLine("end", re.compile(r"^\d+ epochs completed in")),
    ),
    checkpoints=lambda command: _below_folder(command, "runs/*/*/weights/*.pt", "*/*/weights/*.pt"),
)
"""Ultralytics' YOLO 8.4, by its command or in a script. The loss is the first of those that it prints, the
boxes' in a detection."""

FAIRSEQ = Trainer(
    name="fairseq",
    workers_option="--num-workers N",
    recognises=lambda command: command.program in ("fairseq-train", "fairseq-hydra-train"),
    lines=_LINES,
    checkpoints=lambda command: (
        f"{glob.escape(str(command.path(command.option('--save-dir') or 'checkpoints')))}/checkpoint*.pt",
    ),
)

GENERIC = Trainer(name="generic", recognises=lambda command: True, lines=_LINES)
"""Any training of which nothing is known but that it writes lines."""

TRAINERS = (
    *(TARMAC, MOBILECLIP, OPEN_CLIP_MAIN, OPEN_CLIP, NANO_VLM),
    *(LIGHTNING, YOLO, HUGGING_FACE, ACCELERATE, FAIRSEQ, GENERIC),
)
"""A command belongs to the first trainer that recognises it; the last one recognises every command."""

_BY_NAME = {
    "open_clip": OPEN_CLIP,
    "mobileclip": MOBILECLIP,
    "nano_vlm": NANO_VLM,
    "lightning": LIGHTNING,
    "transformers": HUGGING_FACE,
    "accelerate": ACCELERATE,
    "yolo": YOLO,
    "fairseq": FAIRSEQ,
    "generic": GENERIC,
}
"""The trainers by the names that a config uses."""


def recognise(command: Command, name: str | None = None) -> Trainer:
    """Return the trainer that a command starts: the one that the config names, if any, else the first that
    recognises the command, else GENERIC."""
    if name is not None:
        return _BY_NAME[name]
    return next(trainer for trainer in TRAINERS if trainer.recognises(command))


def record_in(folder: Path) -> Reached | None:
    """Return how far a training came by its record in a folder, or in the one above where that is its folder
    of checkpoints; None where no trainer has left one."""
    places = [folder, folder.parent] if folder.name == "checkpoints" else [folder]
    found = (trainer.record(place) for place in places for trainer in TRAINERS)
    return next((reached for reached in found if reached is not None), None)
