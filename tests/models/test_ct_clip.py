"""Recipe ct_clip: equal to a reading of CT-CLIP in float64, and every option changes what comes of it."""

from __future__ import annotations

import io
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tasks.core import config as configs
from tasks.core.errors import DataError, UsageError
from tasks.dataset.formats import npy
from tasks.dataset.formats.volumes import stored
from tasks.dataset.modalities.volume_report import VOLUME_REPORT
from tasks.evaluation import evaluators
from tasks.loader.collate import pack, unpack
from tasks.loader.feed import Data, Feed
from tasks.models import recipes
from tasks.models.ct.ct_clip import CtClipRecipe, crop_of, scaled
from tasks.models.ct.ct_clip_options import VISION, Tower
from tasks.models.ct.ct_reports import OpenClipReports, TarmacReports, TransformersReports
from tasks.models.ct.ct_vit import CTViT
from tests.benchmarks.bench_volumes import dataset_block
from tests.conftest import ROOT
from tests.dataset import ct_clip as original
from tests.models import ct_by_hand
from tests.models.examples import SAMPLES, TINY_CT, train_block

TOWER = Tower((15, 20, 30), (5, 10, 10), 12, 2, 2, heads=2, head_width=4, space=8, codebook=16)
ENTRIES = 8


def recipe_of(**changes: Any) -> CtClipRecipe:
    recipe = recipes.load_recipe(train_block("ct_clip", **{**TINY_CT, **changes}))
    assert isinstance(recipe, CtClipRecipe)
    return recipe


