"""The trainer table: recognition, data rules, log lines, checkpoints; rules against the installed trainer."""

from __future__ import annotations

import ast
import itertools
import math
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from tasks.trainers import TRAINERS, recognise
from tasks.trainers.command import Command
from tasks.trainers.contract import Progress, Trainer
from tasks.trainers.open_clip import DATA, SHUFFLE_INITIAL, SHUFFLE_SIZE

OPEN_CLIP = f"{sys.executable} -m open_clip_train.main --train-data 't-{{000000..000017}}.tar'"


def command(text: str, folder: Path = Path("/here")) -> Command:
    return Command.of(shlex.split(text), folder)


def installed(*names: str) -> dict[str, Any]:
    """Functions and constants of the installed trainer's own file, without importing torch for them."""
    path = command(OPEN_CLIP).source(DATA)
    assert path is not None
    body = ast.parse(path.read_text()).body
    wanted = [
        one
        for one in body
        if (isinstance(one, ast.FunctionDef) and one.name in names)
        or (
            isinstance(one, ast.Assign)
            and isinstance(one.targets[0], ast.Name)
            and one.targets[0].id in names
        )
    ]
    found: dict[str, Any] = {}
    exec(compile(ast.Module(wanted, []), str(path), "exec"), found)
    return found


def trainer(name: str) -> Trainer:
    return next(one for one in TRAINERS if one.name == name)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (OPEN_CLIP, "open_clip"),
        ("torchrun --nproc_per_node 4 -m open_clip_train.main --dataset-reinforcement", "MobileCLIP"),
        ("python src/training/main.py --train-data a.tar", "open_clip"),
        ("python -m tasks.training.rank runs/a", "tarmac"),
        ("tarmac run configs/a.yaml", "tarmac"),
        ("tarmac verify data/a", "generic"),
        ("python train.py", "generic"),
        ("./train.sh", "generic"),
    ],
)
def test_a_trainer_is_recognised_by_its_command(text: str, name: str) -> None:
    assert recognise(command(text)).name == name


def test_a_trainer_is_recognised_by_what_lies_beside_its_script(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models/vision_language_model.py").touch()
    assert recognise(command("python train.py", tmp_path)).name == "nanoVLM"
    (tmp_path / "fit.py").write_text("import os\nfrom lightning import Trainer\n")
    assert recognise(command("python fit.py", tmp_path)).name == "Lightning"


@pytest.mark.parametrize(("version", "name"), [("3.3.0", "open_clip"), ("4.2.0.dev0", "open_clip main")])
def test_the_line_of_open_clip_follows_the_installed_version(tmp_path: Path, version: str, name: str) -> None:
    info = tmp_path / "lib/python3.11/site-packages" / f"open_clip_torch-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Name: open_clip_torch\nVersion: {version}\n")
    python = tmp_path / "bin/python"
    python.parent.mkdir()
    python.touch()
    assert recognise(command(f"{python} -m open_clip_train.main")).name == name


def test_data_arguments_have_the_trainers_own_defaults() -> None:
    from open_clip_train.params import parse_args

    ours = trainer("open_clip").data(command(OPEN_CLIP))
    theirs = parse_args(shlex.split(OPEN_CLIP)[3:])
    assert ours is not None
    assert ours.tars == theirs.train_data == "t-{000000..000017}.tar"
    assert (ours.batch_size, ours.workers, ours.epochs) == (theirs.batch_size, theirs.workers, theirs.epochs)
    assert (ours.warmup_steps, ours.learning_rate) == (theirs.warmup, theirs.lr)
    assert (ours.accumulation, ours.samples) == (theirs.accum_freq, theirs.train_num_samples)
    assert not ours.is_resampled


def test_the_transcribed_rule_is_the_installed_trainers_rule() -> None:
    theirs = installed("filter_no_caption_or_no_image", "_SAMPLE_SHUFFLE_INITIAL", "_SAMPLE_SHUFFLE_SIZE")
    known = ("txt", "jpg", "png", "jpeg", "webp", "json", "paug.json", "cls", "caption")
    asked = command(OPEN_CLIP)
    for size in range(4):
        for suffixes in itertools.combinations(known, size):
            passes = theirs["filter_no_caption_or_no_image"](dict.fromkeys(suffixes))
            refusal = trainer("open_clip").refusal(asked, suffixes)
            assert (refusal is None) == passes, (suffixes, refusal)
    assert theirs["_SAMPLE_SHUFFLE_INITIAL"] == SHUFFLE_INITIAL
    assert theirs["_SAMPLE_SHUFFLE_SIZE"] == SHUFFLE_SIZE


