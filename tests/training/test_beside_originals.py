"""Loss curves of the originals' own loops beside ours: the defaults of the full-size configs, shrunk in size only.

Both start from the same weights and see the same batches in the same order. open_clip's trainer is installed;
nanoVLM's sources are those in the folder TARMAC_NANOVLM. MobileCLIP's and CT-CLIP's trainers need versions of
libraries that cannot be installed beside Tarmac's, so their loops are written out here, by torch alone: the
loss is the recipe's, which is theirs to the last digits of a batch.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tasks.core.config import load_config
from tasks.core.schema import Train
from tasks.export.formats import TrainedModel
from tasks.export.nanovlm import write_nanovlm
from tasks.models import recipes
from tasks.models.vlm.vlm import PADDING
from tasks.runs.plan import settled
from tasks.training.devices import Device
from tasks.training.step import Step
from tests.conftest import ROOT
from tests.export.test_formats import VARIABLE
from tests.models.examples import MODELS, SAMPLES, batch_of

pytestmark = pytest.mark.proof
STEPS = 100
CPU = torch.device("cpu")
Rate = Callable[[int], float]


def shrunk(config: str, recipe: str, *changes: str) -> Train:
    """The full-size training with the examples' tiny model, their samples in each step, and few steps."""
    small = (
        f"train.steps={STEPS}",
        "engine.train={}",
        "train.batch_size=4",
        "train.micro_batch=null",
        f"train.checkpoint_every={STEPS}",
        "evaluate=null",
        *changes,
    )
    found = load_config(ROOT / f"configs/full/{config}.yaml", small)
    assert found.train is not None
    train = found.train.model_copy(update={"model": MODELS[recipe]})
    return settled(train, found.engine.train)


def batches_of(train: Train) -> list[dict[str, Any]]:
    """The samples of each step, augmented as the recipe does, in another order each time."""
    recipe, name = recipes.load_recipe(train), train.recipe
    order = torch.Generator().manual_seed(7)
    whole = SAMPLES[name]
    made = []
    for _ in range(STEPS):
        places = torch.randperm(len(whole), generator=order).tolist()
        SAMPLES[name] = [whole[place] for place in places]
        made.append(batch_of(recipe, name, is_train=True))
    SAMPLES[name] = whole
    return made


def ours(train: Train, model: Any, batches: list[dict[str, Any]]) -> list[float]:
    recipe = recipes.load_recipe(train)
    step = Step(recipe, deepcopy(model), train, Device(CPU, train.precision))
    return [float(step(number, batch).loss) for number, batch in enumerate(batches)]


def apart(ours: list[float], theirs: list[float]) -> float:
    """The largest difference between the curves, as a share of how far the loss fell."""
    assert len(ours) == len(theirs) == STEPS
    fell = max(theirs) - min(theirs)
    assert fell > 0.05, theirs
    return max(abs(one - other) for one, other in zip(ours, theirs, strict=True)) / fell


def assert_alike(mine: dict[str, list[float]], theirs: dict[str, list[float]]) -> None:
    """In float32 the curves are the same; in bf16 they are as far apart as its rounding puts the original's
    own."""
    exact, rounded = (apart(mine[precision], theirs[precision]) for precision in ("fp32", "bf16"))
    noise = apart(theirs["bf16"], theirs["fp32"])
    print(f"apart in fp32 by {exact:.1e} of the fall, in bf16 by {rounded:.1e}, and its noise is {noise:.1e}")
    assert exact < 1e-3 and rounded < 2 * noise


def model_of(train: Train) -> Any:
    torch.manual_seed(0)
    return recipes.load_recipe(train).build_model()


