"""The blocks `loader`, `train`, `evaluate` and `track`: from shards to evaluated checkpoints."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from tasks.core.schema import recipes
from tasks.core.schema.block import Auto, Block, Folder

BAD_BUDGET = 0.01
JUDGED_AT_ONCE = 256
MOST_VALIDATED = 16_384
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
    """Batches each worker keeps ready, of `train.micro_batch` samples where that is given."""
    shuffle: Literal["windows", "samples", "none"] = "windows"
    stage: Literal["node"] | None = None
    """`node` copies shards to a disk of the node (below TMPDIR) ahead of their use, where the dataset lies on
    a slow network disk. Nothing waits for a copy."""
    checksums: bool = True
    """Compares each sample that is read by the index with its CRC32C there. Without, a changed byte that
    still decodes is trained on."""
    sharing_strategy: Literal["file_descriptor", "file_system"] = "file_descriptor"
    """torch's, by which workers hand over batches: `file_system` holds no descriptor per tensor, for where
    `ulimit -n` is low and cannot be raised."""
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
        if self.stage is not None and self.reader == "streaming":
            raise ValueError("stage: has an effect with reader: indexed only")
        if self.on_bad == "raise" and self.bad_budget != BAD_BUDGET:
            raise ValueError("bad_budget: has an effect with on_bad: replace only")
        return self


class DataShare(Block):
    """One of the datasets that a training mixes."""

    dataset: Folder
    """Its folder, or that of one of its versions; the current version is trained on."""
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """Its share of the samples, beside the weights of the others."""


Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
RateOrNone = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Span = Annotated[int, Field(ge=0, strict=True)] | Annotated[float, Field(ge=0, lt=1, strict=True)]
"""Steps, or a share of all steps."""


class Pack(Block):
    """What a row of several conversations holds at most."""

    tokens: Annotated[int, Field(ge=1)] = 4096
    images: Annotated[int, Field(ge=1)] = 18
    """Pictures, however many tiles each is cut into."""


class Train(Block):
    """One training run."""

    recipe: Annotated[str, AfterValidator(recipes.known), Field(json_schema_extra=recipes.name_choices)]
    """The model family; each has its own keys in `model`."""
    model: dict[str, Any]
    """What the recipe builds, in keys of its own. Of clip: `name` is `tarmac/digits` or any open_clip model,
    or `config` its description; `pretrained` a tag that open_clip knows for it, or a file of weights; `loss`,
    `image_size`, `patch_dropout` and `augment` as open_clip's trainer has them. Of ct_clip: `vision` is
    `ctvit` or `tarmac/phantoms`, `text` whose text tower reads the reports."""
    data: Annotated[list[DataShare], Field(min_length=1)] | None = None
    """The datasets to train on and their weights; `dataset.output` alone unless given. It has to be among
    them, as its held-out split is what checkpoints are judged by. A dataset that is used up begins anew."""
    batch_size: Annotated[int, Field(ge=2)]
    """Samples per optimizer step, over all ranks; with `pack` so many packs."""
    steps: Annotated[int, Field(ge=1)] | None = None
    epochs: Annotated[int, Field(ge=1)] | None = None
    micro_batch: Annotated[int, Field(ge=1)] | None = None
    """Samples per pass, where a batch does not fit into memory at once; all of them unless given. The
    gradients are those of the whole batch, also of a contrastive loss, whose passes are done twice."""
    pack: Pack | None = None
    """Puts several conversations into one row, each by itself to the model; longer ones are left out. Of the
    recipe vlm."""
    lr: Rate | dict[str, RateOrNone]
    """The highest learning rate; or one for each part of the model, as in
    `{vision: 1.0e-5, text: 1.0e-4, temperature: 1.0e-4}`, which are the parts of clip. At 0 a part is not
    trained, as if `freeze` named it."""
    warmup: Span | dict[str, Span] = 0
    """Steps of linear warm-up, or their share of all steps; or one for each part, as `lr`."""
    schedule: Literal["cosine", "constant"] = "cosine"
    """What the learning rate does after the warm-up: fall to zero as half a cosine, or stay."""
    cooldown: Span = 0
    """With `constant`: the last steps, or their share of all, in which the rate falls to zero in a line."""
    freeze: list[str] = []
    """Parts of the model that are not trained, such as `[vision]`; they stay in eval mode."""
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.2
    grad_clip: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """The norm that all gradients together are scaled down to; `train/grad_norm` is theirs before it."""
    ema: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Keeps a moving average of the weights, of which a step leaves this share (lower in the first steps).
    It is what `model.safetensors` holds, and what is validated and evaluated."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Of the arithmetic; weights stay in fp32. `fp16` scales the loss, and skips steps that overflow, each of
    which is a row with `train/skipped` in the metrics."""
    deterministic: bool = True
    """Whether a resumed training ends in the very bits of an undisturbed one, as is shown on the CPU; an
    operation without a deterministic form is refused. `false` is faster on a GPU: TensorFloat-32 for products
    in fp32, and cuDNN's fastest convolutions."""
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 0
    checkpoint_every: Annotated[int, Field(ge=1)]
    threads: Annotated[int, Field(ge=1)] = 2
    """Threads of a training on the CPU; part of the run's identity, because they change rounding."""
    log_every: Annotated[int, Field(ge=1)] = 10
    """Steps per row of metrics.jsonl, which holds their average."""
    on_stall: Literal["report", "restart", "stop"] = "report"
    """What the agent does about a training that stands still, once it has examined it: nothing but say so;
    start it again from its newest checkpoint, three times at most; or end it."""

    def require_even(self, ranks: int) -> None:
        """ValueError when a batch does not go evenly to so many ranks, or `micro_batch` is as large as the
        share of one."""
        if self.batch_size % ranks:
            raise ValueError(f"train.batch_size: {self.batch_size} samples do not go evenly to {ranks} ranks")
        share = self.batch_size // ranks
        if self.micro_batch is not None and self.micro_batch >= share:
            raise ValueError(
                f"train.micro_batch: has an effect below a rank's part of a batch ({share}) only"
            )

    @property
    def warmup_steps(self) -> int:
        """The longest warm-up in steps, also where it is given as a share of `steps`."""
        spans = self.warmup.values() if isinstance(self.warmup, dict) else [self.warmup]
        return max(map(self._in_steps, spans), default=0)

    @property
    def cooldown_steps(self) -> int:
        return self._in_steps(self.cooldown)

    @property
    def frozen(self) -> frozenset[str]:
        """The parts that are not trained: `freeze` names them, or their learning rate is 0."""
        rates = self.lr if isinstance(self.lr, dict) else {}
        return frozenset({*self.freeze, *(part for part, rate in rates.items() if not rate)})

    def peak(self, part: str) -> float:
        """The highest learning rate of a part of the model."""
        return self.lr[part] if isinstance(self.lr, dict) else self.lr

    def warmup_steps_of(self, part: str) -> int:
        """The warm-up of a part of the model, in steps."""
        return self._in_steps(self.warmup[part] if isinstance(self.warmup, dict) else self.warmup)

    def _in_steps(self, span: float) -> int:
        if isinstance(span, int):
            return span
        assert self.steps is not None, "a planned run has its epochs turned into steps"
        return round(span * self.steps)

    @model_validator(mode="after")
    def _steps_or_epochs(self) -> Self:
        if self.steps is None and self.epochs is None:
            raise ValueError("needs either steps or epochs")
        if self.steps is not None and self.epochs is not None:
            raise ValueError(
                f"steps ({self.steps}) and epochs ({self.epochs}) are both given; take one out, "
                "such as by --set train.steps=null"
            )
        return self

    @model_validator(mode="after")
    def _keys_have_effect(self) -> Self:
        if self.epochs is not None and len(self.data or ()) > 1:
            raise ValueError("epochs: datasets that are mixed have no epoch in common; give steps")
        if self.pack is not None and self.epochs is not None:
            raise ValueError("epochs: how many packs an epoch makes is not known before; give steps")
        if self.cooldown and self.schedule != "constant":
            raise ValueError("cooldown: has an effect with schedule: constant only")
        if self.micro_batch is not None and self.micro_batch >= self.batch_size:
            raise ValueError(f"micro_batch: has an effect below batch_size ({self.batch_size}) only")
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