def test_a_refusal_names_what_is_missing_and_where_the_rule_stands() -> None:
    found = trainer("open_clip")
    asked = command(OPEN_CLIP)
    assert found.refusal(asked, {"jpg", "json", "paug.json"}) == "no caption (txt)"
    place = found.rules(asked)[0].place(asked)
    assert place.startswith("open_clip_train/data.py:") and place.endswith(", filter_no_caption_or_no_image")
    missing = trainer("MobileCLIP").refusal(asked, {"jpg", "txt", "paug.json", "npz"})
    assert missing == "no synthetic captions (syn.json)"


def test_the_main_branch_takes_the_members_that_its_options_name() -> None:
    found = trainer("open_clip main")
    by_json = command(f"{OPEN_CLIP} --json-text-key caption")
    assert found.refusal(by_json, {"jpg", "json"}) is None
    by_text = command(f"{OPEN_CLIP} --text-key caption")
    assert found.refusal(by_text, {"jpg", "txt"}) == "no caption (caption)"


@pytest.mark.parametrize(
    ("name", "line", "progress"),
    [
        (
            "open_clip",
            "2026-01-01,00:00:00 | INFO | Train Epoch: 2 [  6400/128000 (5%)] Data (t): 0.1 Batch (t): 0.3, "
            "212.4/s, 212.4/s/gpu LR: 0.000005 Logit Scale: 14.286 Contrastive_loss: 4.1589 (4.2) Loss: nan (4.2)",
            Progress("step", 6400, 128000, 2, 4.1589),
        ),
        ("open_clip", "2026-01-01,00:00:00 | INFO | Start epoch 0", Progress("first_batch", epoch=0)),
        ("open_clip", "… | INFO | Eval Epoch: 1 image_to_text_R@1: 0.1", Progress("validate", epoch=1)),
        ("nanoVLM", "Step: 300, Loss: 1.2345, Tokens/s: 12", Progress("step", 300, loss=1.2345)),
        (
            "Lightning",
            "Epoch 3:  40%|████      | 40/100 [00:04<00:06,  9.9it/s, v_num=0, train_loss=0.52]",
            Progress("step", 40, 100, 3, 0.52),
        ),
        ("Lightning", "Validation DataLoader 0:  10%|█ | 1/10 [00:00<00:00]", Progress("validate")),
        ("generic", " 12%|█▏        | 12/100 [00:01<00:09,  9.8it/s]", Progress("step", 12, 100)),
        ("generic", "240it [00:24,  9.9it/s]", Progress("step", 240)),
        ("generic", "step 1,200/5,000 | loss: 0.25", Progress("step", 1200, 5000, loss=0.25)),
        ("generic", "iter=7 lr=1e-4 loss=1e-2", Progress("step", 7, loss=0.01)),
        ("generic", "Evaluating:  10%|█ | 1/10 [00:00<00:00, 1it/s]", Progress("validate", 1, 10)),
    ],
)
def test_log_lines_show_how_far_a_training_is(name: str, line: str, progress: Progress) -> None:
    assert trainer(name).progress(line) == progress


