"""Checkpoints as other programs save them, in the model of a config: the same weights, or the reason why not."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tasks.core import config as configs
from tasks.core.errors import DataError, TarmacError, UsageError
from tasks.core.files import read_json, write_json
from tasks.core.schema import Train
from tasks.evaluation.checkpoint import load_model_of
from tasks.evaluation.origins import load_origin, load_whole_model, require_loadable
from tasks.export import hf, nanovlm
from tasks.export.formats import TrainedModel
from tasks.models import recipes
from tasks.models.clip.clip_options import DIGITS, model_config
from tasks.runs.followed import Origin
from tasks.trainers.saved import stamped
from tests.export.runs import STEP, run_of


@pytest.fixture(autouse=True)
def use_one_thread() -> None:
    torch.set_num_threads(1)


def trained(folder: Path, recipe: str = "clip", **model: Any) -> tuple[Train, Path, TrainedModel]:
    """The train block of a run, the folder of its checkpoint, and its model."""
    run = run_of(folder, recipe, **model)
    config = configs.reload(run.config)
    assert config.train is not None
    made, weights = load_model_of(run, config, STEP)
    options = recipes.check_recipe(config.train)
    return config.train, run.checkpoint(STEP), TrainedModel(made, recipe, options, weights.eval())


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    mine, theirs = one.state_dict(), other.state_dict()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.mark.parametrize("recipe", ["clip", "clip_reinforced", "ct_clip", "vlm"])
def test_a_checkpoint_of_tarmacs_own_is_loaded(recipe: str, tmp_path: Path) -> None:
    train, folder, saved = trained(tmp_path, recipe)
    assert same(load_whole_model(train, folder)[1], saved.model)
    assert same(load_whole_model(train, folder / "model.safetensors")[1], saved.model)


def test_files_of_open_clips_trainer_are_loaded(tmp_path: Path) -> None:
    """As `open_clip_train.main` saves them, from several ranks, with an optimizer beside the weights."""
    train, _, saved = trained(tmp_path)
    weights = {f"module.{name}": value for name, value in saved.model.state_dict().items()}
    content = {
        "epoch": 3,
        "name": "mine",
        "state_dict": weights,
        "optimizer": {"state": {}, "param_groups": []},
    }
    torch.save(content, tmp_path / "epoch_3.pt")
    assert same(load_whole_model(train, tmp_path / "epoch_3.pt")[1], saved.model)
    save_file(dict(saved.model.state_dict()), tmp_path / "open_clip_model.safetensors")
    write_json(tmp_path / "open_clip_config.json", {"model_cfg": model_config(DIGITS)})
    assert same(load_whole_model(train, tmp_path)[1], saved.model)


def test_nano_vlms_folder_is_loaded(tmp_path: Path) -> None:
    train, _, saved = trained(tmp_path, "vlm")
    folder = tmp_path / "checkpoints/step_500"
    folder.mkdir(parents=True)
    nanovlm.write_nanovlm(saved, folder)
    mine, theirs = (one.state_dict() for one in (load_whole_model(train, folder)[1], saved.model))
    apart = {name: float((value - theirs[name]).abs().max()) for name, value in mine.items()}
    assert max(apart.values()) < 1e-6, max(apart.items(), key=lambda entry: entry[1])
    config = read_json(folder / "config.json")
    write_json(folder / "config.json", {**config, "mp_pixel_shuffle_factor": 4})
    with pytest.raises(UsageError, match=r"train\.model\.pixel_shuffle: "):
        load_whole_model(train, folder)


class Pairs(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Random pictures and texts, for whoever only has to take a step."""

    def __init__(self, side: int, context: int) -> None:
        self.side, self.context = side, context

    def __len__(self) -> int:
        return 8

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        drawn = torch.Generator().manual_seed(number)
        text = torch.randint(1, 100, (self.context,), generator=drawn)
        return {"pixel_values": torch.randn(3, self.side, self.side, generator=drawn), "input_ids": text}


