"""Notices a training that runs and is wrong, at the step where it shows.

A training that learns nothing looks like any other: its steps go on and its loss is a number. So what enters
the model, what its loss does and what becomes of its weights are examined as it runs: often in the first
steps, in which most mistakes show, and rarely later. An examination draws no random number and changes
nothing, so the weights are the same as without it.

A finding is reported once per run, in the log and in `sanity.jsonl`. It ends nothing.
"""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from tasks.core.errors import TarmacError
from tasks.core.files import append_line, read_lines
from tasks.core.findings import Finding
from tasks.core.schema import Config
from tasks.dataset.version.versions import read_manifest
from tasks.loader.batches import TRAIN, open_split
from tasks.loader.feed import Feed
from tasks.models.held_out import held_out
from tasks.models.recipes import Recipe
from tasks.models.task import Contrastive, Embedder
from tasks.runs.curve import AT_CHANCE, LEAST_SAMPLES, LossCurve
from tasks.runs.folder import RunFolder
from tasks.training.meter import Outcomes
from tasks.training.ranks import Ranks
from tasks.training.sanity import weights
from tasks.training.sanity.inputs import Pictures, SampleOrder, Texts, digest_of, same_on_several_ranks
from tasks.training.sanity.leak import find_leak
from tasks.training.sanity.weights import Gradients, WeightSample
from tasks.training.step import Step, StepResult

EVERY = 64
"""Steps between two examinations, once there were some at powers of two."""
COMPARED_AT = 2
"""The step, counted from the start of the process, at which ranks compare what they read."""
RECENT, OFTEN_SKIPPED = 50, 10
SMALL_SCALE = 64.0
"""A loss scale of fp16, which begins at 65,536, from which a tenth of the gradients are lost as zeros."""
LEAST_STEPS = 8
"""Steps before weights and gradients are judged: some models begin with zeros, which later steps fill."""
LEARNED = 0.01
"""How much worse a model that has learned what belongs together is on mismatched pairs, as a share."""
TRAVELLED = 0.03
"""The sum of the learning rates after which a model has had time to learn: Adam moves each weight by about
the learning rate per step, and most weights begin at a size like this."""
COLLAPSED = 1e-6
"""A model whose loss differs less gives the same answer to all pictures."""
MEMORISED = 0.05
"""How far below chance, as a share, a loss is that was not reached by chance."""
EXPLANATIONS = ("images.constant", "weights.unmoved", "gradients.vanishing", "precision.overflow")
logger = logging.getLogger(__name__)


