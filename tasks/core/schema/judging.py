"""The block `evaluate`: which tasks judge the checkpoints, and what their results decide."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from tasks.core.schema.block import Block, Folder

MOST_VALIDATED = 16_384


class TaskSpec(BaseModel):
    """One evaluation: its kind, and the evaluator's own arguments as further keys."""

    model_config = ConfigDict(extra="allow", frozen=True, use_attribute_docstrings=True)

    kind: str
    """The evaluator, which takes arguments of its own."""
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]*$")] = ""
    """Name of the results; unless given, the kind. Two tasks of one kind need different names."""

    @model_validator(mode="before")
    @classmethod
    def _named_by_kind(cls, value: Any) -> Any:
        if isinstance(value, dict) and not value.get("name"):
            value = {**value, "name": value.get("kind", "")}
        return value

    @property
    def arguments(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


def _kind_alone(value: Any) -> Any:
    return {"kind": value} if isinstance(value, str) else value


Task = Annotated[TaskSpec, BeforeValidator(_kind_alone, json_schema_input_type=str | TaskSpec)]
"""A task as written in a config: `zero_shot` alone means `{kind: zero_shot}`."""


class BestMetric(Block):
    """The metric by which the best checkpoint is chosen."""

    metric: Annotated[str, Field(min_length=1)]
    """Name of the metric in `eval_results/step_N.json`, such as `zero_shot_top1`."""
    mode: Literal["max", "min"] | None = None
    """Whether the highest or the lowest value is best. Unless given, the lowest for losses and ranks, else
    the highest."""


def _metric_alone(value: Any) -> Any:
    return {"metric": value} if isinstance(value, str) else value


class StopRule(Block):
    """A rule about a metric that ends a training, or only reports. One of `no_better_for`, `below` and
    `above` is required."""

    metric: Annotated[str, Field(min_length=1)]
    """Name of the metric in `eval_results/step_N.json`, such as `zero_shot_top1`, or a key of the rows of
    `metrics.jsonl`, such as `val/loss`."""
    no_better_for: Annotated[int, Field(ge=1)] | None = None
    """How many values in a row may be no better than the best one before them."""
    below: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """The metric falls below this value, or is not finite."""
    above: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """The metric rises above this value, or is not finite."""
    mode: Literal["max", "min"] | None = None
    """Whether a higher or a lower value is better, for `no_better_for`. Unless given, a lower one for losses
    and ranks."""
    then: Literal["stop", "report"] = "stop"
    """Whether the training is stopped with a checkpoint, its evaluations completed and its report written;
    `tarmac resume` goes on with it. Or the finding is only reported."""

    @model_validator(mode="after")
    def _one_condition(self) -> Self:
        if sum(one is not None for one in (self.no_better_for, self.below, self.above)) != 1:
            raise ValueError("needs one of no_better_for, below and above")
        if self.mode is not None and self.no_better_for is None:
            raise ValueError("mode: has an effect only with no_better_for")
        return self


class Evaluate(Block):
    """Which checkpoints are evaluated, and by which tasks."""

    every: Annotated[int, Field(ge=1)]
    """Steps between evaluated checkpoints, a multiple of `train.checkpoint_every`; the last checkpoint is
    always evaluated."""
    when: Literal["idle", "beside", "after"] = "idle"
    """When a checkpoint is evaluated. `idle`: as soon as there is a GPU that no training holds, on a machine
    without GPUs at once. `beside`: at once, where need be on a GPU of the training, which needs memory for
    both. `after`: when the training has ended, and then like `idle`. A Slurm job has GPUs of its own, so
    there `idle` is `beside`."""
    tasks: Annotated[list[Task], Field(min_length=1)]
    start: bool | None = None
    """Whether the weights that a training starts from are evaluated before its first step, as a checkpoint of
    step 0. Unless given, they are where `train.model.pretrained` names weights of the whole model: the later
    scores then show what was gained, and the finding `finetune.forgot` what was lost."""
    best: (
        Annotated[BestMetric, BeforeValidator(_metric_alone, json_schema_input_type=str | BestMetric)] | None
    ) = None
    """The metric by which `checkpoints/best` is chosen among the evaluated checkpoints, such as
    `zero_shot_top1` or `{metric: command_fid, mode: min}`. The validation loss is used unless this is given,
    and until the metric has a result."""
    best_by: list[
        Annotated[BestMetric, BeforeValidator(_metric_alone, json_schema_input_type=str | BestMetric)]
    ] = []
    """Further metrics, for each of which `checkpoints/best_<metric>` points at the best checkpoint, which
    `train.keep` keeps too."""
    stop_when: Annotated[
        list[StopRule],
        BeforeValidator(
            lambda value: [value] if isinstance(value, dict) else value,
            json_schema_input_type=StopRule | list[StopRule],
        ),
    ] = []
    """Rules that end the training early or report, such as `{metric: zero_shot_top1, no_better_for: 5}`."""
    at_least: dict[str, float] = {}
    """The least value that a finished run should reach, by metric, such as `{zero_shot_top1: 0.9}`. A run
    that falls short, at the checkpoint of the report's headline, is reported by a warning, and to whoever
    asked for it by `tarmac deploy --notify-on fell-short`."""
    at_most: dict[str, float] = {}
    """The same for the most, such as `{vlm_loss: 1.5}`."""
    batch_size: Annotated[int, Field(ge=1)] | None = None
    """Samples per pass of evaluations and of the validation loss. Unless given, 256, or 8 for conversations
    and for CT volumes, because 256 of them fill 28 GB. The default is at most `train.batch_size` for a
    contrastive loss, which grows with the batch, and at most `train.micro_batch` for conversations."""
    validation_samples: Annotated[int, Field(ge=1)] = MOST_VALIDATED
    """Maximum number of held-out samples on which the validation loss of a checkpoint is measured, in whole
    batches; evaluations use all of them."""

    results_dir: Folder | None = None
    """A folder that also gets each `eval_results/step_N.json`, for a trainer that reads results there. For
    nanoVLM that is `eval_results/RUN_NAME` in the folder that it is started in."""

    def steps(self, last: int) -> list[int]:
        """Return the steps whose checkpoints are evaluated in a training of `last` steps."""
        return [*range(self.every, last, self.every), last]

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [task.name for task in self.tasks]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise ValueError(f"tasks: two tasks are named {sorted(twice)[0]!r}; give each a different name")
        if both := sorted(self.at_least.keys() & self.at_most.keys()):
            raise ValueError(f"at_most: {both[0]} is in at_least, too; one metric takes one limit")
        return self
