"""Dataset reinforcement as MobileCLIP does it: what is replayed and picked, and the loss."""

from __future__ import annotations

import gzip
import io
import json
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms.autoaugment import _apply_op

from tasks.core.errors import DataError, UsageError
from tasks.models import recipes
from tasks.models.clip.openclip import open_clip
from tasks.models.reinforced import reinforcement
from tests.models.examples import MODELS, SAMPLES, batch_of, taught, train_block

NAMES = [
    "Identity",
    "ShearX",
    "ShearY",
    "TranslateX",
    "TranslateY",
    "Rotate",
    "Brightness",
    "Color",
    "Contrast",
    "Sharpness",
    "Posterize",
    "Solarize",
    "AutoContrast",
    "Equalize",
]
"""In the order in which MobileCLIP numbers them."""
MAGNITUDES = {"Translate": 5.6, "Rotate": -9.0, "Posterize": 6, "Solarize": 179.3}
SIZE = (24, 28)


def recipe_of(**model: Any) -> Any:
    return recipes.load_recipe(train_block("clip_reinforced", **{**MODELS["clip_reinforced"], **model}))


def colourful(width: int = 50, height: int = 40) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8))


@pytest.mark.parametrize("number", range(len(NAMES)), ids=NAMES)
def test_an_augmentation_is_replayed_to_the_pixel(number: int) -> None:
    """As torchvision's transforms do, which the teachers' images came from, at the student's size."""
    name = NAMES[number]
    magnitude = next((value for start, value in MAGNITUDES.items() if name.startswith(start)), 0.27)
    picture, crop = colourful(), [3, 5, 30, 41]
    expected = picture.crop((5, 3, 5 + 41, 3 + 30)).resize(SIZE[::-1], Image.Resampling.BICUBIC)
    for step in (magnitude, -magnitude if magnitude < 1 else magnitude):
        expected = _apply_op(expected, name, step, InterpolationMode.NEAREST, fill=None)
    operations = [[number, magnitude], None, [number, -magnitude if magnitude < 1 else magnitude]]
    seen = reinforcement.replay(picture, [crop, operations], SIZE, "bicubic")
    assert np.array_equal(np.array(seen), np.array(expected))
    for none in ([crop], [crop, None], [crop, [None, None]]):
        plain = reinforcement.replay(picture, none, SIZE, "bicubic")
        assert name == "Identity" or not np.array_equal(np.array(plain), np.array(seen))


@pytest.mark.parametrize(
    "augmentation",
    [[[0, 0, 0, 9]], [[5, 0, -3, 9]], [[0, 0, 41, 50]], [[0, 0, 9, 9], [[99, 1.0]]], [[0, 0, 9, 9], [[0]]]],
)
def test_an_augmentation_that_no_build_lets_through_is_named(augmentation: list[Any]) -> None:
    with pytest.raises(DataError, match=r"paug\.json: augmentation 0"):
        reinforcement.replay(colourful(), augmentation, SIZE, "bicubic")


def test_an_array_without_rows_is_named() -> None:
    file = io.BytesIO()
    np.savez(file, image_emb=np.float32(1), text_emb=np.zeros((6, 9)))
    with pytest.raises(DataError, match=r"image_emb has the shape \(\)"):
        reinforcement.choose(numbered(npz=file.getvalue()), 0)


def numbered(**others: bytes) -> dict[str, bytes]:
    """A sample whose rows of embeddings say which they are: hundreds for the array, ones for the row."""
    lists = {"syn_text": ["a", "b"], "syn_text_long": ["c", "d", "e"], "syn_text_apart": ["f", "g"]}
    arrays = {"image_emb": (100, 4), "text_emb": (200, 6), "syn_text_apart_emb": (300, 2)}
    file = io.BytesIO()
    np.savez(file, **{name: np.full((n, 9), h) + np.arange(n)[:, None] for name, (h, n) in arrays.items()})
    crops = [[[n, 2 * n, 20 + n, 30]] for n in range(4)]
    png = io.BytesIO()
    colourful().save(png, "PNG")
    sample = {
        "png": png.getvalue(),
        "txt": b"real",
        "syn.json": json.dumps(lists).encode(),
        "paug.json": json.dumps({"param_aug": json.dumps(crops)}).encode(),
        "npz": file.getvalue(),
    }
    return {**sample, **others}


ROWS = {"real": 200, "a": 201, "b": 202, "c": 203, "d": 204, "e": 205, "f": 300, "g": 301}


