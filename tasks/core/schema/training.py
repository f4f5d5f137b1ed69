"""The blocks `loader`, `train` and `track`: from shards to checkpoints."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    model_validator,
)

from tasks.core.schema import recipes
from tasks.core.schema.block import Auto, Block, Folder

BAD_BUDGET = 0.01
BY_RECIPE: Any = None
"""The default of a key that the recipe decides on; it is filled in before the block is checked."""
JUDGED_AT_ONCE = 256
STREAMS_REPLACE_NOTHING = (
    "on_bad: replace draws other samples by the index, which reader: streaming does not use; "
    "use reader: indexed, or on_bad: raise"
)


class Loader(Block):
    """How training reads the shards. Only `reader`, `shuffle` and, where samples are bad, `on_bad` change
    which data the model is trained on; the other keys change speed and checks."""

    reader: Literal["indexed", "streaming"] = "indexed"
    """`streaming` reads whole tars in order; use it where random reads are slow or an index is missing."""
    workers: Auto = "auto"
    """Processes that make batches for each rank; with `auto` a run measures how many it takes. With 0 the
    training's own process makes them."""
    prefetch: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    """Batches that each worker keeps ready; a batch has `train.micro_batch` samples if that is given."""
    shuffle: Literal["windows", "samples", "none"] = "windows"
    """The order of an epoch: at random within windows of some shards (`windows`), at random over all samples
    (`samples`), or as they are stored (`none`)."""
    stage: Literal["node"] | None = None
    """`node` copies shards to a local disk of the node (below TMPDIR) before they are used; use it where the
    dataset is on a slow network disk. Reading never waits for a copy."""
    checksums: bool = True
    """Compare each sample that is read through the index with its CRC32C there. With `false`, a sample with a
    changed byte that still decodes is trained on."""
    on_bad: Literal["raise", "replace"] = "raise"
    """What happens to a sample that changed on disk or does not decode. `raise` ends the run. `replace`
    trains on another sample instead, records the bad one in the run's `replaced.rank_<r>.jsonl`, and leaves
    it out of validation and evaluation."""
    bad_budget: Annotated[float, Field(gt=0, le=1)] = BAD_BUDGET
    """With `replace`: the share of bad samples among those that a rank reads in an epoch (or in a held-out
    split) above which the run fails; one is always allowed."""

    @model_validator(mode="after")
    def _every_key_has_an_effect(self) -> Self:
        if self.on_bad == "replace" and self.reader == "streaming":
            raise ValueError(STREAMS_REPLACE_NOTHING)
        if self.stage is not None and self.reader == "streaming":
            raise ValueError("stage: has an effect only with reader: indexed")
        if self.on_bad == "raise" and self.bad_budget != BAD_BUDGET:
            raise ValueError("bad_budget: has an effect only with on_bad: replace")
        return self


class DataShare(Block):
    """One of the datasets that a training mixes."""

    dataset: Folder
    """The folder of the dataset, whose current version is trained on, or the folder of one version."""
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """Share of the samples that come from it, relative to the weights of the other datasets."""


Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
RateOrNone = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Span = Annotated[int, Field(ge=0, strict=True)] | Annotated[float, Field(ge=0, lt=1, strict=True)]
"""A number of steps, or a share of all steps."""
Beta = Annotated[float, Field(ge=0, lt=1)]


class Pack(Block):
    """Limits of one row into which several conversations are packed."""

    tokens: Annotated[int, Field(ge=1)] = 4096
    """The number of tokens of a row."""
    images: Annotated[int, Field(ge=1)] = 18
    """The number of images, regardless of how many tiles each is cut into."""
    images_per_sample: Annotated[int, Field(ge=0)] | None = None
    """The most images of one conversation: those with more are left out. nanoVLM's
    `max_images_per_example`, which is 4 there."""


class Lora(Block):
    """Low-rank adapters, by the library peft: a matrix W becomes W + alpha / rank · B A, and only A and B, of
    `rank` rows and columns, are trained. Source: E. Hu et al., "LoRA" (2021)."""

    rank: Annotated[int, Field(ge=1)] = 8
    """The rank of each change of a matrix."""
    alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """The changes are multiplied by alpha / rank; unless given, alpha is the rank."""
    targets: Annotated[list[str], Field(min_length=1)] | None = None
    """The adapted layers, by the last words of their names within a block of a transformer, such as
    `[attn, mlp.c_fc]`; unless given, all linear layers and fused projections of attention."""


