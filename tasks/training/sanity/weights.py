"""Checks what a step does to the weights: every trained part gets gradients and changes, no frozen part does.

A sample of weights holds some thousand of each part, so it costs neither memory nor time that anybody
notices, and a part that learns has changed in it after a few steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from tasks.core.findings import Finding
from tasks.training.sharded_weights import local

TENSORS_PER_PART = 8
WEIGHTS_PER_TENSOR = 1024
LEAST_WEIGHTS = 16
"""Smaller parts, such as a temperature, may stay at a bound."""
MOVED = 0.01
"""The share of a tensor's weights that have changed in one that learns."""
VANISHED = 1e-7
"""The norm of a vanished gradient, as a share of the norm of all gradients; and that of all gradients."""
SMALL_RATE = 1e-8
CONFIRMED = 3
"""Examinations in a row that have to agree."""
Parts = Mapping[str, list[tuple[str, nn.Parameter]]]
"""The parameters by part, with their names."""


@dataclass(frozen=True)
class WeightSample:
    """Some weights of each part: by the parameter's name, [weights] on the CPU."""

    by_part: Mapping[str, Mapping[str, Tensor]]

    @classmethod
    def of(cls, parts: Parts) -> WeightSample:
        return cls({part: {name: _some(p) for name, p in _largest(given)} for part, given in parts.items()})

    def moved(self, other: WeightSample) -> dict[str, float]:
        """Return by part the largest share of changed weights in any of its tensors."""
        return {
            part: max(
                (float((value != other.by_part[part][name]).float().mean()) for name, value in mine.items()),
                default=0.0,
            )
            for part, mine in self.by_part.items()
        }

    @property
    def judged(self) -> frozenset[str]:
        """The parts that have enough weights to be judged."""
        return frozenset(
            part for part, mine in self.by_part.items() if sum(map(len, mine.values())) >= LEAST_WEIGHTS
        )


def _largest(given: list[tuple[str, nn.Parameter]]) -> list[tuple[str, nn.Parameter]]:
    trained = [(name, one) for name, one in given if one.requires_grad] or given
    return sorted(trained, key=lambda entry: -entry[1].numel())[:TENSORS_PER_PART]


def _some(parameter: nn.Parameter) -> Tensor:
    flat = local(parameter.detach()).reshape(-1)
    return flat[:: max(len(flat) // WEIGHTS_PER_TENSOR, 1)].cpu().clone()


class Gradients:
    """Examines the gradients that the last step left, by part."""

    def __init__(self, parts: Parts, judged: frozenset[str]) -> None:
        self._parts = {part: given for part, given in parts.items() if part in judged}
        self._suspicions: dict[tuple[str, str], int] = {}

    def judge(self) -> Iterator[Finding]:
        """Yield a finding for each part whose gradient was zero, or vanished, in three examinations in a
        row."""
        norms = {
            part: get_total_norm([local(p.grad) for _, p in given if p.grad is not None])
            for part, given in self._parts.items()
        }
        if not norms:
            return
        values = dict(
            zip(norms, torch.stack([n.float().cpu() for n in norms.values()]).tolist(), strict=True)
        )
        whole = sum(value**2 for value in values.values()) ** 0.5
        if not math.isfinite(whole):  # an overflow of fp16, whose step is skipped
            return
        suspicions: dict[tuple[str, str], int] = {}
        for part, value in values.items():
            code = (
                "weights.unmoved"
                if value == 0
                else "gradients.vanishing"
                if value < VANISHED * max(whole, 1.0)
                else None
            )
            if code is not None:
                suspicions[code, part] = self._suspicions.get((code, part), 0) + 1
        self._suspicions = suspicions
        for (code, part), count in suspicions.items():
            if count < CONFIRMED:
                continue
            figures = f"its gradient has norm {values[part]:.1e}, that of all parts {whole:.1e}"
            if code == "weights.unmoved":
                yield unmoved(part, "no gradient reaches it")
            else:
                remedy = "look for a saturated or badly scaled layer between this part and the loss"
                yield Finding(code, "warning", remedy, where={"part": part}, evidence={"what": figures})


def unmoved(part: str, what: str, rate: float = 1.0) -> Finding:
    """Return the finding for a part that should learn, at the peak learning rate `rate`, and does not."""
    remedy = "look for detach() or no_grad between this part and the loss"
    if rate < SMALL_RATE:
        what, remedy = f"{what}, at a learning rate of {rate:.1e}", "raise train.lr"
    return Finding("weights.unmoved", "error", remedy, where={"part": part}, evidence={"what": what})


def changed_although_frozen(part: str, share: float) -> Finding:
    """Return the finding for a part that train.freeze names, or whose learning rate is 0."""
    what = f"{share:.1%} of its weights have changed, although it is frozen"
    remedy = "give the optimizer the parameters of the other parts only"
    return Finding("weights.unmoved", "error", remedy, where={"part": part}, evidence={"what": what})
