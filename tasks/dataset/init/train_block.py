"""The `train` and `evaluate` blocks that `tarmac init` writes: the recipe of the data's modality, with a
model and a number of steps that this machine can train.

On a GPU it is the recipe's usual model; on a CPU it is the small one that Tarmac has for each recipe, trained
for some minutes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tasks.core.units import number
from tasks.dataset.init.evidence import Key, Reading

FEW = 40
"""Samples; of fewer, the share that is held out may hold one class, one sample or none."""
EPOCHS = 32
SEEN_ON_CPU = {"clip": 40_000, "clip_reinforced": 20_000, "ct_clip": 4_000, "vlm": 10_000}
"""Samples that a CPU of two cores trains on in some minutes, by recipe."""
CHECKPOINTS = 4
MOBILECLIP_WIDTH = 1536
"""Of MobileCLIP's two teachers side by side, 768 each."""
SMALL = "small enough for a CPU"
SMALL_SHAPE, SMALL_PATCH = (32, 64, 64), (8, 16, 16)
"""Voxels that `tarmac/phantoms` reads, and those of its patches."""


class Proposal(NamedTuple):
    """What stands in a train block, but for the number of steps: `more` are further keys."""

    recipe: str
    model: dict[str, Any]
    why: str
    batch: int
    lr: Any
    more: Sequence[Key] = ()
    tasks: Sequence[Any] = ()


def train_keys(best: Reading, has_gpu: bool) -> Iterator[Key]:
    """The blocks `train` and `evaluate` for the best reading."""
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
        Key("recipe", plan.recipe),
        Key("model", plan.model, plan.why),
        Key("batch_size", batch, "samples a step, over all ranks"),
        Key("steps", every * CHECKPOINTS, f"about {number(epochs, 2)} epochs"),
        Key("lr", plan.lr),
        Key("warmup", 0.05, "share of the steps"),
        *(key for key in plan.more if key.name != "micro_batch" or key.value < batch),
        Key("precision", "bf16" if has_gpu else "fp32", "" if has_gpu else "bf16 on a GPU"),
        Key("checkpoint_every", every, "steps"),
    ]
    yield Key("train", train)
    tasks, why = list(plan.tasks), ""
    if best.modality in ("image_text", "reinforced"):
        tasks, why = ["retrieval"], "R@K among held-out captions; zero_shot needs a field label"
        if best.label is not None:
            tasks, why = [{"kind": "zero_shot", "label": best.label}], "classes from the label's values"
    is_few = best.samples < FEW
    why = "so few samples may leave none to evaluate on" if is_few else why
    yield Key("evaluate", {"every": every, "tasks": tasks}, why, is_alternative=is_few)


def _clip(best: Reading, has_gpu: bool) -> Proposal:
    if has_gpu:
        return Proposal("clip", {"name": "ViT-B-32"}, "any of open_clip", 256, 5.0e-4)
    why = f"{SMALL}; ViT-B-32 or any other of open_clip on a GPU"
    return Proposal("clip", {"name": "tarmac/digits", "image_size": 64}, why, 64, 1.0e-3)


def _reinforced(best: Reading, has_gpu: bool) -> Proposal:
    width = best.teacher_width
    widths = [768, 768] if width in (None, MOBILECLIP_WIDTH) else [width]
    model = {
        "name": "ViT-B-16" if has_gpu else "tarmac/digits",
        "teachers": [{"width": one} for one in widths],
    }
    said = "the teachers' embeddings side by side" + (
        "" if width else ", not seen in the data: MobileCLIP's widths"
    )
    why = said if has_gpu else f"{said}; the model is {SMALL}"
    return Proposal("clip_reinforced", model, why, 256 if has_gpu else 64, 1.0e-3)


def _ct_clip(best: Reading, has_gpu: bool) -> Proposal:
    model: dict[str, Any] = {"vision": "tarmac/phantoms", "text": "tarmac/reports", "logit_scale": 2.66}
    tasks = ["multilabel", "retrieval"] if any(key.name == "labels" for key in best.source) else ["retrieval"]
    if has_gpu:
        model = {"vision": "ctvit", "text": "microsoft/BiomedVLP-CXR-BERT-specialized"}
        more = [Key("weight_decay", 0), Key("grad_clip", 0.5), Key("schedule", "constant")]
        why = "CT-CLIP's towers, which read [240, 480, 480] voxels; the text's weights: tarmac fetch"
        return Proposal("ct_clip", model, why, 8, 1.25e-6, more, tasks)
    sides = best.volume_shape or SMALL_SHAPE
    shape = [
        max(patch, min(side, full) // patch * patch)
        for side, full, patch in zip(sides, SMALL_SHAPE, SMALL_PATCH, strict=True)
    ]
    if tuple(shape) != SMALL_SHAPE:
        model["shape"] = shape
    return Proposal("ct_clip", model, f"{SMALL}; ctvit on a GPU", 8, 1.0e-3, (), tasks)


def _vlm(best: Reading, has_gpu: bool) -> Proposal:
    if has_gpu:
        model = {
            "vision": "google/siglip2-base-patch16-512",
            "language": "HuggingFaceTB/SmolLM2-360M-Instruct",
            "pixel_shuffle": 4,
        }
        lr = {"projector": 5.12e-3, "vision": 5.0e-5, "language": 5.0e-5}
        more = [
            Key("micro_batch", 2, "conversations in one pass"),
            Key("weight_decay", 0.01),
            Key("grad_clip", 1.0),
        ]
        return Proposal("vlm", model, "nanoVLM's parts; their weights: tarmac fetch", 128, lr, more, ["vlm"])
    model = {"vision": "tarmac/chat", "language": "tarmac/chat", "pixel_shuffle": 2, "max_side": 32}
    lr = {"projector": 3.0e-3, "vision": 3.0e-3, "language": 3.0e-3}
    why = f"{SMALL}; models of transformers on a GPU"
    return Proposal("vlm", model, why, 8, lr, [Key("grad_clip", 1.0)], ["vlm"])


_PLANS = {"image_text": _clip, "reinforced": _reinforced, "volume_report": _ct_clip, "chat": _vlm}
