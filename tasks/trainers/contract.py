"""The description of a trainer: its command, what it needs in a sample, its log lines, and proof of success.

A trainer is a value, not a class to derive from, because trainers differ in patterns, defaults and a few
small functions of a command. `rules` are transcribed from the version that each one names. They serve where
only a process is observed or the trainer is not installed; preflight runs the trainer's own pipeline wherever
it can.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tasks.core.schema import Train
from tasks.trainers.command import Command

Phase = Literal["start", "first_batch", "step", "validate", "checkpoint", "end"]
"""The part of a training that a log line belongs to; `first_batch` is the wait for the first batch."""


_COLOURS = re.compile(r"\x1b\[(?:[\d;?]*[B-Za-z]|\d+A)")
"""Escape sequences of a terminal, but the one by which tqdm returns from an inner bar to the outer one."""


@dataclass(frozen=True)
class DataArguments:
    """The training data that a command names, with the trainer's defaults filled in.

    `tars` is the location as given, which may hold braces and `::`; it is None where the training reads no
    tars. `workers` and `batch_size` are per rank, `samples` per epoch. `buffered` is the number of samples
    that a worker reads into its shuffle buffer before it yields the first one, `buffer` the size that the
    buffer then reaches.
    """

    tars: str | None
    batch_size: int
    workers: int
    is_resampled: bool = False
    samples: int | None = None
    samples_option: str = ""
    epochs: int = 1
    accumulation: int = 1
    warmup_steps: int = 0
    learning_rate: float | None = None
    buffered: int = 0
    buffer: int = 0


@dataclass(frozen=True)
class Rule:
    """A filter of the trainer. A sample passes if it has a member of each entry of `needs`.

    The filter is the function or class `name` in `file`, transcribed from version `read_from`.
    """

    name: str
    file: str
    read_from: str
    needs: Mapping[str, tuple[str, ...]]

    def refusal(self, suffixes: Collection[str]) -> str | None:
        """Return what a sample with these members lacks, such as "no caption (txt)", or None if it passes."""
        missing = [
            f"no {what} ({', '.join(members)})"
            for what, members in self.needs.items()
            if not any(member in suffixes for member in members)
        ]
        return ", ".join(missing) or None

    def place(self, command: Command) -> str:
        """Return `open_clip_train/data.py:163, filter_no_caption_or_no_image`; the line is left out where the
        trainer is not installed."""
        path, line = command.source(self.file), ""
        if path is not None:
            text = path.read_text(errors="replace")
            found = re.search(rf"^[ \t]*(?:def|class) {re.escape(self.name)}\b", text, re.MULTILINE)
            line = "" if found is None else f":{1 + text[: found.start()].count(chr(10))}"
        return f"{self.file}{line}, {self.name}"


@dataclass(frozen=True)
class Progress:
    """The progress in a log line: `done` of `total`, in the unit that the trainer counts, and the loss.

    `done` starts again with each `epoch` where the trainer counts epochs.
    """

    phase: Phase
    done: float | None = None
    total: float | None = None
    epoch: int | None = None
    loss: float | None = None


@dataclass(frozen=True)
class LogLine:
    """A kind of log line. The groups `done`, `total`, `epoch` and `loss` of the pattern are numbers."""

    phase: Phase
    pattern: re.Pattern[str]

    def read(self, line: str) -> Progress | None:
        found = self.pattern.search(line)
        if found is None:
            return None
        numbers = {name: _number(text) for name, text in found.groupdict().items() if text is not None}
        done, total, epoch, loss = map(numbers.get, ("done", "total", "epoch", "loss"))
        return Progress(self.phase, done, total, None if epoch is None else int(epoch), loss)


@dataclass(frozen=True)
class Reached:
    """How far a training came by its own record `file`, written at a time in Unix seconds: `step` of
    `steps`, or of epochs where the trainer counts those."""

    step: int
    steps: int
    file: Path
    written: float


@dataclass(frozen=True)
class Contrast:
    """Among how many `pairs` a step chooses, all ranks together, and the samples of the warm-up."""

    pairs: int
    warmup_samples: int


@dataclass(frozen=True)
class Assignment:
    """A training by Tarmac's config; `Trainer.options` translates it into the trainer's options.

    `tars` are brace patterns. `samples` is per epoch, and the trainer saves after each epoch. `model` is the
    name of one of the trainer's models, or the folder of a description, which `model_options` modify.
    """

    tars: str
    samples: int
    held_out: str | None
    held_out_samples: int
    epochs: int
    ranks: int
    accumulation: int
    workers: int
    model: str
    model_options: Mapping[str, str]
    train: Train
    folder: Path
    """The folder that the trainer writes to."""


@dataclass(frozen=True)
class Trainer:
    """A row of the table of trainers.

    `lines` are tried in order. `checkpoints` are patterns of the files that the command writes. A line that
    matches one of `failures` proves that the training failed, whatever the exit code. `probe` is a script
    beside this module; the trainer's own interpreter runs it to execute the trainer's data pipeline.
    """

    name: str
    recognises: Callable[[Command], bool]
    data: Callable[[Command], DataArguments | None] = lambda command: None
    rules: Callable[[Command], Sequence[Rule]] = lambda command: ()
    lines: Sequence[LogLine] = ()
    checkpoints: Callable[[Command], Sequence[str]] = lambda command: ()
    options: Callable[[Assignment], Mapping[str, str]] | None = None
    """The options for an assignment; an empty value stands for an option that takes none."""
    failures: Sequence[re.Pattern[str]] = ()
    must_log_steps: bool = False
    """Whether every successful training has logged at least one step."""
    reached: Callable[[Command], Reached | None] = lambda command: None
    """Returns how far the training of a command has come by the record that the trainer keeps."""
    record: Callable[[Path], Reached | None] = lambda folder: None
    """Returns the same by the folder that the trainer writes to; the numbers are those of its checkpoints."""
    setting: re.Pattern[str] | None = None
    """The lines in which it prints its parameters at its start, with the groups name and value."""
    contrast: Callable[[Mapping[str, str]], Contrast | None] = lambda settings: None
    """What such settings say of its loss; None unless it is a contrast of all pairs, at chance ln(pairs)."""
    workers_option: str = "DataLoader(num_workers=N)"
    """Where a user sets the number of loader workers, N."""
    probe: str | None = None
    webdataset: str = ""
    """The versions of webdataset that the trainer works with, in pip's notation."""
    needs_reinforcement: bool = False
    """Whether samples need the outputs of teacher models."""

    def progress(self, line: str) -> Progress | None:
        """Return the progress in a line of the log, or None if it shows none. Colours are taken out."""
        line = _COLOURS.sub("", line)
        return next((found for kind in self.lines if (found := kind.read(line)) is not None), None)

    def failed(self, line: str) -> bool:
        """Return whether a line of the log proves that the training failed."""
        return any(failure.search(line) for failure in self.failures)

    def refusal(self, command: Command, suffixes: Collection[str]) -> str | None:
        """Return why the trainer would drop a sample with these members, or None if it would not."""
        return next((why for rule in self.rules(command) if (why := rule.refusal(suffixes))), None)


def _number(text: str) -> float:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return float("nan")