def under_open_clip(mine: Train, model: Any, batches: list[dict[str, Any]], precision: str) -> list[float]:
    """The losses of open_clip's `train_one_epoch`, with the options of its script and the rest by default."""
    import open_clip_train.train as original
    from open_clip.loss import ClipLoss
    from open_clip_train import params, scheduler

    from tasks.models.clip.pictures import normalised

    given = f"--model ViT-B-32 --warmup 6 --lr 1e-3 --precision {precision} --batch-size 4 --epochs 1"
    args = params.parse_args(given.split())
    args.device, args.rank, args.world_size, args.distill, args.wandb = "cpu", 0, 1, False, False
    theirs = deepcopy(model)
    theirs.output_dict = True
    named = [(name, value) for name, value in theirs.named_parameters() if value.requires_grad]
    words = ("bn", "ln", "bias", "logit_scale")
    spared = [value for name, value in named if value.ndim < 2 or any(word in name for word in words)]
    others = [value for _, value in named if not any(value is one for one in spared)]
    optimizer = torch.optim.AdamW(
        [{"params": spared, "weight_decay": 0.0}, {"params": others, "weight_decay": args.wd}],
        lr=args.lr,
        betas=(args.beta1, args.beta2),
        eps=args.eps,
    )
    seen: list[float] = []

    class Recorded(ClipLoss):  # type: ignore[misc]
        def forward(self, *arguments: Any, **named: Any) -> Any:
            losses = super().forward(*arguments, **named)
            seen.append(float(losses["contrastive_loss"]))
            return losses

    class Loader(list[Any]):
        num_batches, num_samples = STEPS, 4 * STEPS

    recipe: Any = recipes.load_recipe(mine)
    loader = Loader((normalised(one["image"], recipe.preprocessing), one["text"]) for one in batches)
    data = {"train": SimpleNamespace(dataloader=loader, set_epoch=lambda epoch: None)}
    rates = scheduler.cosine_lr(optimizer, args.lr, args.warmup, STEPS)
    original.train_one_epoch(theirs, data, Recorded(), 0, optimizer, None, rates, None, args)
    return seen


def test_clip_learns_as_under_open_clips_own_trainer() -> None:
    mine = {
        one: shrunk("clip", "clip", "train.warmup=6", f"train.precision={one}") for one in ("fp32", "bf16")
    }
    model, batches = model_of(mine["fp32"]), batches_of(mine["fp32"])
    assert_alike(
        {precision: ours(train, model, batches) for precision, train in mine.items()},
        {
            precision: under_open_clip(mine["fp32"], model, batches, name)
            for precision, name in (("fp32", "fp32"), ("bf16", "amp_bfloat16"))
        },
    )


UNDER_NANOVLM = """
import contextlib, json, sys
import torch
source, folder, precision, steps = sys.argv[1:]
sys.path.insert(0, source)
import train
from models.config import TrainConfig, VLMConfig
batches, losses = torch.load(folder + "/batches", weights_only=False), []
config = VLMConfig(**json.load(open(folder + "/config.json")))
config.lm_tokenizer = folder + "/tokenizer"
model = train.VisionLanguageModel(config, load_backbone=False)
from safetensors.torch import load_model
load_model(model, folder + "/model.safetensors")
def recorded(module, arguments, named, found):
    losses.append(float(found[1]))
model.register_forward_hook(recorded, with_kwargs=True)
class Loader(list):
    batch_size = 4
loader = Loader(batches)
train.get_dataloaders = lambda *_: (loader, loader, iter(loader), iter(loader))
train.VisionLanguageModel = lambda *_, **__: model
attend = torch.nn.functional.scaled_dot_product_attention
def attended(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False):  # both masks at once, as on CUDA
    if attn_mask is not None and is_causal:
        later = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).triu(1)
        attn_mask, is_causal = attn_mask.masked_fill(later, float("-inf")), False
    return attend(query, key, value, attn_mask, dropout_p, is_causal)
torch.nn.functional.scaled_dot_product_attention = attended
if precision == "fp32":
    torch.autocast = lambda **_: contextlib.nullcontext()
options = TrainConfig(
    max_training_steps=int(steps), batch_size=4, gradient_accumulation_steps=1, log_wandb=False, eval_in_epochs=False
)
train.train(options, config)
json.dump(losses, open(folder + "/losses", "w"))
"""


def as_nanovlm(batch: dict[str, Any]) -> dict[str, Any]:
    tiles = batch["image"].permute(0, 1, 4, 2, 3).float() / 255
    return {
        "images": [
            [row[:count]] if count else [] for row, count in zip(tiles, batch["tiles"].tolist(), strict=True)
        ],
        "input_ids": batch["tokens"],
        "labels": batch["targets"],
        "attention_mask": (batch["segments"] != PADDING).long(),
    }


