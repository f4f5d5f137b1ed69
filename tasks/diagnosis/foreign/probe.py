"""A trainer's own data pipeline, run by the trainer's own interpreter on samples of each kind.

What a stage drops is found by running it, as rules that were copied out of a trainer rot. The child sees no
GPU and loads no model. Where the trainer is not installed there is no answer, and its transcribed rules have
to do.
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
from tasks.diagnosis.foreign.survey import Example, Kind, copy_examples
from tasks.trainers.command import Command
from tasks.trainers.contract import Trainer

DEADLINE_S = 300.0
"""Imports take seconds where a disk is slow; more than this is a hang of its own."""
DEEP_DEADLINE_S = 24 * 3600.0


@dataclass(frozen=True)
class PipelineStage:
    """One stage of the pipeline: `came_in` and `went_out` are samples."""

    name: str
    place: str | None
    came_in: int
    went_out: int


@dataclass(frozen=True)
class Flow:
    """What became of some samples. `failing` counts, by member, what did not decode by itself; `error` ended
    the pipeline, as it would end a worker of the training, and `error_place` is the line that raised it."""

    stages: Sequence[PipelineStage]
    failing: Mapping[str, int]
    messages: Sequence[str] = ()
    error: str | None = None
    error_place: str | None = None

    @property
    def read(self) -> int:
        """Samples that came out of the tars."""
        return self.stages[0].went_out

    @property
    def share(self) -> float:
        """Of the samples that came out of the tars, how many reached a batch."""
        return 0.0 if self.error else self.stages[-1].went_out / max(self.read, 1)

    @property
    def drop(self) -> PipelineStage | None:
        """The first stage behind the tars that let fewer samples pass than came in."""
        return next((one for one in self.stages[1:] if one.went_out < one.came_in), None)


@dataclass(frozen=True)
class Refusal:
    """The error that the trainer would end with before it reads anything."""

    kind: str
    text: str
    place: str


@dataclass(frozen=True)
class ProbeReport:
    """What the trainer's own code said. `assigned` are the tars of each rank's workers in an epoch; empty
    where workers draw from all of them. `batches` and `samples` are those of an epoch, over all workers."""

    versions: Mapping[str, str]
    flows: Mapping[Kind, Flow]
    whole: Mapping[str, Flow]
    assigned: Sequence[Sequence[Sequence[str]]]
    refusal: Refusal | None
    batches: int | None = None
    samples: int | None = None


class NoAnswer(Exception):
    """The pipeline could not be run; the message says why."""


def probe_pipeline(
    command: Command, trainer: Trainer, examples: Mapping[Kind, Sequence[Example]], whole: Sequence[str] = ()
) -> ProbeReport:
    """Run the pipeline on the examples of each kind, and on the tars `whole`. NoAnswer where it cannot be."""
    if trainer.probe is None:
        raise NoAnswer(f"the data pipeline of {trainer.name} is not run: Tarmac knows no way to")
    if not command.interpreter:
        raise NoAnswer(
            f"{command.python or 'python'} is not found, so the trainer's own pipeline did not run"
        )
    kinds = list(examples)
    with tempfile.TemporaryDirectory(prefix="tarmac-preflight-") as folder:
        tars = {str(number): os.path.join(folder, f"{number}.tar") for number in range(len(kinds))}
        for kind, tar in zip(kinds, tars.values(), strict=True):
            Path(tar).write_bytes(copy_examples(examples[kind]))
        question = {"arguments": command.arguments, "ranks": command.ranks, "examples": tars, "whole": whole}
        found = _run(command, trainer.probe, question, Path(folder, "answer.json"), bool(whole))
    flows = {kind: _flow(found["kinds"][str(number)]) for number, kind in enumerate(kinds)}
    return ProbeReport(
        versions=found["versions"],
        flows=flows,
        whole={tar: _flow(its) for tar, its in found["whole"].items()},
        assigned=found["assigned"],
        refusal=None if found["refusal"] is None else Refusal(**found["refusal"]),
        batches=found.get("batches"),
        samples=found.get("samples"),
    )


def _run(command: Command, probe: str, question: Any, answer: Path, is_deep: bool) -> Any:
    # As -c, so that the trainer's modules are looked for where the command itself would, not beside ours.
    text = Path(tasks.trainers.__file__).with_name(probe).read_text(encoding="utf-8")
    paths = [os.environ.get("PYTHONPATH", "")]
    if command.script:
        paths.insert(0, str(command.path(command.script).parent.parent))
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
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
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise NoAnswer(f"the trainer's own pipeline did not run in {command.interpreter}: {last}")
    return json.loads(answer.read_text(encoding="utf-8"))


def _flow(found: Mapping[str, Any]) -> Flow:
    error = found["error"]
    return Flow(
        stages=[PipelineStage(one["stage"], one["place"], one["in"], one["out"]) for one in found["stages"]],
        failing=found["failing"],
        messages=found["messages"],
        error=None if error is None else f"{error['kind']}: {error['text']}",
        error_place=None if error is None else error["place"],
    )
