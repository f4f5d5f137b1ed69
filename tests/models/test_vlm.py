"""The vision-language recipe: its tokens and tiles beside nanoVLM's description, its options, its answers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import save_model

from tasks.core import config as configs
from tasks.core.errors import DataError, UsageError
from tasks.loader.feed import Data, Feed
from tasks.models import recipes
from tasks.models.task import Answerer
from tasks.models.vlm.chat_text import ChatMessage, ChatText
from tasks.models.vlm.vlm import Tiles, VlmTask, rows_of
from tests.conftest import ROOT
from tests.models.examples import MODELS, SAMPLES, batch_of, chat, train_block

TEXT = ChatText("tarmac/chat", tokens_per_tile=4, grid=2)
TALK = [
    ChatMessage("user", "What <|image|>is this?"),
    ChatMessage("assistant", "A cat,\n  and a dög."),
    ChatMessage("user", "And this?"),
    ChatMessage("assistant", "  Nothing."),
]
SMALL = MODELS["vlm"]
SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
"""Of models of transformers."""


def described(messages: list[ChatMessage], grids: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """nanoVLM's description read step by step: its whole text tokenized at once, each message once more to
    find where answers lie, labels moved by one."""
    picture = ""
    for number, (rows, columns) in enumerate(grids):
        if len(grids) > 1:
            picture += f"<image: {number}>"
        picture += "<|global_image|>" + "<|image|>" * 4
        if rows == 1 and columns == 1:
            continue
        for row in range(rows):
            for column in range(columns):
                picture += f"<row_{row + 1}_col_{column + 1}>" + "<|image|>" * 4
    found = [[role, text.replace("<|image|>", "")] for role, text in messages]
    found[0][1] = picture + found[0][1]
    template = [f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in found]
    ids = TEXT._ids("".join(template))
    mask, cursor = [False] * len(ids), 0
    prefix = len(TEXT._ids("<|im_start|>assistant\n"))
    for (role, _), message in zip(found, template, strict=True):
        length = len(TEXT._ids(message))
        if role == "assistant":
            mask[cursor + prefix : cursor + length] = [True] * (length - prefix)
        cursor += length
    labels = torch.tensor(ids).masked_fill(~torch.tensor(mask), -100).roll(-1)
    labels[-1] = -100
    return ids, labels.tolist()


@pytest.mark.parametrize("grids", [[], [(1, 1)], [(2, 1)], [(1, 1), (2, 2)]])
def test_tokens_and_targets_are_those_of_nanovlm(grids: list[tuple[int, int]]) -> None:
    assert TEXT.encode(TALK, grids) == described(TALK, grids)


def test_an_answer_that_is_begun_is_continued() -> None:
    """As nanoVLM appends an answer's beginning to the prompt."""
    asked = TEXT.encode_prompt([*TALK[:3], ChatMessage("assistant", "Answer:")], [(1, 1)])
    ids, _ = described(TALK[:3], [(1, 1)])
    assert asked == ids + TEXT._ids("<|im_start|>assistant\nAnswer:")
    assert TEXT.encode_prompt(TALK[:3], [(1, 1)]) == ids + TEXT._ids("<|im_start|>assistant\n")


def test_only_what_the_assistant_says_is_a_target() -> None:
    targets = [token for token in TEXT.encode(TALK, [(1, 1)]).targets if token != -100]
    said = "A cat,\n  and a dög.<|im_end|>\n  Nothing.<|im_end|>\n"
    assert TEXT.tokenizer.decode(targets, skip_special_tokens=False) == said


def test_pictures_stand_where_the_text_marks_them() -> None:
    marked = [ChatMessage("user", "Is <image: 2> like <image: 1>?"), ChatMessage("assistant", "No.")]
    shown = TEXT.tokenizer.decode(TEXT.encode(marked, [(1, 1)] * 2).tokens, skip_special_tokens=False)
    second, first = shown.index("<image: 1>"), shown.index("<image: 0>")
    assert shown.index("Is ") < second < shown.index(" like ") < first, "nanoVLM counts them from 0"


def test_a_system_message_stands_before_the_picture_and_is_no_target() -> None:
    sample = chat(1)
    document = json.loads(sample["json"])
    recipe = recipes.load_recipe(train_block("vlm"))
    plain, told = (
        recipe.transform(True)({**sample, "json": json.dumps({**document, **extra}).encode()}, 1)
        for extra in ({}, {"system": "Be short."})
    )
    system = "<|im_start|>system\nBe short.<|im_end|>\n"
    shown = TEXT.tokenizer.decode(told["tokens"].tolist(), skip_special_tokens=False)
    assert shown == system + TEXT.tokenizer.decode(plain["tokens"].tolist(), skip_special_tokens=False)
    assert shown.index("<|im_start|>user\n<|global_image|>") == len(system)
    before = len(told["tokens"]) - len(plain["tokens"])
    assert told["targets"][before:].tolist() == plain["targets"].tolist()
    assert (told["targets"][:before] == -100).all()
    task = recipe.task(recipe.build_model())
    assert isinstance(task, Answerer)
    asked = task.questions({**sample, "json": json.dumps({**document, "system": "Be short."}).encode()})
    assert TEXT.tokenizer.decode(asked[0].tokens, skip_special_tokens=False).startswith(system)