@pytest.mark.skipif(VARIABLE not in os.environ, reason=f"{VARIABLE} names no sources of nanoVLM")
def test_vlm_learns_as_under_nanovlms_own_trainer(tmp_path: Path) -> None:
    mine = {
        one: shrunk("nano-vlm", "vlm", "train.pack=null", f"train.precision={one}")
        for one in ("fp32", "bf16")
    }
    model, batches = model_of(mine["fp32"]), batches_of(mine["fp32"])
    model.vision.mean.zero_()  # the original's tower gets pixels between 0 and 1
    model.vision.deviation.fill_(1)
    recipe = recipes.load_recipe(mine["fp32"])
    write_nanovlm(
        TrainedModel(recipe, "vlm", recipes.check_recipe(mine["fp32"]), deepcopy(model).eval()), tmp_path
    )
    torch.save([as_nanovlm(batch) for batch in batches], tmp_path / "batches")
    theirs = {}
    for precision in mine:
        words = [os.environ[VARIABLE], str(tmp_path), precision, str(STEPS)]
        subprocess.run([sys.executable, "-c", UNDER_NANOVLM, *words], check=True, cwd=tmp_path)
        theirs[precision] = json.loads((tmp_path / "losses").read_text())
    assert_alike({precision: ours(train, model, batches) for precision, train in mine.items()}, theirs)


def written_out(
    train: Train, model: Any, batches: list[dict[str, Any]], optimizer: Any, rate: Rate, clip: float
) -> list[float]:
    """The losses of a loop of torch alone; `optimizer` makes one of the named parameters."""
    task = recipes.load_recipe(train).task(deepcopy(model)).train()
    steps, losses = optimizer(list(task.model.named_parameters())), []
    for number, batch in enumerate(batches):
        for group in steps.param_groups:
            group["lr"] = rate(number)
        steps.zero_grad()
        with nullcontext() if train.precision == "fp32" else torch.autocast("cpu", torch.bfloat16):
            loss = task(batch)
        mean = loss.sum / loss.weight
        mean.backward()
        torch.nn.utils.clip_grad_norm_(task.model.parameters(), clip)
        steps.step()
        task.after_step()
        losses.append(float(mean))
    return losses


def of_mobileclip(named: list[tuple[str, Any]]) -> Any:
    """AdamW in the groups of open_clip with the options of MobileCLIP's run_datacompdr12m.sh."""
    words = ("bn", "ln", "bias", "logit_scale")
    spared = [value for name, value in named if value.ndim < 2 or any(word in name for word in words)]
    others = [value for _, value in named if not any(value is one for one in spared)]
    groups = [{"params": spared, "weight_decay": 0.0}, {"params": others, "weight_decay": 0.2}]
    return torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-6)


def of_ct_clip(named: list[tuple[str, Any]]) -> Any:
    """What transformer_maskgit's get_optimizer returns to CTClipTrainer, whose weight decay is 0."""
    return torch.optim.Adam([value for _, value in named], betas=(0.9, 0.99), eps=1e-8)


def cosine(number: int) -> float:
    """open_clip's cosine_lr after a warm-up of 6 steps."""
    if number < 6:
        return 1e-3 * (number + 1) / 6
    return 0.5 * (1 + math.cos(math.pi * (number - 6) / (STEPS - 6))) * 1e-3


WRITTEN_OUT: dict[str, tuple[str, tuple[str, ...], Any, Rate, float]] = {
    "clip_reinforced": ("reinforced-clip", ("train.warmup=6",), of_mobileclip, cosine, 1.0),
    "ct_clip": ("ct-clip", ("train.lr=1e-3",), of_ct_clip, lambda _: 1e-3, 0.5),
}
"""By recipe: the config, what a training of so few steps changes of it, and what the original's trainer has."""


@pytest.mark.parametrize("recipe", WRITTEN_OUT)
def test_recipes_learn_as_in_their_originals_loop(recipe: str) -> None:
    config, changes, *loop = WRITTEN_OUT[recipe]
    mine = {one: shrunk(config, recipe, *changes, f"train.precision={one}") for one in ("fp32", "bf16")}
    model, batches = model_of(mine["fp32"]), batches_of(mine["fp32"])
    theirs = {one: written_out(train, model, batches, *loop) for one, train in mine.items()}
    assert_alike({one: ours(train, model, batches) for one, train in mine.items()}, theirs)
