"""Small trainings with a mistake planted in data, config or code, and healthy ones beside them.

`python -m tests.sanity.planted NAME [SEED]` trains one and prints its findings as JSON. A mistake counts as
found by one of its `codes`; in a healthy training nothing may be a warning or an error.
"""

from __future__ import annotations

import csv
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from PIL import Image

from tasks.core.config import load_config
from tasks.dataset import examples
from tasks.dataset.building.builder import build
from tasks.runs.folder import RunFolder
from tasks.runs.plan import plan
from tests.conftest import ROOT
from tests.training.helpers import exit_codes, set_workers, train_here, training_on

STEPS = 100
FAMILIES = {
    "clip": ("digits", "digits-clip.yaml", ("train.steps=100", "train.warmup=10", "train.threads=1")),
    "ct_clip": ("phantoms", "phantoms-ct.yaml", ("train.steps=100", "train.warmup=10")),
    "vlm": ("digits-chat", "digits-chat.yaml", ("train.steps=300", "train.threads=1")),
    "clip_reinforced": (
        "reinforced",
        "reinforced-clip.yaml",
        ("train.steps=100", "train.warmup=10", "train.threads=1"),
    ),
}
"""By recipe: the example, its config, and keys."""
Spoil = Callable[[Path, random.Random], None]


@dataclass(frozen=True)
class Case:
    """A training; without `codes` it is a healthy one.

    `spoil` changes the raw data and `patch` the code that this process runs, both before anything is built.
    """

    name: str
    family: str
    codes: frozenset[str] = frozenset()
    overrides: tuple[str, ...] = ()
    spoil: Spoil | None = None
    patch: Callable[[], None] | None = None
    ranks: int = 1


# --- mistakes in the data


def _rewrite(table: Path, change: Callable[[list[dict[str, str]]], None]) -> None:
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    change(rows)
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def _shuffled(table: str, columns: tuple[str, ...]) -> Spoil:
    """Deal the columns out anew, as a join by position does after one side was sorted."""

    def spoil(raw: Path, draw: random.Random) -> None:
        def change(rows: list[dict[str, str]]) -> None:
            values = [{column: row[column] for column in columns} for row in rows]
            draw.shuffle(values)
            for row, value in zip(rows, values, strict=True):
                row.update(value)

        _rewrite(raw / table, change)

    return spoil


def _captions(change: Callable[[str, int], str]) -> Spoil:
    def spoil(raw: Path, draw: random.Random) -> None:
        def rewrite(rows: list[dict[str, str]]) -> None:
            for number, row in enumerate(rows):
                row["caption"] = change(row["caption"], number)

        _rewrite(raw / "captions.csv", rewrite)

    return spoil


def _black_pictures(raw: Path, draw: random.Random) -> None:
    for file in raw.glob("*.png"):
        Image.new("RGB", (32, 32)).save(file)


def _copies(raw: Path, draw: random.Random) -> None:
    """Every tenth picture comes three times, under names of its own."""

    def change(rows: list[dict[str, str]]) -> None:
        for row in rows[::10]:
            for number in range(3):
                copy = f"copy{number}_{row['file']}"
                shutil.copy(raw / row["file"], raw / copy)
                rows.append({**row, "file": copy})

    _rewrite(raw / "captions.csv", change)


def _shuffled_answers(raw: Path, draw: random.Random) -> None:
    for table in (raw / "read.parquet", raw / "add.parquet"):
        found = pq.read_table(table)
        texts = found["texts"].to_pylist()
        answers = [[turn["assistant"] for turn in turns] for turns in texts]
        draw.shuffle(answers)
        for turns, given in zip(texts, answers, strict=True):
            for number, turn in enumerate(turns):
                turn["assistant"] = given[number % len(given)]
        column = found.schema.get_field_index("texts")
        field = found.schema.field(column)
        pq.write_table(found.set_column(column, field, [texts]), table)
    for table in (raw / "facts.parquet",):
        table.unlink()
    shutil.rmtree(raw / "compare")


# --- mistakes in the code


def _normalised_twice() -> None:
    from tasks.models.clip import clip

    once = clip.normalised

    def twice(pictures: torch.Tensor, settings: Any) -> torch.Tensor:
        values = once(pictures, settings)
        mean, deviation = (torch.tensor(v).view(-1, 1, 1) for v in (settings.mean, settings.std))
        return (values - mean) / deviation

    clip.normalised = twice


def _not_normalised() -> None:
    from tasks.models.clip import clip

    clip.normalised = lambda pictures, settings: pictures.permute(0, 3, 1, 2).float()