class Sanity:
    """The checks of one rank's training. Only the first rank reports; all of them have to call it alike."""

    def __init__(
        self,
        run: RunFolder,
        config: Config,
        recipe: Recipe,
        take_step: Step,
        feed: Feed,
        ranks: Ranks,
        step: int,
    ) -> None:
        """`step` is the one that the training goes on after."""
        assert config.train is not None and config.train.steps is not None
        self._run, self._feed, self._ranks, self._train = run, feed, ranks, config.train
        self._is_private = config.dataset.private
        self._take_step, self._began = take_step, step
        self._known = {(line["code"], str(line.get("where"))) for line in read_lines(run.sanity)[0]}
        self._seen = 0
        if not ranks.is_first:
            return
        model = take_step.task.model
        parts: dict[str, list[tuple[str, torch.nn.Parameter]]] = {}
        for name, parameter in model.named_parameters():
            parts.setdefault(recipe.part_of(name), []).append((name, parameter))
        self._parts = parts
        self._trained = frozenset(parts) - config.train.frozen
        self._first_weights = WeightSample.of(parts)
        self._gradients = Gradients(
            {part: given for part, given in parts.items() if part in self._trained},
            self._first_weights.judged,
        )
        towers = [child for name, child in model.named_children() if recipe.part_of(name) == "vision"]
        self._pictures = Pictures(towers)
        task = take_step.task
        empty = task.tokenize([""])[0] if isinstance(task, Embedder) else None
        self._texts = Texts(empty) if isinstance(task, Contrastive) else None
        self._order = SampleOrder(self._is_augmented)
        self._curve = LossCurve()
        self._batch_size = config.train.batch_size
        self._chance = task.chance(self._batch_size)
        self._is_contrast = isinstance(task, Contrastive) and self._chance is not None
        self._skipped: deque[bool] = deque(maxlen=RECENT)
        self._warmup = max((config.train.warmup_steps_of(part) for part in self._trained), default=0)
        self._travelled = 0.0
        self._judged_after: int | None = None
        """The step of this process after which the loss shows whether the model learns."""
        self._batch: Mapping[str, Any] | None = None
        self._was_blind = self._has_learned = False
        self._judged = config.judged_at_once
        self._is_held_out_examined = False
        if self._warmup >= config.train.steps:
            self._report(step, [self._endless_warmup()])

    @contextmanager
    def step(self, number: int, batch: Sequence[Mapping[str, Any]]) -> Iterator[None]:
        """Examine the parts of the batch of step `number`, and what the model makes of it in the block, which
        takes the step."""
        self._seen += 1
        keys = [key for part in batch for key in part["key"]]
        if self._seen == COMPARED_AT and self._ranks.count > 1:
            digests = [int(one) for one in self._ranks.of_all(torch.tensor(digest_of(keys)))]
            if (found := same_on_several_ranks(digests)) is not None:
                self._report(number, [found])
        if not self._ranks.is_first:
            yield
            return
        self._batch = batch[0]
        self._report(number, filter(None, (self._order.judge(part) for part in batch)))
        if self._seen % EVERY and self._seen & (self._seen - 1):
            yield
            return
        with self._pictures.seeing() as seen:
            yield
        self._report(number, self._examined(batch, seen))

    def note(self, number: int, taken: StepResult) -> None:
        """Note how far step `number` can have moved the weights."""
        if not self._ranks.is_first:
            return
        learning = self._trained & self._first_weights.judged
        self._travelled += min((taken.rates[part] for part in learning), default=0.0)
        if self._judged_after is None and number >= self._warmup and self._travelled >= TRAVELLED:
            self._judged_after = self._seen

    def row(self, number: int, outcomes: Outcomes) -> None:
        """Examine what became of the steps since the last row, up to step `number`."""
        if not self._ranks.is_first:
            return
        self._curve.add(list(outcomes.losses.values()))
        self._report(number, [*self._of_overflows(outcomes), *self._of_curve()])

    def checkpoint(self, number: int) -> None:
        """Examine the weights that are about to be saved as those of step `number`; at the first checkpoint
        also the held-out samples, by which they are judged."""
        if not self._ranks.is_first:
            return
        self._report(number, [*self._of_weights(), *self._mismatched()])
        if not self._is_held_out_examined:
            self._is_held_out_examined = True
            self._report(number, self._of_held_out())

    def _examined(self, batch: Sequence[Mapping[str, Any]], seen: Sequence[Tensor]) -> Iterator[Finding]:
        """Examine texts, pictures and gradients of a step that was taken."""
        if seen and (found := self._pictures.judge(seen[0])) is not None:
            yield found
        texts = [part["text"] for part in batch if isinstance(part.get("text"), Tensor)]
        if self._texts is not None and texts:
            yield from self._texts.judge(_side_by_side(texts))
        if self._seen >= LEAST_STEPS:
            yield from self._gradients.judge()
        if self._seen == EVERY:  # and at each checkpoint
            yield from self._of_weights()

    def _of_held_out(self) -> Iterator[Finding]:
        data = self._feed.data
        name = held_out(read_manifest(data.version).splits)
        if name is not None:
            own, trained = (open_split(data.version, split, data.quarantined) for split in (name, TRAIN))
            found = find_leak(own, trained, is_private=self._is_private)
            yield from [] if found is None else [found]

    def _of_overflows(self, outcomes: Outcomes) -> Iterator[Finding]:
        self._skipped += [step in outcomes.skipped for step in sorted({*outcomes.losses, *outcomes.skipped})]
        if not outcomes.skipped:
            return
        often, scale = sum(self._skipped), list(outcomes.skipped.values())[-1]
        if scale < SMALL_SCALE or (often >= OFTEN_SKIPPED and self._seen >= RECENT):
            what = f"{often} of the last {len(self._skipped)} steps overflowed; the loss scale is {scale:g}"
            remedy = "take train.precision: bf16, or lower train.lr"
            yield Finding("precision.overflow", "warning", remedy, evidence={"what": what})

    def _of_curve(self) -> Iterator[Finding]:
        if (risen := self._curve.rise(self._chance or 0.0)) is not None:
            what = f"the loss has risen from {risen.best:.3g} to {risen.now:.3g}"
            remedy = "lower train.lr, lengthen train.warmup or set train.grad_clip; resume from before it"
            yield Finding("loss.diverging", "warning", remedy, evidence={"what": what})
        if self._chance is None or self._judged_after is None:
            return
        if self._curve.steps * self._batch_size < LEAST_SAMPLES:
            return
        if self._curve.is_at_chance(self._chance, self._judged_after):
            yield Finding(
                "loss.chance",
                "warning",
                "look at the pairs (tarmac look DATASET), then try train.lr ten times lower and higher",
                evidence={
                    "what": f"the loss stands at {self._chance:.2f}, which is chance: nothing is learned",
                    "steps": self._curve.steps,
                    "checked": self._checked(),
                },
            )

    def _checked(self) -> str:
        """Return what was found sound, of that which leaves a loss at chance."""
        sound = {
            "pictures differ": "images.constant",
            "texts differ": "captions.repeated",
            "gradients reach every part": "weights.unmoved",
            "none of them vanishes": "gradients.vanishing",
        }
        found = {code for code, _ in self._known}
        return ", ".join(words for words, code in sound.items() if code not in found) or "nothing is sound"

    def _of_weights(self) -> Iterator[Finding]:
        moved = self._first_weights.moved(WeightSample.of(self._parts))
        for part, share in moved.items():
            if part not in self._trained and share:
                yield weights.changed_although_frozen(part, share)
        learning = self._trained & self._first_weights.judged
        if self._seen < LEAST_STEPS:
            return
        for part in sorted(learning):
            if moved[part] < weights.MOVED:
                what = f"{moved[part]:.1%} of its weights have changed in {self._seen} steps"
                yield weights.unmoved(part, what, self._train.peak(part))
        if self._began or self._train.ema is None:
            return
        averages = dict(self._take_step.model.named_parameters())
        followed = self._first_weights.moved(
            WeightSample.of(
                {part: [(name, averages[name]) for name, _ in given] for part, given in self._parts.items()}
            )
        )
        if learning and all(moved[part] >= weights.MOVED and not followed[part] for part in learning):
            what = f"after {self._seen} steps the weights that are evaluated are still the initial ones"
            remedy = "lower train.ema: the average does not follow the weights"
            yield Finding("evaluation.untrained", "error", remedy, evidence={"what": what})

    def _mismatched(self) -> Iterator[Finding]:
        """Compare the loss of the last batch with that of its pictures paired with other samples.

        A model is judged only if they made no difference at the checkpoint before either: a language model
        learns without the pictures first, and a contrast may rest at chance for a while.
        """
        if self._judged_after is None or self._has_learned or self._is_explained or self._ranks.shards:
            return
        batch = None if self._batch is None else _exchanged(self._batch)
        if batch is None or self._batch is None:
            return
        own, others = (self._take_step.loss_of(one) for one in (self._batch, batch))
        is_blind = others - own < LEARNED * abs(own)
        was_blind, self._was_blind, self._has_learned = self._was_blind, is_blind, not is_blind
        is_collapsed = abs(others - own) <= COLLAPSED * abs(own)
        stands = not self._is_contrast or self._curve.stands(self._judged_after) is not None
        if is_blind and was_blind and stands and not is_collapsed:
            what = f"the loss is {own:.3f} on its own pairs, and {others:.3f} on pictures of other samples"
            yield self._misaligned(what)

    def validated(self, number: int, loss: float | None) -> None:
        """Examine the held-out loss of the checkpoint of step `number`, None where there is none."""
        if not self._ranks.is_first or loss is None or not self._is_contrast or self._is_explained:
            return
        chance, newest = self._take_step.task.chance(self._judged), self._curve.newest
        if None in (chance, self._chance, newest):
            return
        assert chance is not None and self._chance is not None and newest is not None
        if loss >= (1 - AT_CHANCE) * chance and newest < (1 - MEMORISED) * self._chance:
            what = f"the loss is {newest:.2f} where it trains, and at chance ({loss:.2f}) on held-out samples"
            self._report(number, [self._misaligned(f"{what}: it learns by heart")])

    @property
    def _is_explained(self) -> bool:
        """Whether a mistake is known that keeps a model from learning what belongs together."""
        return any(code in EXPLANATIONS for code, _ in self._known)

    def _misaligned(self, what: str) -> Finding:
        remedy = (
            "look at the pairs (tarmac look DATASET): a column that was sorted on its own gives each sample "
            "another's; if they are right, there are too few of them"
        )
        evidence = {"what": what, "checked": self._checked()}
        return Finding("labels.misaligned", "warning", remedy, evidence=evidence)

    def _endless_warmup(self) -> Finding:
        steps = self._train.steps
        what = (
            f"the warm-up lasts {self._warmup:,} of {steps:,} steps: the learning rate never reaches its peak"
        )
        remedy = f"take train.warmup {max((steps or 0) // 10, 1)}, a tenth of the steps"
        return Finding("schedule.warmup", "warning", remedy, evidence={"what": what})

    def _is_augmented(self) -> bool:
        """Return whether the transform for training gives another view with another seed."""
        data = self._feed.data
        transform = self._feed.shapes.transform(is_train=True)
        with suppress(TarmacError):  # as of a bad sample, which is the loader's to report
            reader = open_split(data.version, TRAIN, data.quarantined)
            for number in range(min(len(reader), 4)):
                members = reader.read(number).members
                one, other = (transform(members, seed) for seed in (1, 2))
                if any(isinstance(v, Tensor) and not torch.equal(v, other[name]) for name, v in one.items()):
                    return True
        return False

    def _report(self, number: int, findings: Iterable[Finding]) -> None:
        for finding in findings:
            if (finding.code, str(finding.where)) in self._known or not self._ranks.is_first:
                continue
            self._known.add((finding.code, str(finding.where)))
            line = {**asdict(finding), "step": number, "t": time.time()}
            append_line(self._run.sanity, json.dumps(line, ensure_ascii=False))
            logger.warning("step %d: %s", number, "\n".join(finding.lines()))


def _side_by_side(texts: Sequence[Tensor]) -> Tensor:
    """Return the texts of all parts as one tensor; shorter ones end in zeros."""
    longest = max(text.shape[1] for text in texts)
    return torch.cat([torch.nn.functional.pad(text, (0, longest - text.shape[1])) for text in texts])


def _exchanged(batch: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the batch with each picture in the place of another; None where it has too few."""
    name = next((one for one in ("volume", "image") if isinstance(batch.get(one), Tensor)), None)
    if name is None:
        return None
    pictures, tiles = batch[name], batch.get("tiles")
    if tiles is None:
        return {**batch, name: pictures.roll(1, 0)} if len(pictures) > 1 else None
    is_real = torch.arange(pictures.shape[1]) < tiles[:, None]
    count = int(is_real.sum())
    if count < 2:
        return None
    exchanged = pictures.clone()
    exchanged[is_real] = pictures[is_real].roll(max(count // 2, 1), 0)
    return {**batch, name: exchanged}