class Keep(Block):
    """The checkpoints that stay; others are removed. One that an evaluation has yet to read always stays."""

    latest: Annotated[int, Field(ge=1)] = 2
    """The number of newest checkpoints that stay."""
    best: Annotated[int, Field(ge=1)] = 1
    """The number of best checkpoints that stay, by `evaluate.best`, else by the validation loss."""
    every: Annotated[int, Field(ge=1)] | None = None
    """Also one checkpoint in every so many steps; a multiple of `checkpoint_every`."""


class Train(Block):
    """One training run. A key without a default of its own has the recipe's, which is that of its
    original."""

    recipe: Annotated[str, AfterValidator(recipes.known), Field(json_schema_extra=recipes.name_choices)]
    """The model family; each has its own keys in `model`."""
    model: dict[str, Any]
    """The recipe's own keys, which describe the model. For clip: `name` is `tarmac/digits` or any open_clip
    model, or `config` is its description; `pretrained` is an open_clip tag for it, or a file of weights;
    `loss`, `image_size`, `patch_dropout` and `augment` mean the same as in open_clip's trainer. For ct_clip:
    `vision` is `ctvit` or `tarmac/phantoms`, and `text` names the text tower that reads the reports."""
    data: Annotated[list[DataShare], Field(min_length=1)] | None = None
    """The datasets to train on and their weights; unless given, `dataset.output` alone. It must be in the
    list, because checkpoints are judged on its held-out split. A dataset that is exhausted starts again."""
    batch_size: Annotated[int, Field(ge=2)]
    """Samples per optimizer step, over all ranks; with `pack`, packs per step."""
    steps: Annotated[int, Field(ge=1)] | None = None
    """Optimizer steps of the training; give either these or `epochs`."""
    epochs: Annotated[int, Field(ge=1)] | None = None
    """How often all samples are trained on, in place of `steps`."""
    micro_batch: Annotated[int, Field(ge=1)] | None = None
    """Samples per pass, for batches that do not fit into memory at once; unless given, the whole batch. The
    gradients equal those of the whole batch, even for a contrastive loss, which needs two forward passes."""
    pack: Pack | None = None
    """Packs several conversations into one row; the model sees each of them separately. Conversations that
    exceed the limits are left out. For the recipe vlm only."""
    lr: Rate | dict[str, RateOrNone]
    """The peak learning rate, or one for each part of the model, as in
    `{vision: 1.0e-5, text: 1.0e-4, temperature: 1.0e-4}` with the parts of clip. A part with rate 0 is not
    trained, as if `freeze` named it."""
    warmup: Span | dict[str, Span] | None = None
    """Steps of linear warm-up, or their share of all steps; or one value for each part, as in `lr`."""
    schedule: Literal["cosine", "constant"] = BY_RECIPE
    """The learning rate after the warm-up: it falls as half a cosine, or stays constant."""
    lr_floor: Annotated[float, Field(ge=0, lt=1)] = BY_RECIPE
    """The share of its peak that the learning rate falls to: with `cosine`, or in a `cooldown`."""
    cooldown: Span = 0
    """With `constant`: the last steps, or their share of all, in which the rate falls."""
    cooldown_power: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """The shape of the cooldown: 1 is a line; the rate falls with this power of the share of it that is
    left."""
    freeze: list[str] = []
    """Parts of the model that are not trained, such as `[vision]`; they stay in eval mode."""
    unlocked: dict[str, Annotated[int, Field(ge=1)]] = {}
    """By part: how many of its uppermost groups of layers are trained, while those below are locked. Groups
    are counted as for open_clip's `--lock-image-unlocked-groups`: the projection; the last block, with the
    norm after it; each block below; the embeddings."""
    layer_decay: Annotated[float, Field(gt=0, lt=1)] | None = None
    """The share of the learning rate of the layer above that each layer of a transformer has: what lies above
    the blocks has the whole rate, the last block this share of it, the one below the square, and so on down
    to the embeddings."""
    lora: Lora | None = None
    """Trains low-rank adapters in the blocks of the model's transformers, and nothing else of the parts that
    have them; other parts, such as a temperature or a projector, are trained as usual. Checkpoints hold the
    weights with the adapters merged into them."""
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = BY_RECIPE
    """AdamW's decoupled weight decay, of what `decay` names."""
    decay: Literal["matrices", "all", "none"] = BY_RECIPE
    """What weight decay acts on: matrices but no biases, norms and temperatures; all parameters; or none."""
    betas: tuple[Beta, Beta] = BY_RECIPE
    """AdamW's decay rates of the averages of gradients and of their squares."""
    eps: Annotated[float, Field(gt=0, allow_inf_nan=False)] = BY_RECIPE
    """AdamW's term in the denominator."""
    grad_clip: Annotated[float, Field(ge=0, allow_inf_nan=False)] = BY_RECIPE
    """Maximum norm to which all gradients together are clipped, or 0 for no limit; `train/grad_norm` is the
    norm before that."""
    ema: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Decay of an exponential moving average of the weights (lower in the first steps). The average is what
    `model.safetensors` holds, and what is validated and evaluated."""
    precision: recipes.Precision = BY_RECIPE
    """Precision of the arithmetic; weights stay in fp32. `auto` is bf16 on a GPU that computes in it, else
    fp32. `fp16` scales the loss and skips steps that overflow, and logs each skipped step as a row with
    `train/skipped` in the metrics."""
    deterministic: bool | None = None
    """Whether a resumed training ends with exactly the same bits as an uninterrupted one (tested on the CPU);
    an operation without a deterministic form is an error. Unless given, it is so on a CPU, where it costs
    little, and not on a GPU: there `false` allows TensorFloat-32 for products in fp32, and the fastest
    kernels."""
    compile: bool = False
    """Whether torch compiles the blocks of the model's transformers, in the first steps of each process. The
    arithmetic is rounded differently from then on."""
    checkpointing: bool = False
    """Whether the blocks of the model's transformers compute their activations again in the backward pass
    instead of keeping them: less memory for a third more time. The weights are the same."""
    sync_batch_norm: bool = False
    """Whether batch norms take their statistics from the batches of all ranks, on GPUs; open_clip's
    `--use-bn-sync`. Else each rank's are its own, and a model with batch norm trains differently on another
    number of ranks."""
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 0
    """Seed of initialisation, order and augmentation."""
    checkpoint_every: Annotated[int, Field(ge=1)]
    """Steps between checkpoints; the last step has one in any case."""
    keep: Keep | None = None
    """Which checkpoints stay, such as `{latest: 2, best: 1, every: 10000}`; all unless given."""
    threads: Annotated[int, Field(ge=1)] = 2
    """Threads of a training on the CPU; part of the run's identity, because the number changes rounding."""
    log_every: Annotated[int, Field(ge=1)] = 10
    """Steps per row of metrics.jsonl; each row holds averages over these steps."""
    on_stall: Literal["report", "restart", "stop"] = "report"
    """What the agent does with a stalled training after it has examined it: only report it; restart it from
    its newest checkpoint, at most three times; or stop it."""
    on_crash: Literal["restart", "stop"] = "restart"
    """What becomes of a training that something outside of it ended: a signal, such as the kernel's when
    memory is short, a killed loader worker, a rank that does not answer, a disk or GPU that failed. It is
    started again from its newest checkpoint, after pauses that grow and at most three times without a new
    checkpoint; so is an agent that was killed. An error of the model, the data or the config is never
    repeated."""

    def require_even(self, ranks: int) -> None:
        """Raise ValueError if a batch cannot be divided evenly among `ranks`, or if `micro_batch` is not
        smaller than one rank's share."""
        if self.batch_size % ranks:
            raise ValueError(
                f"train.batch_size: {self.batch_size} samples cannot be divided evenly among {ranks} ranks"
            )
        share = self.batch_size // ranks
        if self.micro_batch is not None and self.micro_batch >= share:
            raise ValueError(
                f"train.micro_batch: has an effect only below a rank's part of a batch ({share})"
            )

    @property
    def warmup_steps(self) -> int:
        """The longest warm-up in steps, including one that is given as a share of `steps`."""
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
        """Return the peak learning rate of a part of the model."""
        return self.lr[part] if isinstance(self.lr, dict) else self.lr

    def warmup_steps_of(self, part: str) -> int:
        """Return the warm-up of a part of the model in steps."""
        return self._in_steps(self.warmup[part] if isinstance(self.warmup, dict) else self.warmup)

    def _in_steps(self, span: float | None) -> int:
        if isinstance(span, int):
            return span
        assert self.steps is not None and span is not None, "a planned run has its epochs turned into steps"
        return round(span * self.steps)

    @model_validator(mode="before")
    @classmethod
    def _as_its_recipe(cls, given: Any) -> Any:
        """Fill in what the recipe decides. The default warm-up needs the number of steps."""
        if not isinstance(given, dict) or given.get("recipe") not in recipes.RECIPES:
            return given
        defaults = recipes.defaults_of(given["recipe"], given.get("model"), given.get("steps"))
        found = given | {key: value for key, value in defaults.items() if given.get(key) is None}
        if given.get("lr_floor") is None and found["schedule"] == "constant" and not found.get("cooldown"):
            found["lr_floor"] = 0
        if given.get("weight_decay") is None and found["decay"] == "none":
            found["weight_decay"] = 0
        return found

    @model_validator(mode="after")
    def _steps_or_epochs(self) -> Self:
        if self.steps is None and self.epochs is None:
            raise ValueError("needs either steps or epochs")
        if self.steps is not None and self.epochs is not None:
            raise ValueError(
                f"steps ({self.steps}) and epochs ({self.epochs}) are both given; remove one, "
                "for example with --set train.steps=null"
            )
        return self

    @model_validator(mode="after")
    def _tunes_what_it_trains(self) -> Self:
        for key in ("ema", "compile") if self.lora is not None else ():
            if getattr(self, key):
                raise ValueError(f"{key}: does not go with lora; take one of them out")
        for part in self.unlocked:
            if part in self.frozen:
                raise ValueError(
                    f"unlocked.{part}: has no effect, because freeze or a rate of 0 locks it whole"
                )
        return self

    @model_validator(mode="after")
    def _keys_have_effect(self) -> Self:
        if self.epochs is not None and len(self.data or ()) > 1:
            raise ValueError("epochs: mixed datasets have no common epoch; give steps")
        if self.pack is not None and self.epochs is not None:
            raise ValueError("epochs: the number of packs per epoch is not known in advance; give steps")
        if self.cooldown and self.schedule != "constant":
            raise ValueError("cooldown: has an effect only with schedule: constant")
        if self.cooldown_power != 1 and not self.cooldown:
            raise ValueError("cooldown_power: has an effect only with a cooldown")
        if self.lr_floor and self.schedule == "constant" and not self.cooldown:
            raise ValueError("lr_floor: has an effect only with schedule: cosine or a cooldown")
        if self.weight_decay and self.decay == "none":
            raise ValueError("weight_decay: has an effect only with decay: matrices or all")
        if self.keep is not None and self.keep.every and self.keep.every % self.checkpoint_every:
            raise ValueError(
                f"keep.every ({self.keep.every}) must be a multiple of checkpoint_every "
                f"({self.checkpoint_every})"
            )
        if self.micro_batch is not None and self.micro_batch >= self.batch_size:
            raise ValueError(f"micro_batch: has an effect only below batch_size ({self.batch_size})")
        return self


class Track(Block):
    """Where the rows of a run go. Its folder gets TensorBoard's event files in any case, unless tracking is
    disabled."""

    tracker: Literal["wandb", "tensorboard"] = "wandb"
    """`tensorboard` leaves it at the event files: nothing else is installed, and no server takes part."""
    project: Annotated[str, Field(pattern=r"^[^/\\#?%:]{1,128}$")] = "tarmac"
    """The project of the wandb run, where there is one."""
    mode: Literal["offline", "online", "disabled"] = "offline"
    """`online` uploads while the training goes on, `disabled` tracks nothing."""

    @property
    def has_wandb(self) -> bool:
        """Whether there is a wandb run."""
        return self.mode != "disabled" and self.tracker == "wandb"

    @model_validator(mode="after")
    def _files_have_no_server(self) -> Self:
        if self.tracker == "tensorboard" and self.mode == "online":
            raise ValueError(
                "mode: online needs a server, which tracker: tensorboard has none of; use offline"
            )
        return self