def test_embeddings_are_those_of_what_was_chosen_and_all_is_chosen_in_its_turn() -> None:
    sample, augmented, texts = numbered(), set(), set()
    for seed in range(200):
        chosen = reinforcement.choose(sample, seed)
        number = int(chosen.embedding[0]) - 100
        assert chosen.augmentation == [[number, 2 * number, 20 + number, 30]]
        assert chosen.caption.text == "real" and chosen.added is not None
        for caption in (chosen.caption, chosen.added):
            assert set(caption.embedding.tolist()) == {ROWS[caption.text]}
        augmented.add(number)
        texts.add(chosen.added.text)
        again = reinforcement.choose(sample, seed)
        assert again.augmentation == chosen.augmentation and again.added.text == chosen.added.text  # type: ignore[union-attr]
    assert augmented == set(range(4)) and texts == set("abcdefg")


def test_a_share_of_the_captions_is_synthetic() -> None:
    for share, least, most in ((0.0, 0, 0), (0.3, 40, 80), (1.0, 200, 200)):
        chosen = [reinforcement.choose(numbered(), seed, share) for seed in range(200)]
        assert least <= sum(one.caption.text != "real" for one in chosen) <= most
        assert all(one.added is None for one in chosen)
        assert all(one.caption.embedding[0] == ROWS[one.caption.text] for one in chosen)


def test_embeddings_in_bfloat16_are_picked_as_those_in_npz() -> None:
    sample = taught(1)
    arrays = np.load(io.BytesIO(sample.pop("npz")))
    file = io.BytesIO()
    torch.save({name: torch.from_numpy(arrays[name]).bfloat16() for name in arrays}, file)
    halves = {**sample, "pth.gz": gzip.compress(file.getvalue())}
    for seed in range(8):
        expected, found = reinforcement.choose(taught(1), seed), reinforcement.choose(halves, seed)
        assert found.augmentation == expected.augmentation
        assert np.allclose(found.embedding, expected.embedding, atol=0.01)
        assert np.allclose(found.added.embedding, expected.added.embedding, atol=0.01)  # type: ignore[union-attr]


def test_a_picture_is_not_turned_as_its_crops_count_pixels_as_they_lie() -> None:
    file = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by a quarter
    colourful().save(file, "PNG", exif=exif)
    chosen = reinforcement.choose(numbered(png=file.getvalue()), 0)
    assert chosen.picture.size == (50, 40)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"paug.json": b'{"param_aug": [[[30, 0, 20, 20]]]}'}, r"lies outside of 40 x 40 pixels"),
        ({"paug.json": b"{}"}, "param_aug is no list"),
        ({"npz": b"torn"}, "the reinforcement cannot be read"),
        ({"npz": None}, r"no member npz\|pth\.gz; it has"),
        (
            {"npz": taught(0, augmentations=1)["npz"]},
            r"image_emb has the shape \(1, 9\), but its row \d is needed",
        ),
        ({"png": b"torn"}, "picture cannot be decoded"),
    ],
)
def test_a_sample_that_does_not_fit_together_is_named(changes: dict[str, Any], says: str) -> None:
    sample = {name: data for name, data in {**taught(0), **changes}.items() if data is not None}
    transform = recipe_of().transform(True)
    with pytest.raises(DataError, match=says):
        for seed in range(20):
            transform(sample, seed)


def test_other_teachers_than_the_data_has_are_told() -> None:
    transform = recipe_of(teachers=[{"width": 768}, {"width": 768}]).transform(True)
    with pytest.raises(DataError, match=r"embeddings are 9 wide, but train\.model\.teachers has 1536"):
        transform(taught(0), 0)


def softmax(logits: Any) -> Any:
    return np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)


def expected_loss(features: dict[str, Any], scale: float, w0: float, w1: float) -> float:
    """The loss as MobileCLIP's trainer has it, read into NumPy's float64, direction by direction."""
    total = 0.0
    teachers = ((slice(0, 4), 10.0), (slice(4, 9), 20.0))
    for texts in ("text", "synthetic"):
        for one, other in (("image", texts), (texts, "image")):
            student = softmax(scale * features[one] @ features[other].T)
            taught_by = [
                softmax(s * features[f"teacher_{one}"][:, part] @ features[f"teacher_{other}"][:, part].T)
                for part, s in teachers
            ]
            target = sum(taught_by) / len(teachers)
            contrastive = -np.log(np.diagonal(student)).mean()
            distillation = -(target * np.log(student)).sum(axis=1).mean()
            total += (w0 * contrastive + w1 * distillation) / 2
    return total


@pytest.mark.parametrize(("w0", "w1"), [(0.0, 1.0), (0.25, 0.75), (2.0, 0.5)])
def test_loss_equals_a_reading_of_it_in_float64(w0: float, w1: float) -> None:
    torch.manual_seed(0)
    recipe = recipe_of(loss_weights={"contrastive": w0, "distillation": w1})
    task = recipe.task(recipe.build_model().double())
    own = {name: torch.randn(6, 16).double() for name in ("image", "text", "synthetic")}
    theirs = {f"teacher_{name}": torch.randn(6, 9).double() / 3 for name in own}
    scale = float(task.model.logit_scale.detach().exp())
    features = {**{name: value / value.norm(dim=1, keepdim=True) for name, value in own.items()}, **theirs}
    loss = task.contrast(features)
    plain = {name: value.numpy() for name, value in features.items()}
    expected = expected_loss(plain, scale, w0, w1)
    assert float(loss.sum / loss.weight) == pytest.approx(expected, rel=1e-9)


