"""What a training leaves out until it is asked for: torch's compiler, and libraries for some of open_clip's
towers. Each case is a process of its own, as what was imported stays so."""

from __future__ import annotations

import subprocess
import sys

BEGIN = """
import sys
from tasks.models import late
late.put_off_compiler()
import torch
from tests.models import examples
from tasks.models.recipes import load_recipe
from tasks.training.devices import Device
from tasks.training.step import Step

def is_there(module):
    return not isinstance(sys.modules[module], late._PutOff)

def take_step(name):
    train = examples.train_block(name)
    recipe = load_recipe(train)
    step = Step(recipe, recipe.build_model(), train, Device(torch.device("cpu"), "fp32"))
    step(0, examples.batch_of(recipe, name, is_train=True))
"""


def run(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", BEGIN + code], capture_output=True, text=True, timeout=120)
    assert not done.returncode, done.stderr


def test_a_step_is_taken_without_the_compiler() -> None:
    """By the recipe whose models' own library imports the most of it."""
    run("""
take_step("vlm")
assert not is_there("torch._dynamo") and not is_there("torch._dynamo.utils")
""")


def test_clip_starts_without_what_other_towers_need() -> None:
    """And finds it when such a tower is built, but no tracker, which timm would import."""
    run("""
take_step("clip")
assert not {"transformers", "timm"} & set(sys.modules) and not is_there("torch._dynamo"), "for nothing"
from tasks.models.clip.openclip import open_clip
sizes = dict(embed_dim=8, text_cfg=dict(context_length=8, vocab_size=49408, width=8, heads=1, layers=1))
vision = dict(timm_model_name="resnet10t", timm_model_pretrained=False, timm_pool="avg", image_size=32)
model = open_clip.model.CustomTextCLIP(vision_cfg=vision, **sizes)
assert model.encode_image(torch.zeros(2, 3, 32, 32)).shape == (2, 8)
assert type(model.visual) is open_clip.model.TimmModel is open_clip.timm_model.TimmModel
assert "timm" in sys.modules and "wandb" not in sys.modules
""")


def test_whoever_compiles_finds_the_compiler() -> None:
    """Also by the names that others took from it while it was put off."""
    run("""
from torchvision.ops import roi_align
assert not is_there("torch._dynamo")
boxes = torch.tensor([[0.0, 0.0, 0.0, 3.0, 3.0]])
assert sys.modules["torchvision.ops.roi_align"].is_compile_supported("cpu") in (True, False)
assert is_there("torch._dynamo") and is_there("torch._dynamo.utils")
assert roi_align(torch.ones(1, 1, 4, 4), boxes, 2).shape == (1, 1, 2, 2)
assert torch.compile(lambda x: x + 1, backend="eager")(torch.zeros(2)).tolist() == [1, 1]
from torch._dynamo import config
assert torch._dynamo is sys.modules["torch._dynamo"] and config is sys.modules["torch._dynamo.config"]
""")
