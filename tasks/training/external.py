"""`python -m tasks.training.external RUN_FOLDER`: another trainer's command in the place of a rank.

It starts the command, reads its log line by line and says in the run's folder what a rank would: phases,
metrics, checkpoints. So the agent watches, stops and judges it like any training, and evaluators meet its
checkpoints as those of recipe clip. The price is that it knows of the training only what the log tells, and
that a checkpoint is written twice.

A trainer that counts in epochs is given epochs of `train.checkpoint_every` steps: after each it saves
`epoch_<k>.pt`. A command of one's own is told the run by the variables TARMAC_DATA (the version),
TARMAC_OUTPUT (a folder) and TARMAC_TRAIN (the train block as JSON), and saves state dicts in that folder, as
checkpoints/step_<n>.pt or .safetensors.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tasks.core import config as configs
from tasks.core.errors import DataError, TarmacError, UsageError
from tasks.core.files import read_lines
from tasks.core.process import Identity, kill_tree, signal_at_starters_end
from tasks.loader.settings import read_settings
from tasks.runs import record
from tasks.runs.checkpoints import list_checkpoints
from tasks.runs.data import version_path
from tasks.runs.environment import agent_of, leave_if_taken_over
from tasks.runs.folder import RunFolder
from tasks.runs.metrics import TRAIN_AXIS, MetricsWriter, make_row
from tasks.runs.phases import PhaseWriter
from tasks.trainers.contract import Progress, Trainer
from tasks.training.external_command import command_of
from tasks.training.rank import leave_with_starter

POLL_S = 0.5
SETTLED_S = 2.0
"""A checkpoint that has not grown for so long is taken to be whole, unless it does not load."""
STOP_COMES_S = 10.0
"""How long an agent that has got SIGTERM may take to order the stop."""
END_S = 10.0
"""How long the command may take to end when it is asked to."""
SAVED = re.compile(r"(?P<unit>epoch|step)_(?P<count>\d+)\.(?:pt|safetensors)")
VALIDATION_LOSS = "clip_val_loss"
"""What open_clip's `results.jsonl` calls it."""
BESIDE = ("epoch", "num_samples")
logger = logging.getLogger(__name__)


@dataclass
class TrainerPosition:
    """Where the command is, in steps of `per_epoch` to an epoch where it counts in epochs."""

    per_epoch: int
    step: int = 0

    def of(self, said: Progress) -> int:
        """The step that a line of the log speaks of."""
        if said.done is None:
            return self.step
        if said.epoch is None:
            return int(said.done)
        share = said.done / said.total if said.total else 0.0
        return said.epoch * self.per_epoch + round(share * self.per_epoch)


@dataclass
class Following:
    """A command at work, and what its log and its files have told so far."""

    run: RunFolder
    trainer: Trainer
    process: subprocess.Popen[bytes]
    place: TrainerPosition
    phases: PhaseWriter
    metrics: MetricsWriter
    output: Path
    failure: str = ""
    converted: set[int] = field(default_factory=set)
    results_read: int = 0
    validated: dict[int, float] = field(default_factory=dict)
    """The validation loss by step."""
    is_terminated: threading.Event = field(default_factory=threading.Event)
    """Set by SIGTERM, which Slurm sends to the command and to the agent as well."""

    def to_the_end(self) -> int:
        """Follow it until it has ended; its exit code, or 0 where the run was asked to stop."""
        assert self.process.stdout is not None
        stopped, rest = False, b""
        for chunk in self._chunks(self.process.stdout.fileno()):
            *lines, rest = re.split(rb"[\r\n]", rest + chunk)
            for line in lines:
                self._hear(line.decode(errors="replace"))
            leave_if_taken_over(self.run, self._kill)
            self._look(is_over=False)
            if self.run.stop.exists() and not stopped:
                stopped = True
                kill_tree(Identity.of(self.process.pid), END_S)
        self._hear(rest.decode(errors="replace"))
        code = self.process.wait()
        self._look(is_over=True)
        return 0 if stopped or self._is_stop_coming() else code

    def _is_stop_coming(self) -> bool:
        """Whether the command ended by the signal that makes the agent stop the run: the agent may take a
        moment to say so."""
        deadline = time.monotonic() + STOP_COMES_S
        while self.is_terminated.is_set() and not self.run.stop.exists() and time.monotonic() < deadline:
            time.sleep(POLL_S / 10)
        return self.is_terminated.is_set() and self.run.stop.exists()

    def _kill(self) -> None:
        kill_tree(Identity.of(self.process.pid), 0.0)

    def _chunks(self, descriptor: int) -> Iterator[bytes]:
        """What it prints as it comes, and an empty chunk every POLL_S. Ends with the command, also where a
        process that it left behind holds its output."""
        while True:
            is_over = self.process.poll() is not None
            ready, _, _ = select.select([descriptor], [], [], 0 if is_over else POLL_S)
            chunk = os.read(descriptor, 1 << 16) if ready else b""
            if chunk:
                sys.stdout.buffer.write(chunk)
                sys.stdout.buffer.flush()
            elif is_over:
                return
            elif ready:  # its output is closed, and it goes on
                time.sleep(POLL_S)
            yield chunk

    def _hear(self, line: str) -> None:
        if any(pattern.search(line) for pattern in self.trainer.failures):
            self.failure = self.failure or line.strip()
        said = self.trainer.progress(line)
        if said is None:
            return
        self.place.step = max(self.place.of(said), self.place.step)
        self.phases.set(said.phase, self.place.step)
        if said.phase == "step" and said.loss is not None and self.place.step:
            self.metrics.append(make_row(TRAIN_AXIS, self.place.step, "train", {"train/loss": said.loss}))

    def _look(self, *, is_over: bool) -> None:
        """Take up what it has saved and judged since."""
        self._read_results()
        for step, path in saved(self.output, self.place.per_epoch):
            if step not in self.converted and (is_over or time.time() - path.stat().st_mtime > SETTLED_S):
                self._convert(step, path, is_over=is_over)

    def _convert(self, step: int, path: Path, *, is_over: bool) -> None:
        from tasks.training.foreign_weights import Unreadable, write_checkpoint

        try:
            self.metrics.settle()
            write_checkpoint(self.run, step, path, self.validated.get(step))
        except Unreadable as error:
            if is_over:
                logger.warning("%s is no checkpoint: %s", path, error)
            return
        self.converted.add(step)
        logger.info("step %d: checkpoint taken over from %s", step, path)

    def _read_results(self) -> None:
        """What the trainer judged by itself, by line of its `results.jsonl`."""
        rows, self.results_read = read_lines(self.output / "checkpoints/results.jsonl", self.results_read)
        for row in rows:
            step = int(row.get("epoch", 0)) * self.place.per_epoch
            values = {f"val/{key}": value for key, value in row.items() if key not in BESIDE}
            loss = values.pop(f"val/{VALIDATION_LOSS}", None)
            if loss is not None:
                values["val/loss"] = self.validated[step] = loss
            if step and values:
                self.metrics.append(make_row(TRAIN_AXIS, step, "val", values))


