"""Finds in the lines of a training that it runs and does not learn: a loss at chance or rising, overflows.

The rules are the same as for Tarmac's own trainings (`tasks.training.sanity`), as far as a log has the facts.
Chance and the warm-up are known for open_clip, which prints its parameters at the start.
"""

from __future__ import annotations

import math
import re

from tasks.core.findings import Finding
from tasks.runs.curve import LEAST_SAMPLES, LossCurve
from tasks.trainers.contract import Progress, Trainer

_SCALE = re.compile(
    r"(?i)\b(?:reducing|setting|attempted)\b.*?(?:loss scale to:?|reducing to) *"
    r"(?P<scale>\d+(?:\.\d*)?(?:e[-+]?\d+)?)"
)
"""Apex: `Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 1.0`; fairseq: `gradient
overflow detected, ignoring gradient, setting loss scale to: 0.0625`; DeepSpeed: `OVERFLOW! Rank 0 Skipping
step. Attempted loss scale: 1, reducing to 0.5`."""
SMALL_SCALE = 1.0
"""Some trainers begin at 128, sum the losses of a batch and train well at 8; below 1 fp16 is at its end."""
_RATE = "try the learning rate ten times lower and higher"


class Learning:
    """What the lines so far show of whether the training learns."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer, self._curve = trainer, LossCurve()
        self._settings: dict[str, str] = {}
        self._warm_after: int | None = None
        self._samples = 0.0
        self._scale: float | None = None
        self.found: list[Finding] = []

    def hear(self, line: str) -> None:
        """Take a line that shows no progress."""
        if self._trainer.setting is not None and (found := self._trainer.setting.search(line)) is not None:
            self._settings[found["name"]] = found["value"]
        elif (found := _SCALE.search(line)) is not None:
            self._scale = float(found["scale"])

    def note(self, progress: Progress) -> None:
        """Take a line that shows new progress."""
        if progress.phase != "step" or progress.loss is None:
            return
        self._curve.add([progress.loss])
        contrast = self._trainer.contrast(self._settings)
        self._samples = (progress.epoch or 0) * (progress.total or 0.0) + (progress.done or 0.0)
        if self._warm_after is None and contrast is not None and self._samples >= contrast.warmup_samples:
            self._warm_after = self._curve.steps

    def look(self) -> list[Finding]:
        """Return what is newly found; each code once."""
        known = {one.code for one in self.found}
        new = [one for one in self._judge() if one.code not in known]
        self.found += new
        return new

    def _judge(self) -> list[Finding]:
        found: list[Finding] = []
        contrast = self._trainer.contrast(self._settings)
        if contrast is not None and self._warm_after is not None and self._samples >= LEAST_SAMPLES:
            chance = math.log(contrast.pairs)
            if self._curve.is_at_chance(chance, self._warm_after):
                what = f"the loss stands at {chance:.2f}, chance among {contrast.pairs} pairs"
                remedy = f"look at the pairs: do captions and pictures belong together? Then {_RATE}"
                evidence = {"what": what, "lines": self._curve.steps}
                found.append(Finding("loss.chance", "warning", remedy, evidence=evidence))
        if (risen := self._curve.rise()) is not None and self._curve.is_above_its_beginning:
            what = f"the loss has risen from {risen.best:.3g} to {risen.now:.3g}, above where it began"
            remedy = (
                "go back to a checkpoint before, with a lower learning rate, a longer warm-up or clipping"
            )
            found.append(Finding("loss.diverging", "warning", remedy, evidence={"what": what}))
        if self._scale is not None and self._scale < SMALL_SCALE:
            what = f"fp16 overflows again and again; the loss scale is {self._scale:g}"
            remedy = "take bf16, or fp32; else a lower learning rate or gradient clipping"
            found.append(Finding("precision.overflow", "warning", remedy, evidence={"what": what}))
        return found