@pytest.mark.parametrize(
    ("log", "name", "last", "losses", "validates"),
    [
        ("transformers", "Hugging Face Trainer", (20, 20), [0.7516, 0.7503], True),
        ("trl", "Hugging Face Trainer", (10, 10), [1.951, 1.95], False),
        ("sentence_transformers", "Hugging Face Trainer", (20, 20), [1.573, 1.407, 1.407, 1.407], False),
        ("lightning_rich", "Lightning", (20, 20), [0.641], False),
        ("yolo", "YOLO", (4, 4), [6.166, 5.28, 5.089, 4.878], True),
    ],
)
def test_a_recorded_log_shows_steps_losses_and_the_end(
    log: str, name: str, last: tuple[int, int], losses: list[float], validates: bool
) -> None:
    """Recorded from the packages named in the table, with nothing but a few warnings left out."""
    text = (Path(__file__).parent / f"logs/{log}.txt").read_bytes().decode()
    found = [progress for line in re.split(r"[\r\n]", text) if (progress := trainer(name).progress(line))]
    steps = [one for one in found if one.phase == "step"]
    counted = [one for one in steps if one.done is not None]
    assert (counted[-1].done, counted[-1].total) == last
    assert {one.total for one in counted} == {last[1]}, "a bar of something else is no step"
    assert [one.loss for one in steps if one.loss is not None][-len(losses) :] == losses
    assert any(one.phase == "validate" for one in found) == validates


@pytest.mark.parametrize(
    "line",
    [
        "{'loss': nan, 'grad_norm': 1.5, 'learning_rate': 1e-05, 'epoch': 0.5}",
        "{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 1e-05, 'epoch': 0.5}",
        "{'loss': '0', 'grad_norm': 'nan', 'learning_rate': '1e-05', 'epoch': '0.5'}",
        "{'train_runtime': 1.2, 'train_samples_per_second': 6.0, 'train_loss': nan, 'epoch': 1.0}",
    ],
)
def test_a_trainers_dictionary_tells_of_a_lost_loss(line: str) -> None:
    found = trainer("Hugging Face Trainer").progress(line)
    assert found is not None and found.loss is not None and math.isnan(found.loss)


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("from transformers import Trainer, TrainingArguments", "Hugging Face Trainer"),
        ("from trl import SFTTrainer", "Hugging Face Trainer"),
        ("import accelerate\nfrom diffusers import UNet2DModel", "accelerate"),
        ("from ultralytics import YOLO", "YOLO"),
        ("from transformers import AutoModel", "generic"),
    ],
)
def test_a_script_is_recognised_by_its_imports(tmp_path: Path, script: str, name: str) -> None:
    (tmp_path / "train.py").write_text(script + "\n")
    assert recognise(command("python train.py", tmp_path)).name == name
    assert recognise(command("accelerate launch train.py", tmp_path)).name == name


def test_how_far_a_trainer_came_is_read_from_its_newest_state(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("from transformers import Trainer\nTrainingArguments('out')\n")
    for step in (10, 12):
        folder = tmp_path / f"out/checkpoint-{step}"
        folder.mkdir(parents=True)
        (folder / "trainer_state.json").write_text(f'{{"global_step": {step}, "max_steps": 20}}')
        os.utime(folder / "trainer_state.json", (step, step))
    asked = command("python train.py", tmp_path)
    reached = recognise(asked).reached(asked)
    assert reached is not None and (reached.step, reached.steps) == (12, 20)
    assert f"{tmp_path}/out/checkpoint-*/*model*.safetensors" in recognise(asked).checkpoints(asked)
    (tmp_path / "out/checkpoint-12/trainer_state.json").write_text("{")
    assert recognise(asked).reached(asked) is None


def test_a_loss_that_is_no_number_is_read_as_such() -> None:
    found = trainer("generic").progress("step 3 loss=nan")
    assert found is not None and found.loss is not None and math.isnan(found.loss)


@pytest.mark.parametrize("line", ["Start epoch 0", "loading 3 shards", "epoch 4", "batch size: none", ""])
def test_other_lines_are_no_progress(line: str) -> None:
    assert trainer("generic").progress(line) is None


def test_where_checkpoints_lie() -> None:
    found = trainer("open_clip")
    given = command(f"{OPEN_CLIP} --logs out --name a[1]")
    assert list(found.checkpoints(given)) == ["/here/out/a[[]1]/checkpoints/epoch_*.pt"]
    last = command(f"{OPEN_CLIP} --save-frequency 0 --epochs 3")
    assert list(found.checkpoints(last)) == ["/here/logs/*/checkpoints/epoch_3.pt"]


def test_what_wandb_uploads_is_no_progress_of_the_training() -> None:
    assert trainer("generic").progress("wandb: uploading history steps 0-19, summary") is None
    assert trainer("generic").progress("[a] step 19 loss 0.5") == Progress("step", 19, loss=0.5)
