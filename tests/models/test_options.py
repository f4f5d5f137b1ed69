"""Nothing that a recipe ignores is accepted: each option of each recipe changes what comes of a training step,
or, of another trainer's command, what the command is told; or it is refused.

A new option fails here until it has its row: what to train with, and the change.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest
import torch
from pydantic import BaseModel
from safetensors.torch import save_file, save_model
from torch import Tensor

from tasks.core.config import load_config
from tasks.core.errors import UsageError
from tasks.core.files import write_json
from tasks.core.schema.recipes import RECIPES
from tasks.loader.collate import pack, unpack
from tasks.models import recipes
from tasks.models.clip import clip_options
from tasks.models.clip.openclip import open_clip
from tasks.models.ct.ct_clip import CODEBOOK
from tasks.models.recipes import options_type
from tasks.training.external_command import command_of
from tests.conftest import ROOT
from tests.diagnosis.test_preflight_config import write_version
from tests.models.examples import MODELS, SAMPLES, scan, train_block
from tests.models.test_clip_variants import TINY, colours
from tests.models.test_ct_clip import bert
from tests.models.test_vlm import llama

TOWERS = "tiny-towers"
"""A model that open_clip knows by this name, while these tests run."""
DIGITS = {"name": "tarmac/digits"}
SMALL_CT, CHAT = {"vision": "tarmac/phantoms", "shape": [8, 16, 16]}, MODELS["vlm"]
OPEN_CLIPS = {**CHAT, "vision": TOWERS}
TAUGHT = MODELS["clip_reinforced"]
SCRIPT = {"command": ["bash", "/train.sh"]}
LARGER: dict[str, list[dict[str, bytes]]] = {
    "clip": [{"png": colours(n), "txt": f"a photo of a {n}".encode()} for n in range(4)],
    "ct_clip": [scan(n, (40, 80, 80)) for n in range(4)],
}
"""Samples with colours, and with room for crops."""


class Row(NamedTuple):
    """A model, and what makes it another one; in strings, `{name}` stands for a file or folder of `made`."""

    model: dict[str, Any]
    change: dict[str, Any]
    is_refused: bool = False


AUGMENT: dict[str, Row] = {
    "augment.scale": Row(DIGITS, {"augment": {"scale": [0.2, 0.3]}}),
    "augment.ratio": Row(DIGITS, {"augment": {"ratio": [0.25, 0.3]}}),
    "augment.color_jitter": Row(
        {**DIGITS, "augment": {"color_jitter": [0.1, 0, 0, 0], "color_jitter_prob": 1}},
        {"augment": {"color_jitter": [0.9, 0, 0, 0], "color_jitter_prob": 1}},
    ),
    "augment.color_jitter_prob": Row(
        {**DIGITS, "augment": {"color_jitter": [0.9, 0, 0, 0], "color_jitter_prob": 0.01}},
        {"augment": {"color_jitter": [0.9, 0, 0, 0], "color_jitter_prob": 1}},
    ),
    "augment.use_timm": Row(DIGITS, {"augment": {"use_timm": True, "re_prob": 1}}),
    "augment.re_prob": Row(
        {**DIGITS, "augment": {"use_timm": True, "re_prob": 0.01}},
        {"augment": {"use_timm": True, "re_prob": 1}},
    ),
    "augment.re_count": Row(
        {**DIGITS, "augment": {"use_timm": True, "re_prob": 1}},
        {"augment": {"use_timm": True, "re_prob": 1, "re_count": 3}},
    ),
    "augment.gray_scale_prob": Row(DIGITS, {"augment": {"gray_scale_prob": 1}}),
}
CLIP: dict[str, Row] = {
    "name": Row(DIGITS, {"name": TOWERS}),
    "config": Row({"config": TINY}, {"config": {**TINY, "embed_dim": 8}}),
    "pretrained": Row({"name": TOWERS}, {"pretrained": "{towers}"}),
    "loss": Row(DIGITS, {"loss": "siglip"}),
    "image_size": Row(DIGITS, {"image_size": 16}),
    "patch_dropout": Row(DIGITS, {"patch_dropout": 0.5}),
}
ROWS: dict[str, dict[str, Row]] = {
    "clip": {**CLIP, **AUGMENT},
    "clip_reinforced": {
        "name": Row(TAUGHT, {"name": TOWERS}),
        "pretrained": Row({**TAUGHT, "name": TOWERS}, {"pretrained": "{towers}"}),
        "teachers.width": Row(
            {**TAUGHT, "teachers": [{"width": 4}, {"width": 5}]}, {"teachers": [{"width": 5}, {"width": 4}]}
        ),
        "teachers.logit_scale": Row(
            {**TAUGHT, "teachers": [{"width": 9}]}, {"teachers": [{"width": 9, "logit_scale": 5.0}]}
        ),
        "loss_weights.contrastive": Row(TAUGHT, {"loss_weights": {"contrastive": 0.5}}),
        "loss_weights.distillation": Row(TAUGHT, {"loss_weights": {"distillation": 0.5}}),
        "synthetic_captions": Row(TAUGHT, {"synthetic_captions": 0.5}),
    },
    "vlm": {
        "vision": Row(CHAT, {"vision": TOWERS}),
        "vision_pretrained": Row(OPEN_CLIPS, {"vision_pretrained": "{towers}"}),
        "language": Row(CHAT, {"language": "{llama}"}),
        "pretrained": Row(CHAT, {"pretrained": "{chats}"}),
        "pixel_shuffle": Row(CHAT, {"pixel_shuffle": 4}),
        "max_side": Row(CHAT, {"max_side": 16}),
        "upscale": Row({**CHAT, "max_side": 64}, {"upscale": True}),
    },
    "ct_clip": {
        "vision": Row({**SMALL_CT, "shape": [40, 80, 80]}, {"vision": "ctvit"}),
        "text": Row(SMALL_CT, {"text": "{bert}"}),
        "text_weights": Row({**SMALL_CT, "text": TOWERS}, {"text_weights": "{towers}"}),
        "pretrained": Row(SMALL_CT, {"pretrained": "{scans}"}),
        "codebook": Row({**SMALL_CT, "pretrained": "{scans}"}, {"pretrained": "{coded}", "codebook": 4}),
        "shape": Row(SMALL_CT, {"shape": [8, 16, 32]}),
        "window": Row(SMALL_CT, {"window": [-200, 200]}),
        "flip": Row(SMALL_CT, {"flip": True}),
        "jitter": Row(SMALL_CT, {"jitter": 100}),
        "logit_scale": Row(SMALL_CT, {"logit_scale": 2.66}),
    },
    "external": {
        **CLIP,
        **{name: Row(DIGITS, row.change, is_refused=True) for name, row in AUGMENT.items()},
        "pretrained": Row({"name": "ViT-B-32"}, {"pretrained": "openai"}),
        "command": Row(DIGITS, {"command": ["python", "-m", "open_clip_train.main", "--grad-checkpointing"]}),
        "trainer": Row({**SCRIPT, "name": TOWERS}, {"trainer": "open_clip"}),
    },
}


def options(kind: Any, before: str = "") -> Iterator[str]:
    """All options by name; of a block, or of a list of blocks, those of the block."""
    for name, field in kind.model_fields.items():
        kinds = (field.annotation, *get_args(field.annotation))
        blocks = [one for one in kinds if isinstance(one, type) and issubclass(one, BaseModel)]
        yield from options(blocks[0], f"{before}{name}.") if blocks else [before + name]


@pytest.mark.parametrize("recipe", list(RECIPES))
def test_every_option_has_its_row(recipe: str) -> None:
    assert sorted(options(options_type(recipe))) == sorted(ROWS[recipe])


@pytest.fixture(scope="module", autouse=True)
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Files and folders that models are made of, by name; each with other weights than a new model has."""
    folder = tmp_path_factory.mktemp("made")
    write_json(folder / f"{TOWERS}.json", TINY)
    known = {**clip_options._files(), TOWERS: folder / f"{TOWERS}.json"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clip_options, "_files", lambda: known)
        open_clip.add_model_config(folder / f"{TOWERS}.json")
        (folder / "bert").mkdir()
        found = {"bert": bert(folder / "bert", "bert"), "llama": llama(folder / "llama")}
        for name, recipe, model in (("towers", "clip", {"name": TOWERS}), ("scans", "ct_clip", SMALL_CT)):
            torch.manual_seed(9)
            state = recipes.load_recipe(train_block(recipe, **model)).build_model().state_dict()
            found[name] = saved(state, folder / f"{name}.safetensors")
        torch.manual_seed(9)
        save_model(recipes.load_recipe(train_block("vlm")).build_model(), str(folder / "chats.safetensors"))
        found["chats"] = str(folder / "chats.safetensors")
        found["coded"] = saved({**state, CODEBOOK: torch.randn(1, 4, 48)}, folder / "coded.safetensors")
        yield found


