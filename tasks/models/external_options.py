"""The options of a training by another trainer's command.

Tarmac passes the rest of the train block to the command as options of a known trainer; it rejects a key for
which the trainer has no option.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from tasks.core.schema import Train
from tasks.core.schema.recipes import RECIPES
from tasks.models.clip.clip_options import DIGITS, Augment, ClipOptions, open_clip_needs
from tasks.models.needs import OPEN_CLIP_CONFIG, HubNeed, Need, UnknownNeed, open_clip_weights
from tasks.models.recipes import Capability

PASSED_ON = frozenset(
    {
        "recipe",
        "model",
        "batch_size",
        "steps",
        "epochs",
        "micro_batch",
        "lr",
        "warmup",
        "schedule",
        "weight_decay",
        "betas",
        "eps",
        "grad_clip",
        "precision",
        "seed",
        "checkpoint_every",
        "threads",
        "log_every",
    }
)
"""The keys of the train block that are passed on to the command."""
HUB = "hf-hub:"
OPEN_CLIP = ("python", "-m", "open_clip_train.main")

TrainerName = Literal[
    "open_clip", "mobileclip", "nano_vlm", "lightning", "transformers", "accelerate", "yolo", "fairseq",
    "generic",
]  # fmt: skip


class ExternalOptions(ClipOptions):
    """`train.model` of recipe external: the model as in recipe clip, so that checkpoints can be evaluated."""

    modality: ClassVar[str] = ""
    parts: ClassVar[tuple[str, ...]] = ()
    is_external: ClassVar[bool] = True

    command: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)] = list(OPEN_CLIP)
    """The words that start the training; options that they give override those that Tarmac fills in. `python`
    at the start is Tarmac's own interpreter, started by torchrun where `engine.train` asks for several ranks,
    and `torchrun` belongs to it too; paths are absolute."""
    trainer: TrainerName | None = None
    """The trainer whose options and log lines these are, where the command does not show it, as
    with a script."""

    @property
    def gives(self) -> frozenset[Capability]:
        """A model that is not described has no capabilities."""
        return self.capabilities if self.name or self.config else frozenset()

    @property
    def needs(self) -> Sequence[Need]:
        key = "train.model.command"
        if self.trainer not in (None, "open_clip", "mobileclip") or OPEN_CLIP[-1] not in self.command:
            return [UnknownNeed(key, f"what {self.command[0]} downloads is not known")]
        name, pretrained = self._option("--model") or self.registered, self._option("--pretrained")
        if name.startswith(HUB):
            repository = name.removeprefix(HUB)
            known = HubNeed(key, repository, (OPEN_CLIP_CONFIG, open_clip_weights("")))
            return [known, UnknownNeed(key, f"which tokenizer {repository} takes stands in its config")]
        described = self.described if self._option("--model") is None else None
        return open_clip_needs("train.model", name, pretrained or self.pretrained, described)

    def _option(self, name: str) -> str | None:
        """Return the value that the command gives an option."""
        given = dict(zip(self.command, self.command[1:], strict=False))
        joined = (word.partition("=")[2] for word in self.command if word.startswith(f"{name}="))
        return given.get(name) or next(joined, None)

    @model_validator(mode="after")
    def _is_described_once(self) -> Self:
        if self.name is not None and self.config is not None:
            raise ValueError("name and config: give one of the two")
        if self.augment != Augment():
            raise ValueError("augment: give it as an option of command, such as --aug-cfg scale=(0.5,1.0)")
        if self.pretrained is not None and (self.config is not None or self.name == DIGITS):
            raise ValueError("pretrained: open_clip's trainer takes weights for models of its own only")
        return self

    def require(self, train: Train) -> None:
        """Raise ValueError for keys that cannot be passed on to the command."""
        # A run from before `deterministic` could be left out has it at true, which was without effect.
        defaults = {**RECIPES[train.recipe].defaults._asdict(), "deterministic": train.deterministic or None}
        for key, field in Train.model_fields.items():
            default: Any = defaults.get(key, field.get_default(call_default_factory=True))
            if key not in PASSED_ON and getattr(train, key) != default:
                raise ValueError(
                    f"{key}: is not passed on to a command; give it as an option of model.command"
                )
        if train.steps is not None and train.steps % train.checkpoint_every:
            raise ValueError(
                f"checkpoint_every: {train.checkpoint_every} steps are an epoch to the trainer, and steps "
                f"({train.steps}) is no multiple of it"
            )
        is_fork = self.trainer == "mobileclip" or "--dataset-reinforcement" in self.command
        is_nameless = self.config is not None or self.name == DIGITS
        if is_fork and is_nameless and self._option("--model") is None:
            raise ValueError(
                "model: MobileCLIP's fork takes models by open_clip's names only; give model.name"
            )
        if train.micro_batch is not None and train.batch_size % train.micro_batch:
            raise ValueError(f"micro_batch: does not divide batch_size ({train.batch_size})")
