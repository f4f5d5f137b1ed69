"""Zero-shot accuracy and retrieval of one model, beside what open_clip and CLIP_benchmark find of it."""

from __future__ import annotations

import importlib
import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from tasks.evaluation.contract import Embedded, Embeddings, Members
from tasks.evaluation.kinds.retrieval import Retrieval
from tasks.evaluation.kinds.zero_shot import ZeroShot
from tasks.models.clip.clip import ClipRecipe
from tasks.models.clip.clip_options import ClipOptions
from tasks.models.clip.openclip import open_clip
from tasks.models.clip.pictures import normalised
from tests.conftest import ROOT

NAMES = ["ant", "bee", "cat", "dog", "elk", "fox", "gnu"]
SAMPLES, CAPTIONS = 60, 2
CLIP_BENCHMARK = "clip_benchmark==1.6.2"
TINY: dict[str, Any] = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 16, "patch_size": 4, "layers": 1, "width": 16, "head_width": 8},
    "text_cfg": {"context_length": 16, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
}
IMAGENET = [template("{c}") for template in open_clip.OPENAI_IMAGENET_TEMPLATES]


@dataclass(frozen=True)
class TinyModel:
    """A model of random weights and the samples that it is judged on, each image with several captions."""

    recipe: ClipRecipe
    task: Any
    samples: Sequence[Members]

    @classmethod
    def of(cls, captions: int = 1) -> TinyModel:
        torch.manual_seed(2)
        recipe = ClipRecipe(ClipOptions(config=TINY))
        samples = []
        for number in range(SAMPLES):
            file = io.BytesIO()
            noise = np.random.default_rng(number).integers(0, 256, (16, 16, 3), np.uint8)
            Image.fromarray(noise).save(file, "PNG")
            for place in range(captions):
                name = NAMES[number % len(NAMES)]
                text = f"a {name}, number {number}, caption {place}"
                label = json.dumps({"label": name}).encode()
                samples.append({"png": file.getvalue(), "txt": text.encode(), "json": label})
        return cls(recipe, recipe.task(recipe.build_model()).eval(), samples)

    def held_out(self) -> str:
        return "val"

    def tokens(self, texts: Sequence[str]) -> Sequence[bytes]:
        return [row.tobytes() for row in self.task.tokenize(texts).numpy()]

    def embed_images(self, split: str, extract: Callable[[Members], str]) -> Iterator[Embedded]:
        transform = self.recipe.transform(False)
        for start in range(0, len(self.samples), 16):
            part = self.samples[start : start + 16]
            images = torch.stack([transform(dict(sample), None)["image"] for sample in part])
            with torch.inference_mode():
                rows = self.task.embed_images({"image": images}).numpy()
            yield Embedded([str(start + n) for n in range(len(part))], rows, [extract(one) for one in part])

    def embed_texts(self, texts: Sequence[str]) -> Embeddings:
        with torch.inference_mode():
            rows: Embeddings = self.task.embed_texts(texts).numpy()
        return rows

    def pictures(self) -> list[Tensor]:
        """As open_clip's own transform gives them, each image once."""
        known = list(dict.fromkeys(sample["png"] for sample in self.samples))
        plain = open_clip.image_transform(16, False)
        mine = [plain(Image.open(io.BytesIO(content)).convert("RGB")) for content in known]
        crop = self.recipe.transform(False)(dict(self.samples[0]), None)["image"]
        assert torch.equal(normalised(crop[None], self.recipe.preprocessing)[0], mine[0])
        return mine

    def truth(self) -> Tensor:
        return torch.tensor([number % len(NAMES) for number in range(SAMPLES)])


def share_found(logits: Tensor, target: Tensor, topk: Sequence[int] = (1, 5)) -> list[float]:
    """What the `accuracy` of both packages says, each of which makes a float of an array in a way that NumPy
    2.4 refuses."""
    found = logits.topk(max(topk), 1).indices == target[:, None]
    return [found[:, :within].any(1).double().mean().item() for within in topk]


def test_zero_shot_with_the_templates_of_imagenet_is_open_clips() -> None:
    subject = TinyModel.of()
    ours = ZeroShot.model_validate({"templates": "openai_imagenet"}).evaluate(subject).metrics
    tokenizer = subject.recipe.tokenize
    model = subject.task.model
    templates = open_clip.OPENAI_IMAGENET_TEMPLATES
    assert len(templates) == 80
    classifier = open_clip.build_zero_shot_classifier(model, tokenizer, NAMES, templates)
    with torch.inference_mode():
        logits = 100 * model.encode_image(torch.stack(subject.pictures()), normalize=True) @ classifier
    top1, top5 = share_found(logits, subject.truth())
    assert ours["top1"] == pytest.approx(top1, abs=1e-6) and ours["top5"] == pytest.approx(top5, abs=1e-6)
    own = ZeroShot(templates=["the number of a {}", "{}"]).evaluate(subject).metrics
    assert own != ours, "the user's own list is another question"


@pytest.mark.proof
def test_both_are_clip_benchmarks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package alone, beside this environment's torch and open_clip."""
    install = [
        sys.executable,
        "-m",
        "uv",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(tmp_path),
    ]
    subprocess.run([*install, CLIP_BENCHMARK], cwd=ROOT, check=True, timeout=300)
    monkeypatch.syspath_prepend(str(tmp_path))
    classification = importlib.import_module("clip_benchmark.metrics.zeroshot_classification")
    retrieval = importlib.import_module("clip_benchmark.metrics.zeroshot_retrieval")
    monkeypatch.setattr(classification, "accuracy", share_found)

    subject = TinyModel.of()
    model, tokenizer = subject.task.model, subject.recipe.tokenize
    pictures = torch.stack(subject.pictures())

    class Loader(list[Any]):
        dataset = type("Classes", (), {"classes": NAMES})

    batches = Loader([(pictures, subject.truth())])
    theirs = classification.evaluate(model, batches, tokenizer, NAMES, IMAGENET, "cpu", amp=False)
    ours = ZeroShot(templates=["openai_imagenet"]).evaluate(subject).metrics
    pairs = {"top1": "acc1", "top5": "acc5", "mean_per_class": "mean_per_class_recall"}
    for mine, other in pairs.items():
        assert ours[mine] == pytest.approx(theirs[other], abs=1e-6), mine

    several = TinyModel.of(CAPTIONS)
    texts = [
        [several.samples[CAPTIONS * number + place]["txt"].decode() for place in range(CAPTIONS)]
        for number in range(SAMPLES)
    ]
    batches = Loader([(torch.stack(several.pictures()), texts)])
    within = [1, 5, 10]
    theirs = retrieval.evaluate(
        several.task.model, batches, tokenizer, "cpu", amp=False, recall_k_list=within
    )
    ours = Retrieval().evaluate(several).metrics
    for count in within:
        for mine, other in (("image_to_text", "text"), ("text_to_image", "image")):
            expected = theirs[f"{other}_retrieval_recall@{count}"]
            assert ours[f"{mine}_R@{count}"] == pytest.approx(expected, abs=1e-6), (mine, count)
    assert 0 < ours["image_to_text_R@10"] < 1
