"""The trainers that people use, watched without `--progress`: steps, loss and checkpoint, by the real packages.

The packages are installed beside this environment, in a folder of the test's own. Models are tiny and begin with
random weights, so that nothing is downloaded.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.stalls.contract import beside
from tests.stalls.open_clip import command, write_shards

pytestmark = pytest.mark.proof
PACKAGES = (
    "trl", "sentence-transformers", "lightning", "pytorch-lightning", "lightning-utilities", "torchmetrics",
    "ultralytics", "ultralytics-thop", "opencv-python-headless", "diffusers", "scikit-learn", "scipy", "joblib",
    "threadpoolctl", "matplotlib", "contourpy", "cycler", "fonttools", "kiwisolver", "pyparsing", "polars",
    "polars-runtime-32", "importlib-metadata", "zipp",
)  # fmt: skip
TINY = """
from pathlib import Path
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
words = {word: at for at, word in enumerate(["<pad>", "<unk>", "a", "photo", "of", "cat", "dog", "sky"])}
fast = Tokenizer(models.WordLevel(words, unk_token="<unk>")); fast.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=fast, pad_token="<pad>", unk_token="<unk>", eos_token="<pad>")
texts = ["a photo of cat", "a photo of dog", "a sky", "of a dog"] * 16
"""
SCRIPTS = {
    "transformers": TINY + """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
model = GPT2LMHeadModel(GPT2Config(vocab_size=8, n_positions=16, n_embd=16, n_layer=1, n_head=2))
rows = [dict(input_ids=(ids := tokenizer(text, padding="max_length", max_length=8)["input_ids"]), labels=ids) for text in texts]
arguments = TrainingArguments("out", max_steps=20, save_steps=10, logging_steps=2, per_device_train_batch_size=4,
                              report_to=[], use_cpu=True)
Trainer(model, arguments, train_dataset=rows).train()
""",
    "trl": TINY + """
import datasets
from transformers import GPT2Config, GPT2LMHeadModel
from trl import SFTConfig, SFTTrainer
model = GPT2LMHeadModel(GPT2Config(vocab_size=8, n_positions=32, n_embd=16, n_layer=1, n_head=2))
arguments = SFTConfig("out", max_steps=20, save_steps=10, logging_steps=2, per_device_train_batch_size=4,
                      report_to=[], use_cpu=True, bf16=False, max_length=16)
SFTTrainer(model, arguments, train_dataset=datasets.Dataset.from_dict({"text": texts}), processing_class=tokenizer).train()
""",
    "sentence_transformers": TINY + """
import datasets
from transformers import BertConfig, BertModel
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments, losses, models
BertModel(BertConfig(vocab_size=8, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)).save_pretrained("tiny")
tokenizer.save_pretrained("tiny")
bert = models.Transformer("tiny", max_seq_length=8)
model = SentenceTransformer(modules=[bert, models.Pooling(16)], device="cpu")
arguments = SentenceTransformerTrainingArguments("out", max_steps=20, save_steps=10, logging_steps=2,
                                                 per_device_train_batch_size=4, report_to=[], use_cpu=True)
data = datasets.Dataset.from_dict({"anchor": texts, "positive": texts[::-1]})
SentenceTransformerTrainer(model, arguments, train_dataset=data, loss=losses.MultipleNegativesRankingLoss(model)).train()
""",
    "accelerate": """
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from tqdm.auto import tqdm
accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(8, 1); optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(TensorDataset(torch.randn(160, 8), torch.randn(160, 1)), batch_size=8)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
bar = tqdm(range(20), disable=not accelerator.is_local_main_process)
for x, y in loader:
    loss = (model(x) - y).square().mean(); accelerator.backward(loss); optimizer.step(); optimizer.zero_grad()
    bar.update(1); bar.set_postfix(loss=loss.item()); bar.refresh()
accelerator.save_state("out/step_20")
""",
    "diffusers": """