class BestMetric(Block):
    """The metric by which the best checkpoint is chosen."""

    metric: Annotated[str, Field(min_length=1)]
    """As `eval_results/step_N.json` names it, such as `zero_shot_top1`."""
    mode: Literal["max", "min"] | None = None
    """Whether the highest or the lowest value is the best: the lowest of losses and ranks unless given, else
    the highest."""


def _metric_alone(value: Any) -> Any:
    return {"metric": value} if isinstance(value, str) else value


class Evaluate(Block):
    """Which checkpoints are evaluated, and by which tasks."""

    every: Annotated[int, Field(ge=1)]
    """Steps between evaluated checkpoints, a multiple of `train.checkpoint_every`; the last always is."""
    tasks: Annotated[list[Task], Field(min_length=1)]
    best: (
        Annotated[BestMetric, BeforeValidator(_metric_alone, json_schema_input_type=str | BestMetric)] | None
    ) = None
    """The metric by which `checkpoints/best` is chosen among the evaluated checkpoints, such as
    `zero_shot_top1` or `{metric: command_fid, mode: min}`; the validation loss unless given, and until the
    metric has a result."""
    batch_size: Annotated[int, Field(ge=1)] | None = None
    """Samples per pass of evaluations and of the validation loss. Unless given 256 (8 of CT volumes, of which
    256 fill 28 GB, and of conversations) and, for a contrastive loss, which grows with the batch,
    `train.batch_size` at most; of conversations `train.micro_batch` at most."""
    validation_samples: Annotated[int, Field(ge=1)] = MOST_VALIDATED
    """Held-out samples that the validation loss of a checkpoint is measured on, at most, in whole batches;
    evaluations judge all of them."""

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
