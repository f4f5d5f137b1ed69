"""What a fine-tuning has lost of what its weights knew before: the scores of step 0 beside the later ones.

Pure, from results to findings. A score counts as lost where its interval lies below the one of step 0, and by
a share of what that had above chance that matters: of many samples any difference is beyond noise. Scores may
fall for a while as a training begins, so two evaluated steps in a row have to agree, or the last one counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tasks.core.findings import Finding
from tasks.evaluation.results import EvaluationResult

MATTERS = 0.05
"""The least share of the score above chance whose loss is reported."""
REMEDY = (
    "lower train.lr, train less of the model (train.lora, train.freeze, train.unlocked, train.layer_decay), "
    "or mix in the data that it knew (train.data)"
)


def forgotten(results: Iterable[EvaluationResult], last_step: int) -> Iterator[Finding]:
    """Yield a finding for each task whose first metric, of those that rise as a model learns, was beyond
    chance at step 0 and has fallen since.

    `last_step` is that of the training. A metric without an interval or a chance is not judged.
    """
    by_task: dict[str, list[EvaluationResult]] = {}
    for result in sorted(results, key=lambda one: one.step):
        by_task.setdefault(result.task, []).append(result)
    for task, (first, *later) in sorted(by_task.items()):
        if first.step != 0 or not later or not _has_fallen(first, later[-1]):
            continue
        if later[-1].step == last_step or (len(later) > 1 and _has_fallen(first, later[-2])):
            yield _finding(task, first, later[-1])


def _has_fallen(first: EvaluationResult, later: EvaluationResult) -> bool:
    name = next(iter(first.metrics))
    if name not in later.intervals or name not in first.intervals or name not in first.chance:
        return False
    before, chance = first.metrics[name], first.chance[name]
    knew = first.intervals[name][0] > chance
    is_beyond_noise = later.intervals[name][1] < first.intervals[name][0]
    return knew and is_beyond_noise and before - later.metrics[name] > MATTERS * (before - chance)


def _finding(task: str, first: EvaluationResult, last: EvaluationResult) -> Finding:
    name = next(iter(first.metrics))
    before, after = (
        f"{one.metrics[name]:.3f} ({one.intervals[name][0]:.3f} to {one.intervals[name][1]:.3f})"
        for one in (first, last)
    )
    lost = (first.metrics[name] - last.metrics[name]) / (first.metrics[name] - first.chance[name])
    what = (
        f"{name} was {before} at step 0 and is {after} at step {last.step:,}: {lost:.0%} of what the "
        f"weights knew beyond chance ({first.chance[name]:.3f}) is lost"
    )
    return Finding("finetune.forgot", "warning", REMEDY, where={"task": task}, evidence={"what": what})
