"""Exports of drawn models, loaded by the other library and asked the same; and what is refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tasks.core import config as configs
from tasks.core.errors import UsageError
from tasks.core.files import read_json
from tasks.evaluation.checkpoint import load_model_of
from tasks.export import hf, nanovlm, open_clip
from tasks.export.formats import TrainedModel, Written
from tasks.export.proofs import ask
from tasks.export.run import MOST_APART, compare, difference, export, put
from tasks.models import recipes
from tasks.models.clip.clip_layouts import why_no_clip_model
from tasks.models.clip.clip_options import DIGITS, model_config
from tests.export import nano_vlm_by_hand
from tests.export.runs import STEP, run_of
from tests.models.examples import TINY_CT
from tests.models.test_ct_clip import bert

VARIABLE = "TARMAC_NANOVLM"
"""The folder of nanoVLM's sources, which a test may use; they need einops beside what Tarmac has."""
Write = Callable[[TrainedModel, Path], Written]


@pytest.fixture(autouse=True)
def use_one_thread() -> None:
    torch.set_num_threads(1)


def trained(folder: Path, recipe: str, **model: Any) -> TrainedModel:
    run = run_of(folder, recipe, **model)
    config = configs.reload(run.config)
    assert config.train is not None
    made, weights = load_model_of(run, config, STEP)
    return TrainedModel(made, recipe, recipes.check_recipe(config.train), weights.eval())


def differences(write: Write, library: str, model: TrainedModel, folder: Path) -> dict[str, float]:
    """What the program of the proof finds, called in this process to save the imports."""
    exported, proof = folder / "export", folder / "proof"
    exported.mkdir()
    proof.mkdir()
    question = write(model, exported).question
    put(question, proof)
    ask.main(str(exported), str(proof), library)
    return compare(question, proof)[1]


QUICK = {**(model_config(DIGITS) or {}), "quick_gelu": True}
CLIP: dict[str, tuple[str, dict[str, Any]]] = {
    "clip": ("clip", {}),
    "another size and activation": ("clip", {"config": QUICK, "image_size": 48, "patch_dropout": 0.5}),
    "siglip": ("clip", {"name": DIGITS, "loss": "siglip"}),
    "reinforced": ("clip_reinforced", {}),
    "external": ("external", {"name": DIGITS}),
}


@pytest.mark.parametrize("case", CLIP)
def test_open_clip_gives_the_same_features(case: str, tmp_path: Path) -> None:
    recipe, model = CLIP[case]
    found = differences(open_clip.write_open_clip, "open_clip", trained(tmp_path, recipe, **model), tmp_path)
    assert set(found) == {"image features", "text features", "temperature"}
    assert max(found.values()) < 1e-12


@pytest.mark.parametrize("case", ["clip", "another size and activation"])
def test_transformers_gives_the_same_features(case: str, tmp_path: Path) -> None:
    recipe, model = CLIP[case]
    found = differences(hf.write_hf, "transformers", trained(tmp_path, recipe, **model), tmp_path)
    assert set(found) == {"image features", "text features", "temperature"}
    assert max(found.values()) < 1e-12


def test_transformers_gives_the_same_logits(tmp_path: Path) -> None:
    found = differences(hf.write_hf, "transformers", trained(tmp_path, "vlm"), tmp_path)
    assert set(found) == {"logits", "tokens"} and max(found.values()) < MOST_APART


def test_transformers_reads_reports_as_the_text_tower_did(tmp_path: Path) -> None:
    model = trained(tmp_path, "ct_clip", **TINY_CT, text=bert(tmp_path, "cxr-bert"))
    found = differences(hf.write_hf, "transformers", model, tmp_path)
    assert set(found) == {"text features", "tokens"} and max(found.values()) < 1e-12


def test_nano_vlm_gives_the_same_logits_by_its_description(tmp_path: Path) -> None:
    model = trained(tmp_path, "vlm")
    question = nanovlm.write_nanovlm(model, tmp_path).question
    asked = question.tensors
    said = nano_vlm_by_hand.logits(tmp_path, asked["tokens"], asked["tiles"], model.recipe.chat.text.image)
    assert difference(question.answers["logits"], said) < MOST_APART
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "tokenizer")
    spelt = tokenizer(question.texts[0], add_special_tokens=False).input_ids
    assert spelt == question.answers["tokens"][0].tolist()


@pytest.mark.proof
@pytest.mark.skipif(VARIABLE not in os.environ, reason=f"{VARIABLE} names no sources of nanoVLM")
def test_nano_vlm_itself_gives_the_same_logits(tmp_path: Path) -> None:
    run = run_of(tmp_path, "vlm")
    made = export(str(run.path), tmp_path, "nanovlm", tmp_path / "out", source=Path(os.environ[VARIABLE]))
    found = made.record["proof"]["largest_difference"]
    assert found["tokens"] == 0 and found["logits"] < MOST_APART
    assert read_json(tmp_path / "out/config.json")["lm_tokenizer"] == str(tmp_path / "out/tokenizer")


def test_a_difference_is_seen(tmp_path: Path) -> None:
    """One weight of a layer's bias, and one token."""
    model = trained(tmp_path, "clip")

    def damaged(given: TrainedModel, folder: Path) -> Written:
        written = open_clip.write_open_clip(given, folder)
        weights = load_file(folder / open_clip.WEIGHTS)
        weights["visual.ln_post.bias"][0] += 0.01
        save_file(weights, folder / open_clip.WEIGHTS)
        return written

    found = differences(damaged, "open_clip", model, tmp_path)
    assert found["text features"] == 0 and found["image features"] > 10 * MOST_APART
    assert difference(torch.tensor([1, 2]), torch.tensor([1, 3])) == float("inf")
    assert difference(torch.ones(2), torch.ones(3)) == float("inf")


@pytest.mark.parametrize(
    ("name", "lacks"),
    [
        ("ViT-B-32", None),
        ("ViT-L-14-336-quickgelu", None),
        ("RN50", "vision_cfg.layers: [3, 4, 6, 3]"),
        ("ViT-B-16-SigLIP", "init_logit_bias: -10"),
        ("MobileCLIP-S1", "custom_text: True"),
        ("roberta-ViT-B-32", "text_cfg.hf_model_name: roberta-base"),
        ("ViT-H-14-CLIPA", "vision_cfg.no_ln_pre: True"),
    ],
)
def test_clip_model_has_plain_towers_alone(name: str, lacks: str | None) -> None:
    described = model_config(name)
    assert described is not None
    assert why_no_clip_model(described) == lacks


@pytest.mark.parametrize(
    ("recipe", "model", "write", "says"),
    [
        (
            "clip",
            {"name": DIGITS, "loss": "siglip"},
            hf.write_hf,
            "has no init_logit_bias: -10.0; --to open_clip",
        ),
        (
            "clip",
            {},
            nanovlm.write_nanovlm,
            "--to nanovlm: a model of recipe clip is not a vision-language model",
        ),
        (
            "vlm",
            {},
            open_clip.write_open_clip,
            "--to open_clip: a model of recipe vlm is not one of open_clip's; --to hf",
        ),
        ("ct_clip", TINY_CT, hf.write_hf, "--to hf: transformers has no part of this model"),
    ],
)
def test_what_a_format_lacks_is_refused(
    recipe: str, model: dict[str, Any], write: Write, says: str, tmp_path: Path
) -> None:
    given = trained(tmp_path, recipe, **model)
    with pytest.raises(UsageError) as caught:
        write(given, tmp_path)
    assert says in str(caught.value)