def saved(output: Path, per_epoch: int) -> list[tuple[int, Path]]:
    """The checkpoints that a command has written, whole or not, by step."""
    found = []
    for path in output.glob("checkpoints/*"):
        name = SAVED.fullmatch(path.name)
        if name is not None:
            found.append((int(name["count"]) * (per_epoch if name["unit"] == "epoch" else 1), path))
    return sorted(found)


def set_torn_aside(output: Path, per_epoch: int, known: Collection[int]) -> None:
    """Rename what a killed trainer had begun to write, or it would try to go on from that for ever."""
    from tasks.training.foreign_weights import Unreadable, weights_of

    for step, path in saved(output, per_epoch):
        if step not in known:
            try:
                weights_of(path)
            except Unreadable as error:
                logger.warning("%s; set aside, the command goes on from the one before", error)
                path.rename(path.with_name(f"{path.name}.torn"))


def main(arguments: Sequence[str]) -> int:
    """Train the run in the folder given by its command; returns the exit code."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("tasks").setLevel(logging.INFO)
    try:
        return _train(RunFolder(Path(arguments[0])))
    except TarmacError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code


def _train(run: RunFolder) -> int:
    phases = PhaseWriter(run)
    phases.set("start", 0)
    config = configs.reload(run.config)
    train = config.train
    if train is None or train.steps is None:
        raise UsageError(f"{run.config}: needs a train block with its steps; plan the run again")
    output = run.path / "trainer"
    (output / "checkpoints").mkdir(parents=True, exist_ok=True)
    known = {checkpoint.step for checkpoint in list_checkpoints(run)}
    set_torn_aside(output, train.checkpoint_every, known)
    version = version_path(record.load_record(run).data[0])
    words, trainer = command_of(config, version, read_settings(run.loader).workers, output)
    logger.info("%s: %s", trainer.name, " ".join(words))
    told = {"TARMAC_DATA": str(version), "TARMAC_OUTPUT": str(output)}
    told |= {"TARMAC_TRAIN": train.model_dump_json()}
    told["OMP_WAIT_POLICY"] = "PASSIVE"  # as in tasks.training.rank
    is_terminated = threading.Event()
    if agent_of(os.environ) is not None:
        signal.signal(signal.SIGTERM, lambda *_: is_terminated.set())
    process = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | told,
        close_fds=False,  # it holds the GPUs as well, whose locks the agent hands on
        preexec_fn=functools.partial(signal_at_starters_end, signal.SIGTERM),
    )
    leave_with_starter(lambda: kill_tree(Identity.of(process.pid), END_S))
    place, metrics = TrainerPosition(train.checkpoint_every), MetricsWriter(run.metrics)
    following = Following(
        run, trainer, process, place, phases, metrics, output, converted=known, is_terminated=is_terminated
    )
    code = following.to_the_end()
    if following.failure and not is_terminated.is_set():
        raise DataError(f"{trainer.name} says: {following.failure}")
    if code == 0:
        phases.set("end", place.step)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
