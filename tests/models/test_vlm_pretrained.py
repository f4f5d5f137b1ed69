"""A whole model goes on from nanoVLM's and Idefics3's checkpoints: equal weights, equal answers, or one line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tasks.core.errors import DataError, UsageError
from tasks.core.files import read_json, write_json
from tasks.core.screen import no_progress
from tasks.export.chat import ask_chat
from tasks.export.formats import TrainedModel, Written
from tasks.export.hf import write_hf
from tasks.export.nanovlm import write_nanovlm
from tasks.export.run import MOST_APART, difference
from tasks.models import hub, recipes
from tasks.models.fetch import fetch
from tasks.models.needs import HubNeed, PathNeed
from tasks.models.recipes import check_recipe
from tasks.models.vlm.chat_text import IMAGE, WHOLE, ChatText
from tasks.models.vlm.vlm import VlmRecipe
from tasks.models.vlm.vlm_layouts import why_no_siglip
from tests.export import nano_vlm_by_hand
from tests.export.test_formats import VARIABLE
from tests.hub import StandInHub, served
from tests.models.examples import MODELS, batch_of, train_block
from tests.models.test_vlm import SIZES

__all__ = ["served"]
Write = Callable[[TrainedModel, Path], Written]
WRITERS: dict[str, Write] = {"nanovlm": write_nanovlm, "hf": write_hf}
TINY = MODELS["vlm"]
BIAS = "vision.tower.embeddings.patch_embedding.bias"


@pytest.fixture(autouse=True)
def use_one_thread() -> None:
    torch.set_num_threads(1)


def built(seed: int = 4, **keys: Any) -> tuple[VlmRecipe, Any]:
    torch.manual_seed(seed)
    recipe: Any = recipes.load_recipe(train_block("vlm", **{**TINY, **keys}))
    return recipe, recipe.build_model()


def checkpoint(write: Write, folder: Path, **keys: Any) -> Any:
    """Write a drawn model as that library's checkpoint, and return the model."""
    recipe, model = built(seed=7, **keys)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    folder.mkdir(exist_ok=True)
    train = train_block("vlm", **{**TINY, **keys})
    state = {name: value.clone() for name, value in model.state_dict().items()}
    write(TrainedModel(recipe, "vlm", check_recipe(train), model.eval()), folder)
    model.float().load_state_dict(state)
    return model


def change(folder: Path, **values: Any) -> None:
    config = read_json(folder / "config.json")
    write_json(folder / "config.json", {**config, **values})