def saved(state: dict[str, Tensor], path: Path) -> str:
    save_file({name: value.contiguous() for name, value in state.items()}, path)
    return str(path)


def outcome(recipe: str, model: dict[str, Any], folder: Path) -> Any:
    """What comes of a training step on four samples; of a command, what it is told."""
    if options_type(recipe).is_external:
        return parsed(model, folder)
    found = recipes.load_recipe(train_block(recipe, **model))
    samples = {**SAMPLES, **LARGER}[recipe]
    transform = found.transform(True)
    batch = unpack(
        pack(
            [{**transform(one, seed), "key": str(seed)} for seed, one in enumerate(samples)],
            collate=found.collate,
        )
    )[0]
    torch.manual_seed(1)
    task = found.task(found.build_model())
    torch.manual_seed(2)
    loss = task.train()(batch)
    return float((loss.sum / loss.weight).detach())


def parsed(model: dict[str, Any], folder: Path) -> Any:
    config = load_config(ROOT / "configs/open-clip-external.yaml", [f"train.model={json.dumps(model)}"])
    output = folder / "output"
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir()
    words, trainer = command_of(config, folder / "data/version", 1, output)
    return words, trainer.name, [path.read_text() for path in output.rglob("*.json")]


def filled(model: dict[str, Any], made: dict[str, str]) -> dict[str, Any]:
    names = {f"{{{name}}}": path for name, path in made.items()}
    return {key: names.get(value, value) if isinstance(value, str) else value for key, value in model.items()}


