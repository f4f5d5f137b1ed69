"""The `train` and `evaluate` blocks that `tarmac init` writes: the recipe of the data's modality, with a
model and a number of steps that this machine can train.

On a GPU it is the recipe's usual model; on a CPU it is the small one that Tarmac has for each recipe, trained
for some minutes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tasks.core.units import number
from tasks.dataset.init.evidence import ConfigKey, Reading

FEW = 40
"""With fewer samples, the share that is held out may hold one class, one sample or none."""
EPOCHS = 32
SEEN_ON_CPU = {"clip": 40_000, "clip_reinforced": 20_000, "ct_clip": 4_000, "vlm": 10_000}
"""Samples that a CPU of two cores trains on in some minutes, by recipe."""
CHECKPOINTS = 4
MOBILECLIP_WIDTH = 1536
"""The width of MobileCLIP's two teachers side by side, 768 each."""
SMALL = "small enough for a CPU"
SMALL_SHAPE, SMALL_PATCH = (32, 64, 64), (8, 16, 16)
"""Voxels that `tarmac/phantoms` reads, and those of its patches."""


class Proposal(NamedTuple):
    """A train block without its number of steps; `more` are further keys."""

    recipe: str
    model: dict[str, Any]
    why: str
    batch: int
    lr: Any
    more: Sequence[ConfigKey] = ()
    tasks: Sequence[Any] = ()


def propose_training(best: Reading, has_gpu: bool) -> Iterator[ConfigKey]:
    """Propose the blocks `train` and `evaluate` for the best reading."""
    plan = _PLANS[best.modality](best, has_gpu)
    samples = max(int(best.samples * 0.85), 2)
    batch = 2
    while batch < plan.batch and batch * 8 <= samples:
        batch *= 2
    steps = max(100, -(-samples * EPOCHS // batch))
    if not has_gpu:
        steps = min(steps, max(100, SEEN_ON_CPU[plan.recipe] // batch))
    every = -(-steps // CHECKPOINTS)
    epochs = every * CHECKPOINTS * batch / samples
    train = [
        ConfigKey("recipe", plan.recipe),
        ConfigKey("model", plan.model, plan.why),
        ConfigKey("batch_size", batch, "samples per step, over all ranks"),
        ConfigKey("steps", every * CHECKPOINTS, f"about {number(epochs, 2)} epochs"),
        ConfigKey("lr", plan.lr),
        ConfigKey("warmup", 0.05, "share of the steps"),
        *(one for one in plan.more if one.key != "micro_batch" or one.value < batch),
        ConfigKey("precision", "bf16" if has_gpu else "fp32", "" if has_gpu else "bf16 on a GPU"),
        ConfigKey("checkpoint_every", every, "steps"),
    ]
    yield ConfigKey("train", train)
    tasks, why = list(plan.tasks), ""
    if best.label is not None:
        tasks, why = [{"kind": "zero_shot", "label": best.label.value}], "classes from the label's values"
    elif best.modality in ("image_text", "reinforced"):
        tasks, why = ["retrieval"], "R@K among held-out captions; zero_shot needs a field label"
    is_few = best.samples < FEW
    why = "so few samples may leave none to evaluate on" if is_few else why
    yield ConfigKey("evaluate", {"every": every, "tasks": tasks}, why, is_alternative=is_few)


def _clip(best: Reading, has_gpu: bool) -> Proposal:
    if has_gpu:
        return Proposal("clip", {"name": "ViT-B-32"}, "any of open_clip", 256, 5.0e-4)
    why = f"{SMALL}; ViT-B-32 or any other of open_clip on a GPU"
    return Proposal("clip", {"name": "tarmac/digits", "image_size": 64}, why, 64, 1.0e-3)


def _reinforced(best: Reading, has_gpu: bool) -> Proposal:
    width = best.teacher_width
    teachers = [{"width": one} for one in ([768, 768] if width in (None, MOBILECLIP_WIDTH) else [width])]
    why = "the teachers' embeddings side by side"
    if width is None:
        why += ", not found in the data: MobileCLIP's widths"
    if has_gpu:
        return Proposal("clip_reinforced", {"name": "ViT-B-16", "teachers": teachers}, why, 256, 1.0e-3)
    why += f"; the model is {SMALL}"
    return Proposal("clip_reinforced", {"name": "tarmac/digits", "teachers": teachers}, why, 64, 1.0e-3)


def _ct_clip(best: Reading, has_gpu: bool) -> Proposal:
    tasks = ["multilabel", "retrieval"] if any(one.key == "labels" for one in best.source) else ["retrieval"]
    if has_gpu:
        model = {"vision": "ctvit", "text": "microsoft/BiomedVLP-CXR-BERT-specialized"}
        why = "CT-CLIP's towers, which read [240, 480, 480] voxels; the text's weights: tarmac fetch"
        return Proposal("ct_clip", model, why, 8, 1.25e-6, (), tasks)
    small: dict[str, Any] = {"vision": "tarmac/phantoms", "text": "tarmac/reports", "logit_scale": 2.66}
    sides = zip(best.volume_shape or SMALL_SHAPE, SMALL_SHAPE, SMALL_PATCH, strict=True)
    shape = [max(patch, min(side, full) // patch * patch) for side, full, patch in sides]
    if tuple(shape) != SMALL_SHAPE:
        small["shape"] = shape
    return Proposal("ct_clip", small, f"{SMALL}; ctvit on a GPU", 8, 1.0e-3, (), tasks)


def _vlm(best: Reading, has_gpu: bool) -> Proposal:
    if not has_gpu:
        model = {"vision": "tarmac/chat", "language": "tarmac/chat", "pixel_shuffle": 2, "max_side": 32}
        lr = dict.fromkeys(("projector", "vision", "language"), 3.0e-3)
        return Proposal("vlm", model, f"{SMALL}; models of transformers on a GPU", 8, lr, (), ["vlm"])
    model = {
        "vision": "google/siglip2-base-patch16-512",
        "language": "HuggingFaceTB/SmolLM2-360M-Instruct",
        "pixel_shuffle": 4,
    }
    lr = {"projector": 5.12e-3, "vision": 5.0e-5, "language": 5.0e-5}
    more = [ConfigKey("micro_batch", 2, "conversations in one pass")]
    return Proposal("vlm", model, "nanoVLM's parts; their weights: tarmac fetch", 128, lr, more, ["vlm"])


_PLANS = {"image_text": _clip, "reinforced": _reinforced, "volume_report": _ct_clip, "chat": _vlm}