@pytest.mark.parametrize("size", [(300, 300), (640, 480), (480, 641), (5000, 100), (10, 10), (512, 512)])
@pytest.mark.parametrize("upscale", [True, False])
def test_tiles_are_those_of_nanovlm(size: tuple[int, int], upscale: bool) -> None:
    side, most = 64, 256
    width, height = size
    longer, shorter = max(size), min(size)
    target = most if upscale else min(most, math.ceil(longer / side) * side)
    short = max(math.ceil(round(shorter * target / longer, 9) / side) * side, side)
    rows, columns = (short // side, target // side) if width >= height else (target // side, short // side)
    picture = Image.effect_noise(size, 60).convert("RGB")
    tiles = Tiles(side, most, upscale)
    cut = tiles.cut(picture)
    assert tiles.grid_of(*size) == (rows, columns)
    assert len(cut) == rows * columns + (rows * columns > 1) and cut.shape[1:] == (side, side, 3)
    sized = torch.tensor(
        list(picture.resize((columns * side, rows * side), Image.Resampling.BICUBIC).tobytes())
    )
    whole = sized.view(rows * side, columns * side, 3)
    assert torch.equal(cut[-1], whole[-side:, -side:].to(torch.uint8))


def task_of(**changes: Any) -> tuple[recipes.Recipe, VlmTask]:
    recipe = recipes.load_recipe(train_block("vlm", **{**SMALL, **changes}))
    torch.manual_seed(3)
    task = recipe.task(recipe.build_model())
    assert isinstance(task, VlmTask)
    return recipe, task.eval()


def test_packed_conversations_do_not_see_each_other() -> None:
    recipe, task = task_of()
    samples = [
        {**recipe.transform(True)(sample, 1), "key": str(n)} for n, sample in enumerate(SAMPLES["vlm"])
    ]
    packed = rows_of([{**sample, "pack": place} for sample, place in zip(samples, (0, 0, 1, 0), strict=True)])
    assert packed["tokens"].shape[0] == 2 and packed["key"] == ["0 1 3", "2"]
    with torch.no_grad():
        alone = [task(rows_of([sample])) for sample in samples]
        together = task(packed)
    assert together.weight == sum(loss.weight for loss in alone)
    assert torch.allclose(together.sum, torch.stack([loss.sum for loss in alone]).sum(), rtol=1e-5)


@pytest.mark.parametrize(
    ("changes", "tiles"),
    [
        ({}, 5),
        ({"pixel_shuffle": 4}, 5),
        ({"max_side": 16}, 1),
        ({"max_side": 64}, 10),
        ({"max_side": 64, "upscale": True}, 17),
    ],
)
def test_each_option_changes_what_the_model_is_given(changes: dict[str, Any], tiles: int) -> None:
    recipe = recipes.load_recipe(train_block("vlm", **{**SMALL, **changes}))
    (sample,) = (recipe.transform(True)(chat(1), 1),)
    of_image = int((sample["tokens"] == recipe.chat.text.image).sum())
    assert len(sample["image"]) == tiles and of_image == tiles * (1 if "pixel_shuffle" in changes else 4)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"pixel_shuffle": 3}, r"pixel_shuffle: tarmac/chat has 4 patches per side"),
        ({"vision_pretrained": "openai"}, r"vision_pretrained: only has an effect with an open_clip model"),
        ({"vision": "ViT-B-32", "pixel_shuffle": 2, "max_side": 224}, r"ViT-B-32 has 7 patches per side"),
        (
            {"vision": "ViT-B-16", "max_side": 300},
            r"max_side: 300 pixels are no whole number of tiles.*take 224",
        ),
    ],
)
def test_parts_that_do_not_fit_are_told(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        recipes.load_recipe(train_block("vlm", **{**SMALL, **changes})).transform(True)


def test_a_folder_that_is_no_model_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds no tokenizer\.json"):
        recipe = recipes.load_recipe(train_block("vlm", **{**SMALL, "language": str(tmp_path)}))
        recipe.transform(True)(SAMPLES["vlm"][0], None)


def learnt() -> VlmTask:
    """Three conversations by heart."""
    recipe, task = task_of(max_side=16)
    batch = batch_of(recipe, "vlm", samples=slice(3))  # the fourth begins as the first does
    optimizer = torch.optim.AdamW(task.parameters(), lr=3e-3)
    task.train()
    for _ in range(60):
        optimizer.zero_grad()
        loss = task(batch)
        (loss.sum / loss.weight).backward()
        optimizer.step()
    return task.eval()


def test_it_learns_to_answer_and_reads_each_question_by_itself() -> None:
    """Left padding and the cache of keys and values change nothing: each answer is what it is alone."""
    task = learnt()
    assert isinstance(task, Answerer)
    questions = [question for n in range(3) for question in task.questions(chat(n))]
    together = task.answer(questions, 16)
    assert together == [task.answer([question], 16)[0] for question in questions]
    assert together == [question.expected for question in questions]


def test_a_part_with_rate_0_is_not_trained() -> None:
    from tasks.training.devices import Device
    from tasks.training.step import Step

    train = train_block("vlm", {"lr": {"projector": 1e-2, "vision": 0, "language": 1e-3}})
    recipe = recipes.load_recipe(train)
    model = recipe.build_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    Step(recipe, model, train, Device(torch.device("cpu"), "fp32"))(0, batch_of(recipe, "vlm"))
    changed = {
        recipe.part_of(name)
        for name, value in model.state_dict().items()
        if not torch.equal(value, before[name])
    }
    assert changed == {"projector", "language"}


def llama(folder: Path) -> str:
    """A tiny language model of transformers in a folder, as it would be downloaded."""
    from transformers import LlamaConfig, LlamaForCausalLM

    LlamaForCausalLM(LlamaConfig(**SIZES, vocab_size=300, num_key_value_heads=1)).save_pretrained(folder)
    TEXT.tokenizer.save(str(folder / "tokenizer.json"))
    return str(folder)


@pytest.mark.parametrize("kind", ["siglip", "clip"])
def test_towers_and_language_models_of_transformers_come_from_a_folder(kind: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    vision = {**SIZES, "image_size": 16, "patch_size": 4}
    if kind == "siglip":
        tower = transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**vision))
    else:
        tower = transformers.CLIPVisionModel(transformers.CLIPVisionConfig(**vision))
    tower.save_pretrained(tmp_path / "vision")
    described = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
    (tmp_path / "vision/preprocessor_config.json").write_text(json.dumps(described))
    recipe, task = task_of(vision=str(tmp_path / "vision"), language=llama(tmp_path / "language"))
    trained = dict(task.model.named_parameters())
    language = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "language")
    embedded = language.get_input_embeddings().weight
    grown = trained["language.model.embed_tokens.weight"]
    assert torch.equal(grown[:300], embedded[:300]) and len(grown) >= recipe.chat.text.size
    loss = task.train()(batch_of(recipe, "vlm"))
    loss.sum.backward()
    assert all(one.grad is not None for one in trained.values() if one.requires_grad), "or ranks would wait"


