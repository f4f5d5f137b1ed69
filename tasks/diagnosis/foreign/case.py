"""All that is known of a training command's data before it is started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from tasks.diagnosis.foreign.probe import ProbeReport
from tasks.diagnosis.foreign.survey import Kind, TarSeen, TarSurvey
from tasks.diagnosis.memory import MachineLimits
from tasks.trainers.command import Command
from tasks.trainers.contract import DataArguments, Trainer


@dataclass(frozen=True)
class Case:
    """All that is known of the command's data before it is started."""

    command: Command
    trainer: Trainer
    data: DataArguments
    survey: TarSurvey
    answer: ProbeReport | None
    bytes_per_s: float | None = None
    """How fast a tar was read, where it was measured."""
    limits: MachineLimits | None = None
    """What this machine gives, where the training is to run on it."""

    @property
    def workers(self) -> int:
        """Processes that read, over all ranks; without workers the rank itself reads."""
        return max(self.data.workers, 1) * self.command.ranks

    @cached_property
    def shares(self) -> Mapping[Kind, float]:
        """Of the samples of each kind, how many reach a batch."""
        if self.answer is not None:
            return {kind: flow.share for kind, flow in self.answer.flows.items()}
        refused = {kind: self.trainer.refusal(self.command, kind) for kind in self.survey.kinds}
        return {kind: 0.0 if why else 1.0 for kind, why in refused.items()}

    def valid(self, tar: TarSeen) -> float:
        """The samples of a tar that reach a batch."""
        if self.answer is not None and tar.location in self.answer.whole:
            flow = self.answer.whole[tar.location]
            return flow.stages[-1].went_out
        passing = sum(count * self.shares.get(kind, 0.0) for kind, count in tar.kinds.items())
        return passing * tar.samples / max(tar.looked_at, 1)

    @cached_property
    def valid_samples(self) -> int:
        """Of all tars; of those not looked at as many as of the others."""
        seen = sum(self.valid(tar) for tar in self.survey.tars.values())
        return round(seen * len(self.survey.locations) / max(len(self.survey.tars), 1))

    @cached_property
    def steps(self) -> int | None:
        """Optimizer steps of the whole training."""
        if self.answer is None or self.answer.batches is None:
            return None
        return self.answer.batches // self.data.accumulation * self.data.epochs