def test_distillation_ends_at_the_entropy_of_the_teachers() -> None:
    """Where student and teachers say the same, what is left is what the teachers are unsure of."""
    recipe = recipe_of(teachers=[{"width": 8, "logit_scale": 1 / 0.07}])
    task = recipe.task(recipe.build_model())
    known = torch.nn.functional.normalize(torch.randn(5, 8), dim=1)
    logs = task.contrast(dict.fromkeys(("image", "text", "teacher_image", "teacher_text"), known)).logs
    assert float(logs["distillation"]) == pytest.approx(float(logs["teacher_entropy"]), rel=1e-4)


def test_teachers_are_compared_in_full_precision() -> None:
    recipe = recipe_of(teachers=[{"width": 64}])
    task = recipe.task(recipe.build_model())
    known = torch.nn.functional.normalize(torch.randn(32, 64), dim=1)
    features = dict.fromkeys(("image", "text", "teacher_image", "teacher_text"), known)
    exact = task.contrast(features).logs["teacher_entropy"]
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(task.contrast(features).logs["teacher_entropy"], exact)


@pytest.mark.parametrize(
    "changes",
    [
        {"loss_weights": {"contrastive": 1.0}},
        {"loss_weights": {"distillation": 0.5}},
        {"synthetic_captions": 0.0},
        {"synthetic_captions": 1.0},
        {"name": "ViT-S-32-alt"},
    ],
    ids=str,
)
def test_every_option_changes_the_loss(changes: dict[str, Any]) -> None:
    losses = []
    for recipe in (recipe_of(), recipe_of(**changes)):
        torch.manual_seed(0)
        with torch.no_grad():
            loss = recipe.task(recipe.build_model())(batch_of(recipe, "clip_reinforced", is_train=True))
        losses.append(float(loss.sum / loss.weight))
    assert abs(losses[0] - losses[1]) > 1e-3


@pytest.mark.parametrize("teachers", [[(4, 50.0), (5, 20.0)], [(5, 10.0), (4, 20.0)], [(9, 20.0)]])
def test_width_and_temperature_of_each_teacher_count(teachers: list[tuple[int, float]]) -> None:
    features = {name: torch.randn(6, 9) for name in ("image", "text", "teacher_image", "teacher_text")}
    changed = [{"width": width, "logit_scale": scale} for width, scale in teachers]
    recipes_of_both = (recipe_of(), recipe_of(teachers=changed))
    model = recipe_of().build_model()
    own, other = (float(recipe.task(model).contrast(features).sum.detach()) for recipe in recipes_of_both)
    assert abs(own - other) > 1e-3


def test_a_held_out_sample_is_judged_by_its_plain_image_and_its_teachers() -> None:
    recipe, plain = recipe_of(), recipes.load_recipe(train_block("clip"))
    sample = SAMPLES["clip_reinforced"][0]
    judged, again = (recipe.transform(False)(sample, None) for _ in range(2))
    assert torch.equal(judged["image"], plain.transform(False)(sample, None)["image"])
    assert all(torch.equal(judged[name], again[name]) for name in judged)
    changes = {"loss_weights": {"distillation": 2.0}}
    losses = []
    for one in (recipe, recipe_of(**changes)):
        torch.manual_seed(0)
        with torch.no_grad():
            losses.append(float(one.task(one.build_model())(batch_of(one, "clip_reinforced")).sum))
    assert losses[1] == pytest.approx(2 * losses[0])


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ({"teachers": []}, r"train\.model\.teachers: "),
        ({"teachers": [{"width": 0}]}, r"train\.model\.teachers\.0\.width"),
        ({"loss_weights": {"distillation": 0}}, r"train\.model\.loss_weights\.distillation"),
        ({"synthetic_captions": 2}, r"train\.model\.synthetic_captions"),
        ({"name": "ViT-B-16-SigLIP"}, "SigLIP"),
        ({"name": "ViT-B-61"}, r"did you mean ViT-B-16\?"),
    ],
)
def test_a_wrong_option_is_told_in_one_line(model: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        recipe_of(**model)
    assert "\n" not in str(caught.value)


def test_crops_come_in_the_size_of_the_student() -> None:
    size = open_clip.get_model_config("ViT-B-32")["vision_cfg"]["image_size"]
    made = recipe_of(name="ViT-B-32").transform(True)(taught(0), 0)
    assert made["image"].shape == (size, size, 3) and made["teacher_image"].shape == (9,)