@pytest.fixture(scope="module")
def command_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where commands are told of their data and model: the same words for the same options."""
    folder = tmp_path_factory.mktemp("told")
    write_version(folder)
    return folder


@pytest.fixture(scope="module")
def usual(made: dict[str, str], command_folder: Path) -> Callable[[str, Row], Any]:
    """The outcome without the change, which several rows share."""
    known: dict[str, Any] = {}

    def find(recipe: str, row: Row) -> Any:
        name = json.dumps([recipe, row.model])
        if name not in known:
            known[name] = outcome(recipe, filled(row.model, made), command_folder)
        return known[name]

    return find


@pytest.mark.parametrize("recipe", list(RECIPES))
def test_the_outcome_is_the_same_again(
    recipe: str, made: dict[str, str], usual: Callable[[str, Row], Any], command_folder: Path
) -> None:
    """Or a change would show nothing."""
    row = next(iter(ROWS[recipe].values()))
    assert outcome(recipe, filled(row.model, made), command_folder) == usual(recipe, row)


@pytest.mark.parametrize(
    ("recipe", "option"), [(recipe, option) for recipe, rows in ROWS.items() for option in rows]
)
def test_it_changes_the_outcome_or_is_refused(
    recipe: str, option: str, made: dict[str, str], usual: Callable[[str, Row], Any], command_folder: Path
) -> None:
    row = ROWS[recipe][option]
    changed = filled({**row.model, **row.change}, made)
    if row.is_refused:
        with pytest.raises(UsageError, match=option.partition(".")[0]):
            outcome(recipe, changed, command_folder)
        return
    assert outcome(recipe, changed, command_folder) != usual(recipe, row)
