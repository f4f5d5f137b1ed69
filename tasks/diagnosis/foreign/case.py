"""Examines the data that a training command reads: its tars, and how the trainer's pipeline treats them."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from tasks.core.errors import UsageError
from tasks.core.folders import open_store
from tasks.core.patterns import expand_braces
from tasks.core.screen import Progress
from tasks.core.stores import is_remote, split_location
from tasks.diagnosis import memory
from tasks.diagnosis.foreign.probe import NoAnswer, ProbeReport, probe_pipeline
from tasks.diagnosis.foreign.survey import Kind, SurveyedTar, TarSurvey, survey
from tasks.trainers.command import Command
from tasks.trainers.contract import DataArguments, Trainer

SPEED_SAMPLE_BYTES = 16 << 20
"""The part of a tar that is read to measure the speed of its disk."""


@dataclass(frozen=True)
class Case:
    """All that is known of a command's data before it is started. `answer` is None where the pipeline could
    not run, `bytes_per_s` is the speed of reading a tar, where it was measured."""

    command: Command
    trainer: Trainer
    data: DataArguments
    survey: TarSurvey
    answer: ProbeReport | None
    bytes_per_s: float | None = None
    limits: memory.MachineLimits | None = None

    @property
    def workers(self) -> int:
        """The number of processes that read, over all ranks; without workers each rank reads itself."""
        return max(self.data.workers, 1) * self.command.ranks

    @cached_property
    def shares(self) -> Mapping[Kind, float]:
        """The share of the samples of each kind that reaches a batch."""
        if self.answer is not None:
            return {kind: flow.share for kind, flow in self.answer.flows.items()}
        refused = {kind: self.trainer.refusal(self.command, kind) for kind in self.survey.kinds}
        return {kind: 0.0 if why else 1.0 for kind, why in refused.items()}

    def valid(self, tar: SurveyedTar) -> float:
        """Return how many samples of a tar reach a batch."""
        if self.answer is not None and tar.location in self.answer.whole:
            return self.answer.whole[tar.location].stages[-1].went_out
        passing = sum(count * self.shares.get(kind, 0.0) for kind, count in tar.kinds.items())
        return passing * tar.samples / max(tar.looked_at, 1)

    @cached_property
    def valid_samples(self) -> int:
        """The samples of all tars that reach a batch; tars not looked at count like the average."""
        found = sum(map(self.valid, self.survey.tars.values()))
        return round(found * len(self.survey.locations) / max(len(self.survey.tars), 1))

    @cached_property
    def steps(self) -> int | None:
        """The optimizer steps of the whole training."""
        if self.answer is None or self.answer.batches is None:
            return None
        return self.answer.batches // self.data.accumulation * self.data.epochs


def look_at_data(
    command: Command, trainer: Trainer, is_deep: bool, progress: Progress
) -> tuple[Case, list[str]]:
    """Return the case of a command, and what could not be examined.

    UsageError where the command trains on no tars that Tarmac can look at.
    """
    data = trainer.data(command)
    if data is None or data.tars is None:
        raise UsageError(nothing_to_look_at(command, trainer))
    locations = []
    for part in data.tars.split("::"):
        if part.startswith("pipe:"):
            raise UsageError(f"--train-data: {part.split()[0]}… is a command, which preflight does not run")
        locations += expand_braces(part, "--train-data")
    locations = [one if is_remote(one) else os.path.join(command.folder, one) for one in locations]
    found = survey(locations, is_deep, progress)
    answer, not_seen = None, []
    if not is_deep and not found.is_whole:
        more = found.samples - found.looked_at
        not_seen.append(f"{more:,} more samples (estimated); --deep reads them all")
    elif not is_deep:
        not_seen.append("whether every image decodes: a few of each kind were decoded, --deep decodes all")
    try:
        examples = {kind: some for kind, some in found.examples.items() if some}
        answer = probe_pipeline(command, trainer, examples, locations if is_deep else ())
    except NoAnswer as error:
        versions = ", ".join(dict.fromkeys(rule.read_from for rule in trainer.rules(command)))
        not_seen.append(f"{error}; its rules are those of {versions}" if versions else str(error))
    return Case(command, trainer, data, found, answer, _bytes_per_s(found), memory.limits()), not_seen


def nothing_to_look_at(command: Command, trainer: Trainer) -> str:
    program = command.program or " ".join(command.words)
    if trainer.name == "generic":
        return f"{program}: no trainer that Tarmac knows; preflight knows open_clip's, watch takes any"
    return f"{program}: trains on no WebDataset tars, and preflight examines nothing else; give --train-data"


def _bytes_per_s(found: TarSurvey) -> float | None:
    """Return how fast the end of the largest tar is read. The survey has not read it, so it is not cached."""
    local = [one for one in found.tars.values() if one.looked_at and not is_remote(one.location)]
    if not local:
        return None
    folder, name = split_location(max(local, key=lambda one: one.size_bytes).location)
    began = time.perf_counter()
    read = len(open_store(folder).read_end(name, SPEED_SAMPLE_BYTES))
    return read / max(time.perf_counter() - began, 1e-6)