def tensors_of(folder: Path, changed: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    path = folder / "model.safetensors"
    found = {name: value.clone() for name, value in load_file(path).items()}
    save_file({name: value.contiguous() for name, value in changed(found).items()}, path)


def loss_of(recipe: Any, model: Any) -> Tensor:
    with torch.no_grad():
        total: Tensor = recipe.task(model).eval()(batch_of(recipe, "vlm")).sum
    return total


@pytest.mark.parametrize("format", WRITERS)
def test_an_export_is_read_back_to_the_bit(format: str, tmp_path: Path) -> None:
    """But for the bias into which nanoVLM's pixels are folded, which is rounded once."""
    model = checkpoint(WRITERS[format], tmp_path)
    recipe, found = built(pretrained=str(tmp_path))
    for name, value in model.state_dict().items():
        if name == BIAS and format == "nanovlm":
            torch.testing.assert_close(found.state_dict()[name], value, rtol=1e-6, atol=1e-6)
        else:
            assert torch.equal(found.state_dict()[name], value), name
    torch.testing.assert_close(loss_of(recipe, found), loss_of(recipe, model), rtol=1e-6, atol=0)


@pytest.mark.parametrize("place", ["tokenizer", ""])
def test_a_folder_of_nanovlm_that_was_moved_has_its_tokenizer_with_it(place: str, tmp_path: Path) -> None:
    """As an export lays it down, and as a push does."""
    checkpoint(write_nanovlm, tmp_path / "made")
    change(tmp_path / "made", lm_tokenizer="us/chat" if not place else "/elsewhere/tokenizer")
    if not place:
        (tmp_path / "made/tokenizer/tokenizer.json").rename(tmp_path / "made/tokenizer.json")
    shutil.move(tmp_path / "made", tmp_path / "moved")
    built(pretrained=str(tmp_path / "moved"))


def test_nanovlm_computes_the_same_from_weights_of_its_own(tmp_path: Path) -> None:
    """Weights that no export made, saved as nanoVLM does: tied tables once by the head's name, a tokenizer at
    another place."""
    checkpoint(write_nanovlm, tmp_path / "made")
    folder = tmp_path / "nano"
    folder.mkdir()
    shutil.move(tmp_path / "made/tokenizer", tmp_path / "words")
    shutil.copy(tmp_path / "made/config.json", folder)
    shutil.copy(tmp_path / "made/model.safetensors", folder)
    change(folder, lm_tokenizer=str(tmp_path / "words"), lm_attn_scaling=1.0, vlm_load_backbone_weights=True)
    torch.manual_seed(11)

    def drawn(found: dict[str, Tensor]) -> dict[str, Tensor]:
        fixed = {name for name in found if "inv_freq" in name}
        return {
            name: value if name in fixed else value + 0.1 * torch.randn_like(value)
            for name, value in found.items()
        }

    tensors_of(folder, drawn)
    by_hand = folder / "model.safetensors"
    recipe, _ = built()
    shutil.copy(by_hand, tmp_path / "table")
    tensors_of(
        folder,
        lambda found: {name.replace("token_embedding", "head"): value for name, value in found.items()},
    )
    _, model = built(pretrained=str(folder))
    question = ask_chat(recipe, model.eval())
    shutil.copy(tmp_path / "table", by_hand)
    asked = question.tensors
    said = nano_vlm_by_hand.logits(folder, asked["tokens"], asked["tiles"], recipe.chat.text.image)
    assert difference(said, question.answers["logits"]) < MOST_APART


def test_rows_of_tokens_are_found_by_the_tokens(tmp_path: Path) -> None:
    """nanoVLM with a token of pictures by another name and at another place, and without most of the tiles."""
    checkpoint(write_nanovlm, tmp_path)
    extra = read_json(tmp_path / "config.json")["vlm_extra_tokens"]
    shown = {"r1c2": extra["r1c2"], "image_token": "<picture>", "r1c1": extra["r1c1"]}
    change(tmp_path, vlm_extra_tokens={**shown, "global_image_token": "<whole>"})
    text = ChatText("tarmac/chat", tokens_per_tile=4, grid=2).tokenizer
    bare = read_json(tmp_path / "tokenizer/tokenizer.json")
    ends = {"<|im_start|>", "<|im_end|>"}
    bare["added_tokens"] = [token for token in bare["added_tokens"] if token["content"] in ends]
    write_json(tmp_path / "tokenizer/tokenizer.json", bare)
    _, model = built(pretrained=str(tmp_path))
    mine = model.language.get_input_embeddings().weight
    theirs = load_file(tmp_path / "model.safetensors")["decoder.token_embedding.weight"]
    for place, token in enumerate(["<row_1_col_2>", IMAGE, "<row_1_col_1>", WHOLE]):
        assert torch.equal(mine[text.token_to_id(token)], theirs[258 + place]), token
    assert torch.equal(mine[:258], theirs[:258])
    new = text.token_to_id("<row_2_col_2>")
    assert not (theirs == mine[new]).all(-1).any(), "it starts as new"


def idefics3(folder: Path) -> Any:
    """A checkpoint as SmolVLM's: untied tables, tokens by its own names in its own order, half the precision,
    two files of weights."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    transformers: Any = pytest.importorskip("transformers")
    names = ["<global-img>", "<row_1_col_2>", "<row_1_col_1>", "<fake>", "<image>", "<end_of_utterance>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet(), reverse=True)
    own = Tokenizer(models.BPE(vocab={sign: n for n, sign in enumerate(alphabet)}, merges=[]))
    own.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    own.add_special_tokens([AddedToken(one, special=True) for one in ["<|im_start|>", "<|im_end|>", *names]])
    folder.mkdir()
    own.save(str(folder / "tokenizer.json"))
    image = own.token_to_id("<image>")
    config = transformers.Idefics3Config(
        text_config=transformers.LlamaConfig(**SIZES, vocab_size=280, num_key_value_heads=1).to_dict(),
        vision_config={**SIZES, "image_size": 16, "patch_size": 4, "hidden_act": "gelu_pytorch_tanh"},
        scale_factor=2,
        image_token_id=image,
        tie_word_embeddings=False,
        pad_token_id=0,
    )
    torch.manual_seed(2)
    model = transformers.Idefics3ForConditionalGeneration(config).bfloat16()
    model.save_pretrained(folder, max_shard_size="20KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    write_json(folder / "preprocessor_config.json", {"image_mean": [0.5] * 3, "image_std": [0.5] * 3})
    return model.double().eval(), own


def test_a_model_of_transformers_names_its_parts_and_answers_the_same(tmp_path: Path) -> None:
    theirs, words = idefics3(tmp_path / "smol")
    name = str(tmp_path / "smol")
    recipe, model = built(vision=name, language=name, pretrained=name)
    model = model.double().eval()
    mine = recipe.chat.text.tokenizer
    names = {IMAGE: "<image>", WHOLE: "<global-img>"}
    spelt = "<|im_start|>user\n" + WHOLE + IMAGE * 4 + "<row_1_col_1>" + IMAGE * 4 + "hm?<|im_end|>"
    here = mine.encode(spelt, add_special_tokens=False)
    there = [words.token_to_id(names.get(token, token)) for token in here.tokens]
    assert here.ids != there
    tiles = torch.randint(0, 256, (2, 16, 16, 3), dtype=torch.uint8)
    with torch.inference_mode():
        features = model(torch.tensor([here.ids]), tiles, torch.arange(len(there))[None])
        logits = model.language.get_output_embeddings()(features)[0]
        pixels = (tiles.permute(0, 3, 1, 2).double() / 255 - 0.5) / 0.5
        asked = theirs(input_ids=torch.tensor([there]), pixel_values=pixels[None]).logits[0]
    shared = [token for token in mine.get_vocab() if words.token_to_id(names.get(token, token)) is not None]
    columns = [words.token_to_id(names.get(token, token)) for token in shared]
    assert len(shared) == 256 + 2 + 6 + len(names)
    found = logits[:, [mine.token_to_id(token) for token in shared]]
    assert difference(asked[:, columns], found) < MOST_APART
    assert why_no_siglip(model) is None, "an export takes it"
    with pytest.raises(
        UsageError, match=r"language: .*smol is a whole .* set train\.model\.pretrained: .*smol"
    ):
        built(language=name)
    with pytest.raises(
        UsageError, match=r"vision: .*smol is a whole .* set train\.model\.pretrained: .*smol"
    ):
        built(vision=name)
    with pytest.raises(
        UsageError, match=r"train\.model\.vision: tarmac/chat has .* set train\.model\.vision: .*smol"
    ):
        built(language=name, pretrained=name)


@pytest.mark.parametrize(
    ("format", "changes", "says"),
    [
        (
            "nanovlm",
            {"vit_img_size": 32, "vit_model_type": "google/a"},
            "vision: .* set train.model.vision: google/a",
        ),
        (
            "nanovlm",
            {"vit_hidden_dim": 768},
            "train.model.vision: tarmac/chat means vit_hidden_dim 64, .* 768",
        ),
        (
            "nanovlm",
            {"lm_n_blocks": 9, "lm_model_type": "b"},
            "lm_n_blocks 2, and .* has 9; set train.model.language: b",
        ),
        ("nanovlm", {"lm_tie_weights": False}, "train.model.language: tarmac/chat means lm_tie_weights True"),
        (
            "nanovlm",
            {"mp_pixel_shuffle_factor": 4},
            "train.model.pixel_shuffle: .*set train.model.pixel_shuffle: 4",
        ),
        (
            "nanovlm",
            {"lm_tokenizer": "/nowhere"},
            "train.model.pretrained: '/nowhere' is neither a folder nor",
        ),
        ("hf", {"scale_factor": 4}, "train.model.pixel_shuffle: .*set train.model.pixel_shuffle: 4"),
        (
            "hf",
            {"tie_word_embeddings": False},
            "train.model.language: tarmac/chat has tie_word_embeddings True",
        ),
        ("hf", {"model_type": "llama"}, "is a llama; a whole model starts from a checkpoint of nanoVLM"),
    ],
)
def test_another_model_is_refused_with_the_key_to_set(
    format: str, changes: dict[str, Any], says: str, tmp_path: Path
) -> None:
    checkpoint(WRITERS[format], tmp_path)
    change(tmp_path, **changes)
    with pytest.raises(UsageError, match=says):
        built(pretrained=str(tmp_path))


def test_measures_tokens_and_pixels_of_another_model_are_refused(tmp_path: Path) -> None:
    checkpoint(write_hf, tmp_path)
    config = read_json(tmp_path / "config.json")
    for part, key in (("vision", "num_hidden_layers"), ("text", "num_attention_heads")):
        changed = {f"{part}_config": {**config[f"{part}_config"], key: 8}}
        write_json(tmp_path / "config.json", {**config, **changed})
        option = "vision" if part == "vision" else "language"
        with pytest.raises(
            UsageError, match=rf"train\.model\.{option}: tarmac/chat has {key} .*, and .* has 8"
        ):
            built(pretrained=str(tmp_path))
    write_json(tmp_path / "config.json", config)
    write_json(tmp_path / "preprocessor_config.json", {"image_mean": [0.4, 0.5, 0.5]})
    with pytest.raises(UsageError, match=r"train\.model\.vision: its image_mean is \[0\.5, 0\.5, 0\.5\]"):
        built(pretrained=str(tmp_path))
    (tmp_path / "preprocessor_config.json").unlink()
    words = (tmp_path / "tokenizer.json").read_text()
    (tmp_path / "tokenizer.json").write_text(words.replace('"q":', '"qqq":'))
    with pytest.raises(
        UsageError, match=r"train\.model\.language: the tokenizer .* 1 tokens .* such as 'q'; set"
    ):
        built(pretrained=str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(DataError, match=r"train\.model\.pretrained: the tokenizer .* cannot be read"):
        built(pretrained=str(tmp_path))


@pytest.mark.parametrize("format", WRITERS)
def test_what_is_torn_or_too_much_is_named(format: str, tmp_path: Path) -> None:
    checkpoint(WRITERS[format], tmp_path)
    last = max(load_file(tmp_path / "model.safetensors"))
    tensors_of(tmp_path, lambda found: {**found, "model.more.weight": torch.zeros(2)})
    with pytest.raises(
        UsageError, match=r"no place for what .* holds: model\.more\.weight; set train\.model"
    ):
        built(pretrained=str(tmp_path))
    del_more = ("model.more.weight", last)
    tensors_of(tmp_path, lambda found: {name: one for name, one in found.items() if name not in del_more})
    with pytest.raises(UsageError, match=rf"train\.model\.pretrained: .* lacks {last}; set"):
        built(pretrained=str(tmp_path))
    tensors_of(tmp_path, lambda found: {**found, last: torch.zeros(3)})
    with pytest.raises(UsageError, match=rf"{last} of .* is \[3\], and this model needs \["):
        built(pretrained=str(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(DataError, match=r"train\.model\.pretrained: the weights of .* cannot be read"):
        built(pretrained=str(tmp_path))
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(
        UsageError, match=r"train\.model\.pretrained: the folder .* holds no model\.safetensors"
    ):
        built(pretrained=str(tmp_path))
    (tmp_path / "config.json").write_text("[")
    with pytest.raises(DataError, match=r"train\.model\.pretrained: config\.json of .* cannot be read"):
        built(pretrained=str(tmp_path))
    (tmp_path / "config.json").unlink()
    with pytest.raises(UsageError, match=r"of a checkpoint of Tarmac's name the file: .*/model\.safetensors"):
        built(pretrained=str(tmp_path))


def test_a_tower_of_another_library_and_another_language_model_are_refused(tmp_path: Path) -> None:
    checkpoint(write_nanovlm, tmp_path)
    change(tmp_path, vit_model_type="google/siglip")
    with pytest.raises(UsageError, match=r"vision: the vision tower comes from open_clip, .*: google/siglip"):
        built(vision="ViT-B-32", max_side=224, pixel_shuffle=7, pretrained=str(tmp_path))


def test_a_repository_of_the_hub_is_fetched_and_read(
    served: StandInHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = checkpoint(write_hf, tmp_path / "made")
    served.serve("us/chat", tmp_path / "made")
    options = check_recipe(train_block("vlm", **{**TINY, "pretrained": "us/chat"}))
    [need] = options.needs
    assert isinstance(need, HubNeed) and (need.key, need.repository) == ("train.model.pretrained", "us/chat")
    assert [part.name for part in need.parts] == ["config", "weights as safetensors", "tokenizer"]
    fetch([need], tmp_path, no_progress)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(hub.cache()))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    _, found = built(pretrained="us/chat")
    assert torch.equal(found.projector.linear.weight, model.projector.linear.weight)
    with pytest.raises(DataError, match=r"train\.model\.pretrained: config\.json of us/gone is not on this"):
        built(pretrained="us/gone")
    for path in (str(tmp_path), "runs/x/model.safetensors"):
        [need] = check_recipe(train_block("vlm", **{**TINY, "pretrained": path})).needs
        assert isinstance(need, PathNeed)


@pytest.mark.proof
@pytest.mark.skipif(VARIABLE not in os.environ, reason=f"{VARIABLE} names no sources of nanoVLM")
def test_nanovlm_saves_what_is_read(tmp_path: Path) -> None:
    """Its own class makes weights and saves them, in a process of its own."""
    checkpoint(write_nanovlm, tmp_path / "made")
    program = """
import sys
import torch
sys.path.insert(0, sys.argv[1])
from models.config import VLMConfig
from models.vision_language_model import VisionLanguageModel
from safetensors.torch import load_file, save_file
import json
torch.manual_seed(0)
config = VLMConfig(**json.load(open(sys.argv[2] + "/config.json")))
config.lm_tokenizer = sys.argv[2] + "/tokenizer"
model = VisionLanguageModel(config, load_backbone=False).eval()
model.save_pretrained(sys.argv[3])
asked = load_file(sys.argv[2] + "/asked")
with torch.inference_mode():
    features, _ = model.double()(asked["tokens"], asked["tiles"].permute(0, 3, 1, 2).double() / 255)
    save_file({"logits": model.decoder.head(features)}, sys.argv[3] + "/said")
"""
    recipe, model = built()
    asked = ask_chat(recipe, model.eval()).tensors
    save_file({name: value.contiguous() for name, value in asked.items()}, tmp_path / "made/asked")
    words = [os.environ[VARIABLE], str(tmp_path / "made"), str(tmp_path / "nano")]
    subprocess.run([sys.executable, "-c", program, *words], check=True, cwd=tmp_path)
    assert "decoder.token_embedding.weight" not in load_file(tmp_path / "nano/model.safetensors")
    recipe, model = built(pretrained=str(tmp_path / "nano"))
    question = ask_chat(recipe, model.eval())
    said = load_file(tmp_path / "nano/said")["logits"]
    assert difference(said, question.answers["logits"]) < MOST_APART
