"""What a trainer is to Tarmac: its command, what it asks of data, what its log says, what proves success.

A trainer is a value, not a class to derive from: what differs between trainers is patterns, defaults and a
few small functions of a command. `rules` are transcribed from a version that each names, for those who look
at a process or have the trainer not installed; preflight runs the trainer's own pipeline wherever it can.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tasks.trainers.command import Command

Phase = Literal["start", "first_batch", "step", "validate", "checkpoint", "end"]
"""What a log line shows to be under way; `first_batch` is the wait for it, `start` all before that."""


@dataclass(frozen=True)
class DataArguments:
    """What a command says of its training data, with the trainer's defaults filled in.

    `tars` is the location as given, which may hold braces and `::`; None where the training reads no tars.
    `workers` and `batch_size` are per rank, `samples` per epoch. `buffered` are the samples that a worker
    reads into its shuffle buffer before it yields the first, `buffer` is what the buffer then grows to.
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
    """One condition that a sample must meet: of each of `needs` at least one member.

    `file` and `name` say where the rule stands, `read_from` in which version it was read.
    """

    name: str
    file: str
    read_from: str
    needs: Mapping[str, tuple[str, ...]]

    def refusal(self, suffixes: Collection[str]) -> str | None:
        """What a sample with these members lacks, such as "no caption (txt)"; None where it passes."""
        missing = [
            f"no {what} ({', '.join(members)})"
            for what, members in self.needs.items()
            if not any(member in suffixes for member in members)
        ]
        return ", ".join(missing) or None

    def place(self, command: Command) -> str:
        """`open_clip_train/data.py:163, filter_no_caption_or_no_image`, or without the line."""
        path = command.source(self.file)
        line = _line_of(path.read_text(errors="replace"), self.name) if path is not None else None
        return f"{self.file}{f':{line}' if line else ''}, {self.name}"


@dataclass(frozen=True)
class Progress:
    """What a log line says: how much of how much is done, in whatever the trainer counts, and the loss.

    `done` begins again with each `epoch` where the trainer counts epochs.
    """

    phase: Phase
    done: float | None = None
    total: float | None = None
    epoch: int | None = None
    loss: float | None = None


@dataclass(frozen=True)
class LogLine:
    """A kind of log line. Its pattern's groups `done`, `total`, `epoch` and `loss` are numbers."""

    phase: Phase
    pattern: re.Pattern[str]

    def read(self, line: str) -> Progress | None:
        found = self.pattern.search(line)
        if found is None:
            return None
        numbers = {name: _number(text) for name, text in found.groupdict().items() if text is not None}
        epoch = numbers.get("epoch")
        return Progress(
            self.phase,
            numbers.get("done"),
            numbers.get("total"),
            None if epoch is None else int(epoch),
            numbers.get("loss"),
        )


@dataclass(frozen=True)
class Assignment:
    """What a trainer is to do, in Tarmac's words; `Trainer.options` puts it into its own.

    `tars` are brace patterns; `samples` are per epoch, after each of which the trainer saves. `model` is the
    name of one of its models, or the folder of a description, and `model_options` what changes it.
    `betas` and `eps` are Adam's. `batch_size` is over all of `ranks`.
    """

    tars: str
    samples: int
    held_out: str | None
    held_out_samples: int
    epochs: int
    batch_size: int
    ranks: int
    accumulation: int
    workers: int
    model: str
    model_options: Mapping[str, str]
    learning_rate: float
    warmup_steps: int
    schedule: str
    weight_decay: float
    grad_clip: float | None
    betas: tuple[float, float]
    eps: float
    precision: str
    seed: int
    log_every: int
    folder: Path
    """Where the trainer keeps what it writes."""


@dataclass(frozen=True)
class Trainer:
    """All that is known of a trainer.

    `lines` are tried in order. `checkpoints` are patterns of files that the command writes. A line in
    `failures` proves that the training failed, whatever its exit code. `probe` is a script beside this module
    which the trainer's own interpreter runs to execute its data pipeline.
    """

    name: str
    recognises: Callable[[Command], bool]
    data: Callable[[Command], DataArguments | None] = lambda command: None
    rules: Callable[[Command], Sequence[Rule]] = lambda command: ()
    lines: Sequence[LogLine] = ()
    checkpoints: Callable[[Command], Sequence[str]] = lambda command: ()
    options: Callable[[Assignment], Mapping[str, str]] | None = None
    """The command's options that say so; an empty value stands for an option that takes none."""
    failures: Sequence[re.Pattern[str]] = ()
    must_log_steps: bool = False
    """Whether a training that went well has logged at least one step."""
    probe: str | None = None
    webdataset: str = ""
    """The versions of webdataset that it works with, as pip takes them."""
    needs_reinforcement: bool = False
    """Whether a sample also brings what teachers said of it."""

    def progress(self, line: str) -> Progress | None:
        """What a line of the log says of the training; None where it says nothing."""
        return next((found for kind in self.lines if (found := kind.read(line)) is not None), None)

    def refusal(self, command: Command, suffixes: Collection[str]) -> str | None:
        """Why this trainer would drop a sample with these members; None where its filters let it pass."""
        return next((why for rule in self.rules(command) if (why := rule.refusal(suffixes))), None)


def _number(text: str) -> float:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return float("nan")


def _line_of(text: str, name: str) -> int | None:
    found = re.search(rf"^\s*(?:def|class) {re.escape(name)}\b", text, re.MULTILINE)
    return None if found is None else text.count("\n", 0, found.start()) + 1 + found[0].count("\n")
