"""The blocks `loader`, `train`, `evaluate` and `track`: from shards to evaluated checkpoints."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from tasks.core.schema.block import Auto, Block

BAD_BUDGET = 0.01
STREAMS_REPLACE_NOTHING = (
    "on_bad: replace draws other samples by the index, which reader: streaming does not use; "
    "take reader: indexed, or on_bad: raise"
)


class Loader(Block):
    """How training reads the shards. Nothing here changes what the model sees but `reader` and `shuffle`,
    and, where samples are bad, `on_bad`."""

    reader: Literal["indexed", "streaming"] = "indexed"
    """`streaming` reads whole tars in order, where random reads are slow or an index is missing."""
    workers: Auto = "auto"
    prefetch: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    """Batches each worker keeps ready."""
    shuffle: Literal["windows", "samples", "none"] = "windows"
    on_bad: Literal["raise", "replace"] = "raise"
    """What happens to a sample that changed on disk or does not decode. `replace` trains on another one in
    its place, logs it in the run's `replaced.rank_<r>.jsonl`, and leaves it out of validation and
    evaluation."""
    bad_budget: Annotated[float, Field(gt=0, le=1)] = BAD_BUDGET
    """With `replace`: the share of bad samples among those that a rank reads in an epoch (or in a held-out
    split) above which the run fails; one is always allowed."""

    @model_validator(mode="after")
    def _every_key_has_an_effect(self) -> Self:
        if self.on_bad == "replace" and self.reader == "streaming":
            raise ValueError(STREAMS_REPLACE_NOTHING)
        if self.on_bad == "raise" and self.bad_budget != BAD_BUDGET:
            raise ValueError("bad_budget: has an effect with on_bad: replace only")
        return self


class Train(Block):
    """One training run."""

    recipe: Literal["clip"]
    model: dict[str, Any]
    """What the recipe builds; `name` is `tarmac/digits` or any open_clip model."""
    batch_size: Annotated[int, Field(ge=2)]
    """Samples per optimizer step, over all ranks."""
    steps: Annotated[int, Field(ge=1)] | None = None
    epochs: Annotated[int, Field(ge=1)] | None = None
    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    warmup: Annotated[int, Field(ge=0, strict=True)] | Annotated[float, Field(ge=0, lt=1, strict=True)] = 0
    """Steps of linear warm-up, or their share of all steps."""
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.2
    precision: Literal["fp32", "bf16"] = "fp32"
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 0
    checkpoint_every: Annotated[int, Field(ge=1)]
    threads: Annotated[int, Field(ge=1)] = 2
    """Threads of a training on the CPU; part of the run's identity, because they change rounding."""
    log_every: Annotated[int, Field(ge=1)] = 10
    """Steps per row of metrics.jsonl, which holds their average."""

    @property
    def warmup_steps(self) -> int:
        """The warm-up in steps, also where it is given as a share of `steps`."""
        if isinstance(self.warmup, int):
            return self.warmup
        assert self.steps is not None, "a planned run has its epochs turned into steps"
        return round(self.warmup * self.steps)

    @model_validator(mode="after")
    def _steps_or_epochs(self) -> Self:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("needs either steps or epochs")
        return self


class TaskSpec(BaseModel):
    """One evaluation: its kind, and the evaluator's own arguments beside it."""

    model_config = ConfigDict(extra="allow", frozen=True)

    kind: str
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]*$")] = ""
    """Name of the results; the kind unless given. Two tasks of one kind need different names."""

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
"""A task as a config gives it: `zero_shot` alone means `{kind: zero_shot}`."""


class Evaluate(Block):
    """Which checkpoints are evaluated, and by which tasks."""

    every: Annotated[int, Field(ge=1)]
    """Steps between evaluated checkpoints, a multiple of `train.checkpoint_every`; the last always is."""
    tasks: Annotated[list[Task], Field(min_length=1)]

    def steps(self, last: int) -> list[int]:
        """The steps whose checkpoints are evaluated in a training of `last` steps."""
        return [*range(self.every, last, self.every), last]

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [task.name for task in self.tasks]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise ValueError(f"tasks: two are named {sorted(twice)[0]!r}; give each a name of its own")
        return self


class Track(Block):
    """The wandb run."""

    project: Annotated[str, Field(pattern=r"^[^/\\#?%:]{1,128}$")] = "tarmac"
    mode: Literal["offline", "online", "disabled"] = "offline"
