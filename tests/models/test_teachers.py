"""`tarmac reinforce`: from a dataset of pairs to shards with what teachers say of them."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_model
from torchvision.transforms import RandAugment

from tasks.core.errors import DataError, UsageError
from tasks.core.schema import Config
from tasks.core.screen import no_progress
from tasks.dataset.building.builder import build
from tasks.dataset.verify.verifier import verify
from tasks.dataset.version.manifest import read_manifest
from tasks.dataset.version.tables import read_shards
from tasks.dataset.version.versions import publish
from tasks.loader.decoders import decode_image
from tasks.loader.indexed import IndexedReader
from tasks.models import recipes
from tasks.models.clip.pictures import normalised
from tasks.models.reinforced import teachers
from tasks.models.reinforced.reinforcement import replay
from tests.conftest import ROOT
from tests.dataset import raw
from tests.models.examples import train_block

WIDTH, NAMES = 64, ("one", "two")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 20 pairs in several shards, two teachers' weights, and captions."""
    folder = tmp_path_factory.mktemp("pairs")
    there = folder / "raw"
    there.mkdir()
    rows = ["file,caption"]
    for number in range(20):
        (there / f"{number}.png").write_bytes(raw.png(number))
        rows.append(f"{number}.png,a picture {number}")
    (there / "captions.csv").write_text("\n".join(rows) + "\n")
    source = {"kind": "table", "path": str(there / "captions.csv"), "image": "file", "caption": "caption"}
    pairs = {"output": str(folder / "pairs"), "modality": "image_text", "source": source}
    dataset = {**pairs, "shard": {"samples": 4}}
    version = build(Config.model_validate({"name": "pairs", "dataset": dataset})).version
    publish(folder / "pairs", version, keep=1)
    splits = read_manifest(version).splits
    keys = [read(version, row, name).key for name, split in splits.items() for row in range(split.samples)]
    lines = [json.dumps({"key": key, "captions": [f"synthetic {key}", "another"]}) for key in keys]
    (folder / "synthetic.jsonl").write_text("\n".join(lines) + "\n")
    for seed, name in enumerate(NAMES):
        torch.manual_seed(seed)
        save_model(clip().build_model(), str(folder / f"{name}.safetensors"))
    return folder


def clip(**model: Any) -> Any:
    return recipes.load_recipe(train_block("clip", name="tarmac/digits", **model))


def read(version: Path, row: int, split: str = "train") -> Any:
    return IndexedReader(version, split).read(row)


def config(place: Path, out: Path, **reinforce: Any) -> Config:
    by = [{"name": "tarmac/digits", "pretrained": str(place / f"{name}.safetensors")} for name in NAMES]
    given = {"dataset": str(place / "pairs"), "teachers": by, "captions": str(place / "synthetic.jsonl")}
    dataset = {
        "output": str(out / "reinforced"),
        "modality": "reinforced",
        "source": {"kind": "shards", "path": str(out / "tars")},
    }
    block = {**given, "augmentations": 3, "batch_size": 3, **reinforce}
    return Config.model_validate({"name": "taught", "dataset": dataset, "reinforce": block})


def tars(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (out / "tars").glob("*.tar")}


def test_pairs_become_a_sound_dataset_with_the_teachers_own_embeddings(place: Path, tmp_path: Path) -> None:
    settings = config(place, tmp_path)
    done = teachers.reinforce(settings, no_progress)
    shards = len(read_shards((place / "pairs/current").resolve()))
    assert shards > 1
    assert (done.tars, done.made, done.samples) == (shards, shards, 20) and len(done.widths) == 2
    version = build(settings).version
    assert not verify(version, "full").findings
    sample = read(version, 7)
    arrays = np.load(io.BytesIO(sample.members["npz"]))
    seen = json.loads(sample.members["paug.json"])["param_aug"]
    assert json.loads(sample.members["syn.json"])["syn_text"] == [f"synthetic {sample.key}", "another"]
    assert len(seen) == 3 and len({str(one) for one in seen}) == 3
    expected = []
    for name in NAMES:
        recipe = clip(pretrained=str(place / f"{name}.safetensors"))
        model: Any = recipe.build_model().eval()
        view = replay(decode_image(sample.members["png"], turns=False), seen[1], (32, 32), "bicubic")
        crops = normalised(torch.from_numpy(np.array(view))[None], recipe.preprocessing)
        text = clip().tokenize([f"synthetic {sample.key}"])
        with torch.no_grad():
            made = (model.encode_image(crops, normalize=True), model.encode_text(text, normalize=True))
        expected.append([one[0].numpy() for one in made])
    for name, row, place_of in (("image_emb", 1, 0), ("text_emb", 1, 1)):
        both = np.concatenate([one[place_of] for one in expected])
        assert np.allclose(arrays[name][row], both, atol=1e-5), name


