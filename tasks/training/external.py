"""`python -m tasks.training.external RUN_FOLDER`: another trainer's command in the place of a rank.

It starts the command, reads its log line by line and writes into the run's folder what a rank would: phases,
metrics, checkpoints. So the agent watches, stops and judges it like any training, and evaluators read its
checkpoints as those of recipe clip. The price is that only the log shows how the training goes, and that a
checkpoint is written twice.

A trainer that counts in epochs is given epochs of `train.checkpoint_every` steps: after each it saves
`epoch_<k>.pt`. A command of one's own gets the run in the variables TARMAC_DATA (the version), TARMAC_OUTPUT
(a folder) and TARMAC_TRAIN (the train block as JSON), and saves state dicts in that folder, as
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
from pathlib import Path

from tasks.core import config as configs
from tasks.core.errors import DataError, TarmacError, UsageError
from tasks.core.files import read_lines
from tasks.core.process import Identity, kill_tree, signal_at_starters_end, users_environment
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
"""The name of the validation loss in open_clip's `results.jsonl`."""
NO_METRICS = ("epoch", "num_samples")
logger = logging.getLogger(__name__)


class FollowedCommand:
    """A command at work, and what its log and its files have shown so far."""

    def __init__(
        self,
        run: RunFolder,
        trainer: Trainer,
        process: subprocess.Popen[bytes],
        per_epoch: int,
        phases: PhaseWriter,
        output: Path,
        known: Collection[int],
        is_terminated: threading.Event,
    ) -> None:
        """A trainer that counts in epochs has `per_epoch` steps in each; checkpoints of `known` steps are the
        run's already; `is_terminated` is set by SIGTERM, which Slurm sends to the command and to the agent
        too.
        """
        self._run = run
        self._trainer = trainer
        self._process = process
        self._per_epoch = per_epoch
        self._phases = phases
        self._metrics = MetricsWriter(run.metrics)
        self._output = output
        self._converted = set(known)
        self._is_terminated = is_terminated
        self._results_read = 0
        self._validated: dict[int, float] = {}
        """The validation loss by step."""
        self.step = 0
        self.failure = ""

    def to_the_end(self) -> int:
        """Follow it until it has ended; return its exit code, or 0 where the run was asked to stop."""
        assert self._process.stdout is not None
        stopped, rest = False, b""
        for chunk in self._chunks(self._process.stdout.fileno()):
            *lines, rest = re.split(rb"[\r\n]", rest + chunk)
            for line in lines:
                self._take_line(line.decode(errors="replace"))
            leave_if_taken_over(self._run, lambda: kill_tree(Identity.of(self._process.pid), 0.0))
            self._take_files(is_over=False)
            if self._run.stop.exists() and not stopped:
                stopped = True
                kill_tree(Identity.of(self._process.pid), END_S)
        self._take_line(rest.decode(errors="replace"))
        code = self._process.wait()
        self._take_files(is_over=True)
        return 0 if stopped or self._is_stop_coming() else code

    def _is_stop_coming(self) -> bool:
        """Whether the command ended by the signal that makes the agent stop the run, which may take a moment
        to order the stop."""
        deadline = time.monotonic() + STOP_COMES_S
        while self._is_terminated.is_set() and not self._run.stop.exists() and time.monotonic() < deadline:
            time.sleep(POLL_S / 10)
        return self._is_terminated.is_set() and self._run.stop.exists()

    def _chunks(self, descriptor: int) -> Iterator[bytes]:
        """Yield what the command prints as it comes, and an empty chunk every POLL_S.

        It ends with the command, even where a process that it left behind holds its output.
        """
        while True:
            is_over = self._process.poll() is not None
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

    def _take_line(self, line: str) -> None:
        if any(pattern.search(line) for pattern in self._trainer.failures):
            self.failure = self.failure or line.strip()
        progress = self._trainer.progress(line)
        if progress is None:
            return
        self.step = max(self._step_of(progress), self.step)
        self._phases.set(progress.phase, self.step)
        if progress.phase == "step" and progress.loss is not None and self.step:
            self._metrics.append(make_row(TRAIN_AXIS, self.step, "train", {"train/loss": progress.loss}))

    def _step_of(self, progress: Progress) -> int:
        if progress.done is None:
            return self.step
        if progress.epoch is None:
            return int(progress.done)
        share = progress.done / progress.total if progress.total else 0.0
        return progress.epoch * self._per_epoch + round(share * self._per_epoch)

    def _take_files(self, *, is_over: bool) -> None:
        """Take over what it has saved and validated since."""
        self._read_results()
        for step, path in saved(self._output, self._per_epoch):
            if step not in self._converted and (is_over or time.time() - path.stat().st_mtime > SETTLED_S):
                self._convert(step, path, is_over=is_over)

    def _convert(self, step: int, path: Path, *, is_over: bool) -> None:
        from tasks.models.state_dict import UnreadableWeights  # late, for torch
        from tasks.training.checkpoints import take_over_weights

        try:
            self._metrics.settle()
            take_over_weights(self._run, step, path, self._validated.get(step))
        except UnreadableWeights as error:
            if is_over:
                logger.warning("%s is no checkpoint: %s", path, error)
            return
        self._converted.add(step)
        logger.info("step %d: checkpoint taken over from %s", step, path)

    def _read_results(self) -> None:
        """Take the trainer's own validation from new lines of its `results.jsonl`."""
        rows, self._results_read = read_lines(self._output / "checkpoints/results.jsonl", self._results_read)
        for row in rows:
            step = int(row.get("epoch", 0)) * self._per_epoch
            values = {f"val/{key}": value for key, value in row.items() if key not in NO_METRICS}
            loss = values.pop(f"val/{VALIDATION_LOSS}", None)
            if loss is not None:
                values["val/loss"] = self._validated[step] = loss
            if step and values:
                self._metrics.append(make_row(TRAIN_AXIS, step, "val", values))


