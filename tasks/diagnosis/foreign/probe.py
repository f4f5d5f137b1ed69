"""Runs a trainer's own data pipeline, by the trainer's own interpreter, on samples of each kind.

Running it shows what each stage drops, while rules that were copied out of a trainer go stale. The child
process sees no GPU and loads no model. Where the trainer is not installed there is no answer, and its
transcribed rules replace it.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tasks.trainers
from tasks.core.process import users_environment
from tasks.diagnosis.foreign.survey import Example, Kind, copy_examples
from tasks.trainers.command import Command
from tasks.trainers.contract import Trainer

DEADLINE_S = 300.0
"""Imports take seconds where a disk is slow; a run that takes longer than this hangs."""
DEEP_DEADLINE_S = 24 * 3600.0


@dataclass(frozen=True)
class PipelineStage:
    """One stage of the pipeline; `came_in` and `went_out` count samples."""

    name: str
    place: str | None
    came_in: int
    went_out: int


@dataclass(frozen=True)
class Flow:
    """The way of some samples through the pipeline. `failing` counts, by member, those that do not decode on
    their own. `error` ended the pipeline, as it would end a worker of the training; `error_place` is the line
    that raised it."""

    stages: Sequence[PipelineStage]
    failing: Mapping[str, int]
    messages: Sequence[str] = ()
    error: str | None = None
    error_place: str | None = None

    @property
    def read(self) -> int:
        """The number of samples that came out of the tars."""
        return self.stages[0].went_out

    @property
    def share(self) -> float:
        """The share of the samples from the tars that reached a batch."""
        return 0.0 if self.error else self.stages[-1].went_out / max(self.read, 1)

    @property
    def drop(self) -> PipelineStage | None:
        """The first stage behind the reading of tars that let fewer samples pass than came in."""
        return next((one for one in self.stages[1:] if one.went_out < one.came_in), None)


@dataclass(frozen=True)
class Refusal:
    """The error with which the trainer would end before it reads anything."""

    kind: str
    text: str
    place: str


@dataclass(frozen=True)
class ProbeReport:
    """The answer of the trainer's own code. `assigned` are the tars of each rank's workers in an epoch; it is
    empty where workers draw from all tars. `batches` counts an epoch over all workers."""

    versions: Mapping[str, str]
    flows: Mapping[Kind, Flow]
    whole: Mapping[str, Flow]
    assigned: Sequence[Sequence[Sequence[str]]]
    refusal: Refusal | None
    batches: int | None = None


class NoAnswer(Exception):
    """The pipeline could not be run, for the reason in the message."""


def probe_pipeline(
    command: Command, trainer: Trainer, examples: Mapping[Kind, Sequence[Example]], whole: Sequence[str] = ()
) -> ProbeReport:
    """Run the pipeline on the examples of each kind, and on the tars `whole`. NoAnswer where that fails."""
    if trainer.probe is None:
        raise NoAnswer(f"the data pipeline of {trainer.name} is not run: Tarmac does not know how")
    if not command.interpreter:
        raise NoAnswer(
            f"{command.python or 'python'} is not found, so the trainer's own pipeline did not run"
        )
    with tempfile.TemporaryDirectory(prefix="tarmac-preflight-") as folder:
        tars = [os.path.join(folder, f"{number}.tar") for number in range(len(examples))]
        for some, tar in zip(examples.values(), tars, strict=True):
            Path(tar).write_bytes(copy_examples(some))
        question = {"arguments": command.arguments, "ranks": command.ranks, "examples": tars, "whole": whole}
        found = _run(command, trainer.probe, question, Path(folder, "answer.json"), bool(whole))
    found["flows"] = dict(zip(examples, map(_flow, found["flows"]), strict=True))
    found["whole"] = {tar: _flow(flow) for tar, flow in found["whole"].items()}
    found["refusal"] = found["refusal"] and Refusal(**found["refusal"])
    return ProbeReport(**found)


def _run(command: Command, probe: str, question: Any, answer: Path, is_deep: bool) -> Any:
    # By -c, Python looks for the trainer's modules where the command would, not beside Tarmac's.
    text = Path(tasks.trainers.__file__).with_name(probe).read_text(encoding="utf-8")
    users = users_environment()
    paths = [users.get("PYTHONPATH", "")]
    if command.script:
        paths.insert(0, str(command.path(command.script).parent.parent))
    env = {**users, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    env.pop("PYTHONSAFEPATH", None)
    try:
        done = subprocess.run(
            [command.interpreter, "-c", text, str(answer)],
            input=json.dumps(question),
            capture_output=True,
            text=True,
            errors="replace",
            cwd=command.folder,
            env=env,
            timeout=DEEP_DEADLINE_S if is_deep else DEADLINE_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoAnswer(f"the trainer's own pipeline did not run: {error}") from None
    if done.returncode or not answer.exists():
        last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise NoAnswer(f"the trainer's own pipeline did not run in {command.interpreter}: {last}")
    return json.loads(answer.read_text(encoding="utf-8"))


def _flow(found: Mapping[str, Any]) -> Flow:
    return Flow(**{**found, "stages": [PipelineStage(**stage) for stage in found["stages"]]})