def test_only_what_changed_is_done_again(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config(place, tmp_path)
    first = teachers.reinforce(settings, no_progress)
    before = tars(tmp_path)
    victim = sorted(before)[1]
    (tmp_path / "tars" / victim).unlink()
    (tmp_path / "tars/photos.tar").write_bytes(b"somebody else's")
    again = teachers.reinforce(settings, no_progress)
    assert again.made == 1 and {**before, "photos.tar": b"somebody else's"} == tars(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(teachers, "Teacher", None)  # none is loaded where nothing is to be done
        assert teachers.reinforce(settings, no_progress).made == 0
    for change in ({"augmentations": 2}, {"seed": 1}, {"teachers": [settings.reinforce.teachers[0]]}):  # type: ignore[union-attr]
        other = teachers.reinforce(config(place, tmp_path, **change), no_progress)
        assert other.made == first.made, change
        assert not set(tars(tmp_path)) & set(before), "those of other settings are removed"


@pytest.mark.system
def test_a_killed_reinforcement_goes_on_with_the_next_shard(place: Path, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    teachers.reinforce(config(place, whole), no_progress)
    file = tmp_path / "taught.json"
    file.write_text(config(place, killed).model_dump_json())
    script = (
        "import sys, time, torch\n"
        "torch.set_num_threads(1)\n"  # as this process, or sums are rounded differently
        "from tasks.core.schema import Config\n"
        "from tasks.models.reinforced import teachers\n"
        "write = teachers._write\n"
        "teachers._write = lambda path, samples: (write(path, samples), time.sleep(0.5))\n"
        "settings = Config.model_validate_json(open(sys.argv[1]).read())\n"
        "teachers.reinforce(settings, lambda *_: None)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(file)], cwd=ROOT)
    deadline = time.monotonic() + 300
    while not (killed / "tars").is_dir() or not tars(killed):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    there = tars(killed)
    rest = teachers.reinforce(config(place, killed), no_progress)
    assert rest.made == rest.tars - len(there) > 0
    assert tars(killed) == tars(whole)
    assert {path.name for path in (killed / "tars").iterdir()} == set(tars(whole)), "no rest is left behind"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"teachers": [{"name": "ViT-B-23", "pretrained": "openai"}]}, "did you mean ViT-B-32"),
        ({"teachers": [{"name": "tarmac/digits", "pretrained": "gone.pt"}]}, "there is no file gone.pt"),
        ({"captions": "gone.jsonl"}, r"reinforce\.captions: there is no file gone\.jsonl"),
    ],
)
def test_a_mistake_in_the_config_is_one_line(
    place: Path, tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        teachers.reinforce(config(place, tmp_path, **changes), no_progress)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("line", ["torn", "[]", '{"key": "1"}', '{"key": "1", "captions": "one"}'])
def test_a_torn_line_of_captions_is_named(place: Path, tmp_path: Path, line: str) -> None:
    (tmp_path / "torn.jsonl").write_text((place / "synthetic.jsonl").read_text() + line)
    with pytest.raises(UsageError, match=r"torn\.jsonl:21: each line must be"):
        teachers.reinforce(config(place, tmp_path, captions=str(tmp_path / "torn.jsonl")), no_progress)


def test_a_sample_without_captions_is_named(place: Path, tmp_path: Path) -> None:
    lines = (place / "synthetic.jsonl").read_text().splitlines()
    (tmp_path / "fewer.jsonl").write_text("\n".join(lines[1:]) + "\n")
    key = json.loads(lines[0])["key"]
    with pytest.raises(DataError, match=rf"has no captions for '{key}'"):
        teachers.reinforce(config(place, tmp_path, captions=str(tmp_path / "fewer.jsonl")), no_progress)


def test_another_source_than_a_folder_of_tars_is_told(place: Path, tmp_path: Path) -> None:
    settings = config(place, tmp_path)
    pattern = settings.dataset.model_copy(
        update={"source": settings.dataset.source.model_copy(update={"path": "x/*.tar"})}  # type: ignore[union-attr]
    )
    with pytest.raises(UsageError, match=r"dataset\.source\.path: x/\*\.tar is no folder"):
        teachers.reinforce(settings.model_copy(update={"dataset": pattern}), no_progress)
    with pytest.raises(UsageError, match=r"reinforce: is required"):
        teachers.reinforce(settings.model_copy(update={"reinforce": None}), no_progress)


def test_magnitudes_are_those_of_torchvisions_randaugment() -> None:
    space = RandAugment()._augmentation_space(31, (224, 224))
    for (magnitudes, is_signed), (magnitude, goes_both_ways) in zip(
        space.values(), teachers.magnitudes(224), strict=True
    ):
        expected = float(magnitudes[9]) if magnitudes.ndim else 0.0
        assert magnitude == pytest.approx(expected, abs=1e-5) and goes_both_ways == is_signed


def test_crops_lie_inside_of_images_of_any_shape() -> None:
    for width, height in ((1, 1), (640, 480), (3, 400), (400, 3)):
        areas = []
        for seed in range(100):
            (top, left, high, wide), operations = teachers.draw_augmentation(width, height, 224, seed)
            assert min(top, left) >= 0 and min(high, wide) >= 1
            assert top + high <= height and left + wide <= width and len(operations) == 2
            areas.append(high * wide / (width * height))
        assert (width, height) != (640, 480) or (min(areas) < 0.2 and max(areas) > 0.9)