def saved(output: Path, per_epoch: int) -> list[tuple[int, Path]]:
    """Return the checkpoints that a command has written, whole or not, by step."""
    found = []
    for path in output.glob("checkpoints/*"):
        name = SAVED.fullmatch(path.name)
        if name is not None:
            found.append((int(name["count"]) * (per_epoch if name["unit"] == "epoch" else 1), path))
    return sorted(found)


def set_torn_aside(output: Path, per_epoch: int, known: Collection[int]) -> None:
    """Rename what a killed trainer had begun to write, or it would try to go on from that for ever."""
    from tasks.models.state_dict import UnreadableWeights, weights_of  # late, for torch

    for step, path in saved(output, per_epoch):
        if step not in known:
            try:
                weights_of(path)
            except UnreadableWeights as error:
                logger.warning("%s; set aside, the command goes on from the one before", error)
                path.rename(path.with_name(f"{path.name}.torn"))


def main(arguments: Sequence[str]) -> int:
    """Train the run in the folder given by its command; return the exit code."""
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
    given = {
        "TARMAC_DATA": str(version),
        "TARMAC_OUTPUT": str(output),
        "TARMAC_TRAIN": train.model_dump_json(),
        "OMP_WAIT_POLICY": "PASSIVE",  # as in tasks.training.rank
    }
    is_terminated = threading.Event()
    if agent_of(os.environ) is not None:
        signal.signal(signal.SIGTERM, lambda *_: is_terminated.set())
    process = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=users_environment() | given,
        close_fds=False,  # it holds the GPUs as well, whose locks the agent hands on
        preexec_fn=functools.partial(signal_at_starters_end, signal.SIGTERM),
    )
    leave_with_starter(lambda: kill_tree(Identity.of(process.pid), END_S))
    command = FollowedCommand(
        run, trainer, process, train.checkpoint_every, phases, output, known, is_terminated
    )
    code = command.to_the_end()
    if command.failure and not is_terminated.is_set():
        raise DataError(f"{trainer.name} reports: {command.failure}")
    if code == 0:
        phases.set("end", command.step)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