import torch
from accelerate import Accelerator
from diffusers import DDPMScheduler, UNet2DModel
from tqdm.auto import tqdm
accelerator = Accelerator(cpu=True, project_dir="out")
model = UNet2DModel(sample_size=8, in_channels=3, out_channels=3, layers_per_block=1, block_out_channels=(8, 8), norm_num_groups=4,
                    down_block_types=("DownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "UpBlock2D"))
optimizer = torch.optim.AdamW(model.parameters()); scheduler = DDPMScheduler(100)
model, optimizer = accelerator.prepare(model, optimizer)
progress_bar = tqdm(range(20), desc="Steps", disable=not accelerator.is_local_main_process)
for step in range(20):
    clean = torch.randn(2, 3, 8, 8); noise = torch.randn_like(clean); times = torch.randint(0, 100, (2,))
    loss = (model(scheduler.add_noise(clean, noise, times), times, return_dict=False)[0] - noise).square().mean()
    accelerator.backward(loss); optimizer.step(); optimizer.zero_grad()
    progress_bar.update(1); progress_bar.set_postfix(loss=loss.detach().item(), lr=1e-3); progress_bar.refresh()
accelerator.save_state("out/checkpoint-20")
""",
    "lightning": """
import torch
import lightning as L
from torch.utils.data import DataLoader, TensorDataset
class Tiny(L.LightningModule):
    def __init__(self): super().__init__(); self.layer = torch.nn.Linear(8, 1)
    def training_step(self, batch, at):
        loss = (self.layer(batch[0]) - batch[1]).square().mean(); self.log("train_loss", loss, prog_bar=True); return loss
    def configure_optimizers(self): return torch.optim.AdamW(self.parameters())
data = TensorDataset(torch.randn(160, 8), torch.randn(160, 1))
L.Trainer(max_epochs=2, accelerator="cpu", logger=True, log_every_n_steps=1).fit(Tiny(), DataLoader(data, batch_size=8))
""",
    "yolo": """
from pathlib import Path
import numpy as np
from PIL import Image
from ultralytics import YOLO
for split in ("train", "val"):
    for at in range(8):
        place = Path("data/images", split); place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.default_rng(at).integers(0, 255, (32, 32, 3), np.uint8)).save(place / f"{at}.jpg")
        labels = Path("data/labels", split); labels.mkdir(parents=True, exist_ok=True)
        (labels / f"{at}.txt").write_text("0 0.5 0.5 0.4 0.4")
Path("data.yaml").write_text(f"path: {Path('data').resolve()}\\ntrain: images/train\\nval: images/val\\nnames: {{0: cat}}\\n")
YOLO("yolov8n.yaml").train(data="data.yaml", epochs=2, imgsz=32, batch=2, device="cpu", workers=0, plots=False, amp=False)
""",
}  # fmt: skip
NAMES = {
    "transformers": "Hugging Face Trainer", "trl": "Hugging Face Trainer", "sentence_transformers": "Hugging Face Trainer",
    "accelerate": "accelerate", "diffusers": "accelerate", "lightning": "Lightning", "yolo": "YOLO",
    "open_clip": "open_clip",
}  # fmt: skip


@pytest.fixture(scope="module")
def packages() -> str:
    folder, reason = beside(*PACKAGES)
    if reason is not None:
        pytest.skip(reason)
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_a_trainer_is_watched_with_step_loss_and_checkpoint(name: str, tmp_path: Path, packages: str) -> None:
    if name == "open_clip":
        words = command(
            tmp_path, write_shards(tmp_path / "shards"), "--epochs", "1", "--log-every-n-steps", "10"
        )
    else:
        (tmp_path / "train.py").write_text(SCRIPTS[name])
        words = [sys.executable, "train.py"]
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli", "watch", "--json", "--", *words],
        cwd=tmp_path,
        env={
            **{key: value for key, value in os.environ.items() if not key.startswith("PYTEST")},
            "PYTHONPATH": os.pathsep.join([str(ROOT), packages]),
            "YOLO_CONFIG_DIR": str(tmp_path),
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["trainer"] == NAMES[name]
    assert found["findings"] == [], found["findings"]
    assert found["steps"] >= 2 and found["loss"] is not None and math.isfinite(found["loss"])
    assert found["checkpoint"] is not None, done.stderr[-2000:]