@pytest.mark.parametrize(
    ("changes", "judged"),
    [([], 4), (["train.batch_size=64"], 8), (["train.batch_size=64", "train.micro_batch=2"], 2)],
)
def test_no_more_conversations_are_judged_at_once_than_a_pass_trains_on(
    tmp_path: Path, changes: list[str], judged: int
) -> None:
    """A pass of 256, as of pictures and captions, would be 3.4 GB of tiles alone, in each batch of a worker."""
    config = configs.load_config(ROOT / "configs/digits-chat.yaml", ["evaluate=null", *changes])
    assert config.train is not None
    assert Feed.of(config, [Data(tmp_path)], recipes.load_recipe(config.train)).judged_at_once == judged


def test_a_whole_model_goes_on_from_a_file_of_its_weights(tmp_path: Path) -> None:
    """Also at another limit of the pictures' sides, which changes no weight."""
    torch.manual_seed(3)
    model = recipes.load_recipe(train_block("vlm")).build_model()
    path = tmp_path / "model.safetensors"
    save_model(model, str(path))

    def built(**keys: Any) -> torch.nn.Module:
        torch.manual_seed(4)
        return recipes.load_recipe(train_block("vlm", **{**MODELS["vlm"], **keys})).build_model()

    for found in (built(pretrained=str(path)), built(pretrained=str(path), max_side=32)):
        for name, value in model.state_dict().items():
            assert torch.equal(found.state_dict()[name], value), name
    with pytest.raises(UsageError, match=r"train\.model\.pretrained: .*gone: there is no such file"):
        built(pretrained=str(tmp_path / "gone"))
    with pytest.raises(DataError, match=r"train\.model\.pretrained: .* holds no weights of this model"):
        built(pretrained=str(path), pixel_shuffle=1)
    path.write_bytes(b"nothing")
    with pytest.raises(DataError, match="holds no weights"):
        built(pretrained=str(path))
    with pytest.raises(UsageError, match="vision_pretrained: has no effect"):
        built(pretrained=str(path), vision_pretrained="x")