def test_checkpoints_of_transformers_own_trainer_are_loaded(tmp_path: Path) -> None:
    from transformers import CLIPModel, Trainer, TrainingArguments

    train, _, saved = trained(tmp_path)
    start, out = tmp_path / "start", tmp_path / "out"
    start.mkdir()
    hf.write_hf(saved, start)
    model = CLIPModel.from_pretrained(start)
    data = Pairs(model.config.vision_config.image_size, model.config.text_config.max_position_embeddings)

    class Contrasting(Trainer):
        def compute_loss(self, model: Any, inputs: Any, *rest: Any, **named: Any) -> Any:
            return model(**inputs, return_loss=True).loss

    asked = TrainingArguments(
        output_dir=str(out),
        max_steps=2,
        save_steps=1,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    Contrasting(model=model, args=asked, train_dataset=data).train()
    loaded = {step: load_whole_model(train, out / f"checkpoint-{step}")[1].eval() for step in (1, 2)}
    assert not same(loaded[1], saved.model) and not same(loaded[1], loaded[2])
    theirs = CLIPModel.from_pretrained(out / "checkpoint-2").eval()
    picture = data[0]["pixel_values"][None]
    with torch.inference_mode():
        mine = loaded[2].encode_image(picture, normalize=True)
        features = theirs.vision_model(pixel_values=picture).pooler_output
        asked_for = torch.nn.functional.normalize(theirs.visual_projection(features), dim=-1)
    assert torch.allclose(mine, asked_for, atol=1e-5)


def test_a_clip_of_transformers_with_another_activation_is_refused(tmp_path: Path) -> None:
    _, _, saved = trained(tmp_path)
    (tmp_path / "hf").mkdir()
    hf.write_hf(saved, tmp_path / "hf")
    quick = {**(model_config(DIGITS) or {}), "quick_gelu": True}
    train, _, _ = trained(tmp_path / "other", config=quick)
    with pytest.raises(UsageError, match=r"has the activation gelu, and train\.model quick_gelu"):
        load_whole_model(train, tmp_path / "hf")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda weights: weights.update({"visual.proj": torch.zeros(3, 4)}),
            r"visual.proj is \[3, 4\] there and",
        ),
        (lambda weights: weights.pop("visual.proj"), "visual.proj is not there"),
        (
            lambda weights: weights.update({"head.weight": torch.zeros(3)}),
            "it has head.weight, which the model",
        ),
        (
            lambda weights: weights.update({"model.visual.proj": weights.pop("visual.proj")}),
            r"visual.proj is not there \(it has model.visual.proj\)",
        ),
    ],
)
def test_the_first_weight_that_does_not_fit_is_named(change: Any, says: str, tmp_path: Path) -> None:
    train, folder, _ = trained(tmp_path)
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, tmp_path / "step_3.safetensors")
    with pytest.raises(DataError, match=f"step_3.safetensors is of another model than train.model: {says}"):
        require_loadable(train.model_dump(mode="json"), str(tmp_path / "step_3.safetensors"))


class Runs:
    """A pickle that would write a file when it is read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("was_run"),)


def test_no_pickle_of_a_checkpoint_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    train, _, saved = trained(tmp_path)
    torch.save({"state_dict": saved.model.state_dict(), "args": Runs()}, tmp_path / "step_3.pt")
    with pytest.raises(TarmacError, match=r"step_3\.pt: Weights only load failed"):
        load_whole_model(train, tmp_path / "step_3.pt")
    assert not (tmp_path / "was_run").exists()


def test_what_was_removed_or_written_again_is_not_taken_for_it(tmp_path: Path) -> None:
    train, folder, saved = trained(tmp_path)
    origin = Origin(path=folder, unit="step", files=stamped(folder))
    assert same(load_origin(train, origin)[1], saved.model)
    os.utime(folder / "model.safetensors", ns=(1, 1))
    with pytest.raises(DataError, match="was written again"):
        load_origin(train, origin)
    (folder / "model.safetensors").unlink()
    with pytest.raises(DataError, match="was removed"):
        load_origin(train, origin)