def shaken(model: Any) -> Any:
    """In float64, with no parameter left as it starts: ones and zeros hide mistakes."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.double().eval()


def weights_of(model: Any) -> dict[str, np.ndarray]:
    state = {name: value.double().numpy() for name, value in model.state_dict().items()}
    if "vq.embed" in state:
        state["vq._codebook.embed"] = state.pop("vq.embed")
    return state


@pytest.mark.parametrize("codebook", [0, 16])
def test_tower_equals_a_reading_of_ct_clips(codebook: int) -> None:
    torch.manual_seed(3)
    model = CTViT(Tower(**{**vars(TOWER), "codebook": codebook}))
    if codebook:
        model.vq.embed.copy_(torch.randn(1, codebook, TOWER.width))
    model = shaken(model)
    volumes = torch.randn(2, *TOWER.shape, dtype=torch.float64)
    expected = [
        ct_by_hand.tokens(one.numpy(), TOWER.patch, TOWER.heads, weights_of(model)) for one in volumes
    ]
    found = model(volumes).detach().numpy()
    assert np.abs(found - expected).max() < 1e-6
    if codebook:
        assert len(np.unique(found.reshape(-1, TOWER.width).round(6), axis=0)) <= codebook


def published(model: Any) -> dict[str, torch.Tensor]:
    """The weights as CT-CLIP saves them, with all that only its other trainings use."""
    state = {f"module.{name}": value.float() for name, value in model.state_dict().items()}
    state["module.visual_transformer.vq._codebook.embed"] = state.pop(
        "module.visual_transformer.vq.embed", torch.randn(1, ENTRIES, 48)
    )
    unused = (
        "visual_transformer.to_patch_emb_first_frame.1.weight",
        "visual_transformer.enc_spatial_transformer.layers.0.1.null_kv",
        "visual_transformer.enc_spatial_transformer.layers.0.1.context_norm.gamma",
        "visual_transformer.vq._codebook.cluster_size",
        "visual_transformer.to_pixels.0.weight",
        "text_transformer.pooler.dense.weight",
        "to_text_latent_extra.weight",
        "to_visual_latent_extra.weight",
    )
    return {**state, **{f"module.{name}": torch.ones(3) for name in unused}}


EIGHT_TOKENS = [16, 32, 32]


def eight_tokens() -> list[dict[str, bytes]]:
    """Four samples of 2 x 2 x 2 patches."""
    draws = np.random.default_rng(7)
    scans = [draws.integers(-1200, 1200, EIGHT_TOKENS).astype(np.int16) for _ in range(4)]
    return [volume_sample(scan) | {"txt": b"Finding %d." % number} for number, scan in enumerate(scans)]


def test_published_weights_give_ct_clips_loss(tmp_path: Path) -> None:
    """A file in its layout, loaded by path: the loss of whole samples is that of a reading in float64."""
    torch.manual_seed(1)
    state = published(shaken(recipe_of(shape=EIGHT_TOKENS).build_model()))
    torch.save(state, tmp_path / "CT-CLIP_v2.pt")
    recipe = recipe_of(pretrained=str(tmp_path / "CT-CLIP_v2.pt"), codebook=ENTRIES, shape=EIGHT_TOKENS)
    model: Any = recipe.build_model().double().eval()
    samples = [recipe.transform(False)(sample, None) for sample in eight_tokens()]
    batch = unpack(pack([{**sample, "key": "k"} for sample in samples], collate=recipe.collate))[0]
    own = weights_of(model.visual_transformer)
    volumes = [np.clip(sample["volume"].numpy().astype(float), -1000, 1000) / 1000 for sample in samples]
    seen = [ct_by_hand.tokens(one, (8, 16, 16), 4, own).mean(0).ravel() for one in volumes]
    images = ct_by_hand.unit(np.stack(seen) @ model.to_visual_latent.weight.detach().numpy().T)
    read = model.text_transformer(batch["text"]) @ model.to_text_latent.weight.T
    texts = ct_by_hand.unit(read.detach().numpy())
    task = recipe.task(model)
    batch["shift"] = batch["shift"].double()
    expected = ct_by_hand.loss(images, texts, float(model.temperature.detach()))
    total, weight, _ = task(batch)
    assert weight == 4 and float(total.detach()) / 4 == pytest.approx(expected, abs=1e-6)
    assert not torch.equal(recipe.build_model(pretrained=False).temperature, model.temperature)


def test_a_model_of_tarmacs_is_taken_up_again(tmp_path: Path) -> None:
    model = shaken(recipe_of().build_model()).float()
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    again = recipe_of(pretrained=str(tmp_path / "model.safetensors")).build_model().state_dict()
    assert all(torch.equal(value, again[name]) for name, value in model.state_dict().items())


def test_weights_that_do_not_fit_are_named(tmp_path: Path) -> None:
    state = published(recipe_of().build_model())
    path = tmp_path / "weights.pt"

    def load(**changes: Any) -> None:
        recipe_of(pretrained=str(path), **changes).build_model()

    with pytest.raises(UsageError, match=r"pretrained: .*weights\.pt: there is no such file"):
        load()
    torch.save(state, path)
    with pytest.raises(UsageError, match=rf"has a codebook: set train\.model\.codebook: {ENTRIES}"):
        load()
    with pytest.raises(DataError, match=r"another shape of to_visual_latent\.weight"):
        load(codebook=ENTRIES, shape=[8, 16, 32])
    torch.save({**state, "visual_transformer.new": torch.ones(1)}, path)
    with pytest.raises(DataError, match=r"has visual_transformer\.new"):
        load(codebook=ENTRIES)
    path.write_bytes(pickle.dumps(io.BytesIO(b"code"), protocol=2))
    with pytest.raises(DataError, match="holds no weights that can be read"):
        load(codebook=ENTRIES)


def test_voxels_are_those_of_ct_clip_in_float64() -> None:
    """From a raw volume through build and transform, up to the rounding to whole HU."""
    raw, spacing = (
        np.random.default_rng(0).integers(-1300, 1400, (9, 21, 35)).astype(np.int16),
        [3.0, 1.0, 0.9],
    )
    raw[:, 5:15] = 40
    rules = {"window": [-1000, 1000], "spacing_mm": [1.5, 0.75, 0.75], "shape": [16, 32, 32]}
    members = VOLUME_REPORT.take(
        {"volume": npy.dump(raw), "json": json.dumps({"spacing_mm": spacing}).encode(), "txt": b"clear"},
        dataset_block(rules),
    ).members
    made = recipe_of(shape=[16, 32, 32]).transform(False)({n: bytes(m) for n, m in members.items()}, None)
    found = scaled(made["volume"][None], made["shift"][None], (-1000, 1000))[0].numpy()
    expected = original.prepared(raw, spacing, [1.5, 0.75, 0.75], [16, 32, 32]) / 1000
    assert found.shape == expected.shape and np.abs(found - expected).max() <= 0.000501


def volume_sample(voxels: np.ndarray, **facts: Any) -> dict[str, bytes]:
    name, content = stored.encode(voxels, "blosc2")
    return {name: bytes(content), "txt": b"clear", "json": json.dumps(facts).encode()}


RAMP = np.arange(10 * 20 * 24, dtype=np.int16).reshape(10, 20, 24)


def test_shape_cuts_at_random_in_training_and_from_the_middle_otherwise() -> None:
    sample = volume_sample(RAMP)
    middle = recipe_of().transform(False)(sample, None)["volume"].numpy()
    np.testing.assert_array_equal(middle, RAMP[1:9, 2:18, 4:20])
    corners = {int(recipe_of().transform(True)(sample, seed)["volume"][0, 0, 0]) for seed in range(20)}
    assert len(corners) > 10
    with pytest.raises(DataError, match=r"10 x 20 x 24 voxels.* 16 x 16 x 16; .*shape: \[16, 16, 16\]"):
        recipe_of(shape=[16, 16, 16]).transform(False)(sample, None)
    assert crop_of((8, 16, 16), (8, 16, 16), None) == (slice(0, 8), slice(0, 16), slice(0, 16))


def test_a_crop_reads_only_the_chunks_it_touches() -> None:
    """Damage elsewhere goes unnoticed, so the rest cannot have been decompressed."""
    voxels = np.random.default_rng(0).integers(-900, 900, (33, 130, 121)).astype(np.int16)
    sample = volume_sample(voxels)
    content = bytearray(sample["volume.b2nd"])
    content[len(content) * 9 // 10] ^= 0xFF
    sample["volume.b2nd"] = bytes(content)
    middle = recipe_of().transform(False)(sample, None)["volume"].numpy()
    np.testing.assert_array_equal(middle, voxels[12:20, 57:73, 52:68])


@pytest.mark.parametrize(("axes", "axis"), [("zyx", 2), ("zxy", 1)])
def test_flip_mirrors_left_and_right_in_training_only(axes: str, axis: int) -> None:
    voxels = RAMP[:8, :16, :16].copy()
    sample, recipe = volume_sample(voxels, axes=axes), recipe_of(flip=True)
    made = [recipe.transform(True)(sample, seed)["volume"].numpy() for seed in range(12)]
    mirrored = [bool((one == np.flip(voxels, axis)).all()) for one in made]
    assert {True, False} == set(mirrored)
    assert all(
        (one == voxels).all() for one, is_mirrored in zip(made, mirrored, strict=True) if not is_mirrored
    )
    np.testing.assert_array_equal(recipe.transform(False)(sample, None)["volume"].numpy(), voxels)
    with pytest.raises(DataError, match=r"take out train\.model\.flip"):
        [recipe.transform(True)(volume_sample(voxels), seed) for seed in range(12)]


def test_jitter_raises_and_lowers_within_the_window_in_training_only() -> None:
    sample = SAMPLES["ct_clip"][0]
    shifts = [float(recipe_of(jitter=30).transform(True)(sample, seed)["shift"]) for seed in range(40)]
    assert -30 <= min(shifts) < 0 < max(shifts) <= 30 and len(set(shifts)) > 10
    assert recipe_of(jitter=0).transform(True)(sample, 1)["shift"] == 0
    assert recipe_of(jitter=30).transform(False)(sample, None)["shift"] == 0
    hu = torch.tensor([-1000, 0, 1000], dtype=torch.int16).view(1, 3, 1, 1)
    assert scaled(hu, torch.tensor([30.0]), (-1000, 200)).flatten().tolist() == pytest.approx(
        [-0.97, 0.03, 0.2]
    )


def test_window_and_start_of_the_temperature_change_the_outcome() -> None:
    losses = set()
    for changes in ({}, {"window": [-200, 200]}, {"logit_scale": 2.66}):
        recipe = recipe_of(**changes)
        torch.manual_seed(0)
        task = recipe.task(recipe.build_model()).eval()
        samples = [recipe.transform(False)(sample, None) for sample in SAMPLES["ct_clip"]]
        losses.add(round(float(task(unpack(pack(samples, collate=recipe.collate))[0]).sum.detach()), 5))
    assert len(losses) == 3


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"vision": "vit"}, r"train\.model\.vision: must be 'ctvit' or 'tarmac/phantoms', not 'vit'"),
        ({"shape": [8, 16, 20]}, r"shape \[8, 16, 20\] does not divide into patches of \[8, 16, 16\]"),
        ({"window": [200, -200]}, r"window: \[200, -200\] does not rise"),
        ({"codebook": 8}, "codebook has no effect without pretrained"),
        ({"text": "tarmac/report"}, r"text: there is no tarmac/report; .* tarmac/reports"),
        ({"text_weights": "openai"}, "text_weights only has an effect for a text tower of open_clip"),
    ],
)
def test_mistakes_are_named(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        recipe_of(**changes)


def test_words_of_reports_are_numbered_alike_everywhere() -> None:
    tokens = TarmacReports().tokenize(["No nodule (seen).", "no 'nodule' seen.", ""])
    assert torch.equal(tokens[0], tokens[1]) and not torch.equal(tokens[0], tokens[2])
    assert tokens[0, :5].tolist() == [1795, 1212, 1771, 1306, 0]


def bert(folder: Path, kind: str) -> str:
    """A tiny model of transformers in a folder, as it would be downloaded."""
    from transformers import BertConfig, BertModel, BertTokenizer

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "nodule", "no", "is", "present", "."]
    (folder / "vocab.txt").write_text("\n".join(words))
    BertTokenizer(vocab={word: place for place, word in enumerate(words)}).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
    )
    BertModel(config).save_pretrained(folder)
    about = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**about, "model_type": kind}))
    return str(folder)


@pytest.mark.parametrize("kind", ["bert", "cxr-bert"])
def test_a_model_of_transformers_reads_by_path(tmp_path: Path, kind: str) -> None:
    """Also of a kind that would need code of its own, and its weights are those of the folder."""
    recipe = recipe_of(text=bert(tmp_path, kind))
    model: Any = recipe.build_model().eval()
    assert isinstance(recipe.reports, TransformersReports) and recipe.reports.context == 512
    from transformers import BertModel

    given = BertModel.from_pretrained(tmp_path)
    weights = model.text_transformer.state_dict()
    assert weights and all(torch.equal(value, given.state_dict()[name]) for name, value in weights.items())
    task = recipe.task(model)
    together = task.embed_texts(["nodule is present.", "no"])
    whole = recipe.reports.read(model.text_transformer, recipe.reports.tokenize(["no"]))
    alone = torch.nn.functional.normalize(model.to_text_latent(whole), dim=-1)
    assert torch.allclose(together[1], alone[0], atol=1e-5), "padding changes nothing"
    torch.manual_seed(8)
    fresh: Any = recipe.build_model(pretrained=False)
    assert not torch.equal(
        fresh.text_transformer.embeddings.word_embeddings.weight, given.embeddings.word_embeddings.weight
    )


def test_a_model_of_transformers_that_is_nowhere_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"train\.model\.text: '.*none' is not a model of open_clip, and trans"
    ):
        recipe_of(text=str(tmp_path / "none"))


def test_a_text_tower_of_open_clips_with_its_weights(tmp_path: Path) -> None:
    from tasks.models.clip.openclip import open_clip

    whole = recipes.load_recipe(train_block("clip")).build_model()
    assert open_clip.get_model_config("tarmac-digits")["embed_dim"] == 64
    save_file({n: v.contiguous() for n, v in whole.state_dict().items()}, tmp_path / "clip.safetensors")
    reports = OpenClipReports("tarmac-digits", str(tmp_path / "clip.safetensors"))
    tower, width = reports.build(pretrained=True)
    tokens = reports.tokenize(["a nodule"])
    assert (width, reports.context) == (64, 16)
    expected = whole.eval().encode_text(tokens)
    assert torch.allclose(reports.read(tower.eval(), tokens), expected, atol=1e-6)
    torch.manual_seed(9)
    other, _ = reports.build(pretrained=False)
    assert not torch.allclose(reports.read(other.eval(), tokens), expected, atol=1e-3)
    assert recipes.check_recipe(train_block("ct_clip", **TINY_CT, text="ViT-B-32")).text_kind == "open_clip"


def test_the_config_of_ct_rate_on_a_cluster_is_taken() -> None:
    """As far as a machine without its data and its text tower can tell."""
    config = configs.load_config(ROOT / "configs/full/ct-clip.yaml")
    assert config.train is not None
    options = recipes.check_recipe(config.train)
    evaluators.check_tasks(config)
    assert options.input_shape == (240, 480, 480) and options.modality == config.dataset.modality
    whole = CTViT(VISION["ctvit"])
    assert 20e6 < sum(parameter.numel() for parameter in whole.parameters()) < 25e6


def test_eight_volumes_or_a_smaller_batch_are_judged_at_once_unless_told(tmp_path: Path) -> None:
    text = (ROOT / "configs/phantoms-ct.yaml").read_text()
    (tmp_path / "own.yaml").write_text(text.replace("evaluate: {every", "evaluate: {batch_size: 5, every"))
    (tmp_path / "usual.yaml").write_text(text)
    sizes = []
    for name, change in (("usual", []), ("usual", ["train.batch_size=6"]), ("own", [])):
        config = configs.load_config(tmp_path / f"{name}.yaml", change)
        sizes.append(Feed.of(config, [Data(tmp_path)], recipe_of()).judged_at_once)
    assert sizes == [8, 6, 5]