def _divided_twice() -> None:
    """Volumes are in thousands of HU already when the model divides them by 1,000."""
    from tasks.models.ct import ct_clip

    once = ct_clip.scaled
    ct_clip.scaled = lambda volumes, shift, window: once(volumes // 1000, shift, window)


def _same_augmentation() -> None:
    from tasks.loader import batches

    batches.sample_seeds = lambda places, seed: np.zeros_like(places)


def _detached_pictures() -> None:
    from tasks.models.clip.clip import ClipTask

    embed = ClipTask.embed_images
    ClipTask.embed_images = lambda self, batch: embed(self, batch).detach()


def _detached_reports() -> None:
    from tasks.models.ct.ct_clip import CtClipTask

    embed = CtClipTask._embedded
    CtClipTask._embedded = lambda self, tokens: embed(self, tokens).detach()


def _frozen_in_name_only() -> None:
    from tasks.training.step import Step

    Step._is_frozen = lambda self, name: False


def _average_of_nothing() -> None:
    from tasks.training.step import Step

    Step._follow = lambda self, number: None


def _overflowing_loss() -> None:
    """A loss in the millions, whose gradients fp16 cannot hold."""
    from tasks.models.clip.clip import ClipTask
    from tasks.models.task import Loss

    contrast = ClipTask.contrast

    def huge(self: ClipTask, features: Any, *own: slice) -> Loss:
        loss = contrast(self, features, *own)
        return loss._replace(sum=loss.sum * 1e4)

    ClipTask.contrast = huge


def _saturated_tower() -> None:
    from tasks.models.clip.clip import ClipTask

    embed = ClipTask.embed_images

    def damped(self: ClipTask, batch: Any) -> torch.Tensor:
        found = embed(self, batch)
        return found.detach() + 1e-12 * (found - found.detach())

    ClipTask.embed_images = damped


def _ranks_read_alike() -> None:
    from tasks.loader import batches

    own = batches.rank_positions
    batches.rank_positions = lambda step, size, rank, count: own(step, size, 0, count)


def _exchanged_pictures() -> None:
    """Each sample comes with the picture of another one, and with its own captions and embeddings."""
    from tasks.models.reinforced import clip_reinforced

    choose, before = clip_reinforced.choose, []

    def exchanged(sample: Any, seed: int, share: Any) -> Any:
        chosen = choose(sample, seed, share)
        before.append((chosen.picture, chosen.augmentation))
        picture, augmentation = before.pop(0) if len(before) > 7 else before[0]
        return replace(chosen, picture=picture, augmentation=augmentation)

    clip_reinforced.choose = exchanged


PLANTED = (
    Case("captions of other pictures", "clip", frozenset({"labels.misaligned"}), ("train.checkpoint_every=50",), _shuffled("captions.csv", ("caption",))),
    Case("black pictures", "clip", frozenset({"images.constant"}), (), _black_pictures),
    Case("pictures normalised twice", "clip", frozenset({"images.constant"}), patch=_normalised_twice),
    Case("pictures not normalised", "clip", frozenset({"images.constant"}), patch=_not_normalised),
    Case("a placeholder for a caption", "clip", frozenset({"captions.repeated"}), (), _captions(lambda text, n: "image" if n % 5 < 2 else f"{text} number {n}")),
    Case("captions longer than the context", "clip", frozenset({"text.truncated"}), (), _captions(lambda text, n: f"number {n} " * 60 + text)),
    Case("copies in the held-out split", "clip", frozenset({"split.leak"}), (), _copies),
    Case("a learning rate of 3", "clip", frozenset({"loss.diverging", "loss.chance"}), ("train.lr=3.0",)),
    Case("a learning rate of 1e-13", "clip", frozenset({"weights.unmoved"}), ("train.lr=1e-13",)),
    Case("a warm-up longer than the training", "clip", frozenset({"schedule.warmup"}), ("train.warmup=20000",)),
    Case("an order that repeats", "clip", frozenset({"order.repeated"}), ("loader.shuffle=none",)),
    Case("an augmentation that repeats", "clip", frozenset({"order.repeated"}), patch=_same_augmentation),
    Case("no gradient for the image tower", "clip", frozenset({"weights.unmoved"}), patch=_detached_pictures),
    Case("a frozen tower that learns", "clip", frozenset({"weights.unmoved"}), ("train.freeze=[vision]",), patch=_frozen_in_name_only),
    Case("an average that stays behind", "clip", frozenset({"evaluation.untrained"}), ("train.ema=0.999",), patch=_average_of_nothing),
    Case("fp16 that overflows", "clip", frozenset({"precision.overflow"}), ("train.precision=fp16",), patch=_overflowing_loss),
    Case("a gradient that vanishes", "clip", frozenset({"gradients.vanishing"}), patch=_saturated_tower),
    Case("reports of other scans", "ct_clip", frozenset({"labels.misaligned"}), (), _shuffled("reports.csv", ("Findings_EN", "Impressions_EN"))),
    Case("volumes divided twice", "ct_clip", frozenset({"images.constant"}), patch=_divided_twice),
    Case("no gradient for the report tower", "ct_clip", frozenset({"weights.unmoved"}), patch=_detached_reports),
    Case("answers to other pictures", "vlm", frozenset({"labels.misaligned"}), (), _shuffled_answers),
    Case("pictures of other samples", "clip_reinforced", frozenset({"labels.misaligned"}), ("train.checkpoint_every=50",), patch=_exchanged_pictures),
    Case("two ranks read alike", "clip", frozenset({"order.repeated"}), patch=_ranks_read_alike, ranks=2),
)  # fmt: skip
HEALTHY = (
    Case("clip", "clip"),
    Case("clip in bf16", "clip", overrides=("train.precision=bf16",)),
    Case("clip in fp16", "clip", overrides=("train.precision=fp16",)),
    Case("clip with an average", "clip", overrides=("train.ema=0.99",)),
    Case("clip in small passes", "clip", overrides=("train.micro_batch=16",)),
    Case("clip with a frozen tower", "clip", overrides=("train.freeze=[text]",)),
    Case("clip as a stream", "clip", overrides=("loader.reader=streaming",)),
    Case("clip in small batches", "clip", overrides=("train.batch_size=16",)),
    Case("clip with the sigmoid loss", "clip", overrides=("train.steps=400", "train.checkpoint_every=200", "train.model={name: tarmac/digits, loss: siglip}")),
    Case("clip with a constant rate", "clip", overrides=("train.schedule=constant",)),
    Case("clip at a low rate", "clip", overrides=("train.lr=3e-5",)),
    Case("clip at a high rate", "clip", overrides=("train.lr=5e-3", "train.grad_clip=1.0")),
    Case("clip, shuffled by sample", "clip", overrides=("loader.shuffle=samples",)),
    Case("clip on two ranks", "clip", ranks=2),
    Case("scans", "ct_clip"),
    Case("scans without jitter", "ct_clip", overrides=("train.model={vision: tarmac/phantoms, text: tarmac/reports, logit_scale: 2.66}",)),
    Case("chat", "vlm"),
    Case("chat, one a row", "vlm", overrides=("train.pack=null", "train.batch_size=16")),
    Case("reinforced", "clip_reinforced"),
    Case("reinforced by teachers alone", "clip_reinforced", overrides=("train.model.loss_weights={contrastive: 0.0, distillation: 1.0}",)),
)  # fmt: skip
CASES = {case.name: case for case in (*PLANTED, *HEALTHY)}


def findings(case: Case, seed: int, folder: Path) -> list[dict[str, Any]]:
    """Build, train and return the findings of the training."""
    os.chdir(folder)
    example, config, keys = FAMILIES[case.family]
    raw = Path("data/raw") / example
    examples.write_example(example, raw)
    if case.spoil is not None:
        case.spoil(raw, random.Random(seed))
    if case.patch is not None:
        case.patch()
    always = ("evaluate=null", "track.mode=disabled", f"train.checkpoint_every={STEPS}", f"train.seed={seed}")
    settings = load_config(ROOT / "configs" / config, (*keys, *always, *case.overrides))
    run = plan(settings, build(settings).version)
    set_workers(run, 0)
    if case.ranks == 1:
        train_here(run)
    else:
        _train_ranks(run, case)
    return list(_lines(run))


def _train_ranks(run: RunFolder, case: Case) -> None:
    """Train in processes of their own, which have the patch too by `sitecustomize`."""
    if case.patch is not None:
        Path("sitecustomize.py").write_text(
            f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
            f"from tests.sanity import planted; planted.{case.patch.__name__}()\n"
        )
        os.environ["PYTHONPATH"] = str(Path.cwd())
    with training_on(run, case.ranks) as ranks:
        codes = exit_codes(run, ranks)
    assert codes == [0] * case.ranks, codes


def _lines(run: RunFolder) -> Iterator[dict[str, Any]]:
    if run.sanity.exists():
        yield from map(json.loads, run.sanity.read_text().splitlines())


def main(name: str, seed: str = "0") -> None:
    with tempfile.TemporaryDirectory(prefix="sanity-") as folder:
        found = findings(CASES[name], int(seed), Path(folder))
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
