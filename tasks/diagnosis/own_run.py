"""The judgement of a config of Tarmac's own before it trains, from what its dataset's version says of itself.

Nothing is decoded and torch is not imported: the manifest, the index's header and the statistics of the
table of samples answer within a second, however many shards there are.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.core.errors import DataError
from tasks.core.files import read_json
from tasks.core.findings import Finding
from tasks.core.schema import Config, Train
from tasks.core.units import counted
from tasks.dataset.index import read_index
from tasks.dataset.layout import samples_name, sizes_name
from tasks.dataset.manifest import Manifest
from tasks.diagnosis import memory
from tasks.diagnosis.bench import PREFETCH
from tasks.diagnosis.foreign.cost import LARGE_PIXELS
from tasks.diagnosis.memory import LoaderSize
from tasks.models import hub
from tasks.models.held_out import held_out
from tasks.models.recipes import options_type
from tasks.runs.data import overfull

TRAIN = "train"
DEFAULT_SIDE = 224
BYTES_PER_WEIGHT = 12
"""Of a checkpoint: a weight in float32 and the two averages of AdamW."""
NAMES = {"workers": "loader.workers", "prefetch": "loader.prefetch", "batch_size": "train.batch_size"}


@dataclass(frozen=True)
class OwnCase:
    """A config with a train block, the version that it trains on, and what this machine gives."""

    config: Config
    train: Train
    version: Path
    manifest: Manifest
    cores: int
    limits: memory.MachineLimits
    free_bytes: float
    cost: memory.LoaderCost | None = None
    """What a sample costs, or a row of packed ones, where it was measured."""
    is_deep: bool = False
    """Whether to read the weights, and not only look at them."""
    rows: int | None = None
    """How many rows the samples are packed into, where it was measured."""

    @cached_property
    def samples(self) -> int:
        split = self.manifest.splits.get(TRAIN)
        return 0 if split is None else split.samples

    @cached_property
    def shards(self) -> int:
        split = self.manifest.splits.get(TRAIN)
        return 0 if split is None else split.shards

    @cached_property
    def steps(self) -> int:
        """Optimizer steps; those of `epochs` by the manifest's count."""
        if self.train.steps is not None:
            return self.train.steps
        return math.ceil(self.samples * (self.train.epochs or 1) / self.train.batch_size)

    @cached_property
    def volumes(self) -> tuple[int, int, int] | None:
        """(depth, height, width) that the model reads of CT volumes; None of one that reads none."""
        return options_type(self.train.recipe).model_validate(self.train.model).input_shape

    @cached_property
    def model(self) -> Mapping[str, Any]:
        """The model's description; empty for a recipe whose models are not described without torch."""
        if self.train.recipe != "clip":
            return {}
        from tasks.models.clip.clip_options import ClipOptions

        return ClipOptions.model_validate(self.train.model).described or {}


def judge_own_run(case: OwnCase) -> list[Finding]:
    """Every cause for which the run would fail, stand still, or be another than was meant."""
    return [
        *_modality(case),
        *_counts(case),
        *_batches(case),
        *_warmup(case),
        *_oversized(case),
        *_volumes(case),
        *(() if options_type(case.train.recipe).is_external else _memory(case)),
        *_disk(case),
        *_weights(case),
        *_teachers(case),
    ]


def _modality(case: OwnCase) -> Iterator[Finding]:
    kind, there = options_type(case.train.recipe), case.manifest.modality
    if not kind.takes(there):
        yield Finding(
            code="keys.mismatch",
            severity="error",
            remedy=f"train on a dataset of modality {kind.modality}, or take the recipe for {there}",
            where={"file": str(case.version / "manifest.json")},
            evidence={
                "problem": f"recipe {case.train.recipe} reads {kind.modality}, the dataset holds {there}"
            },
        )


def _counts(case: OwnCase) -> Iterator[Finding]:
    """The manifest against the index and `sizes.json`: what is read is what was promised."""
    found = {}
    try:
        found[f"index/{TRAIN}.npy"] = len(read_index(case.version, TRAIN))
    except DataError as error:
        found[f"index/{TRAIN}.npy ({error})"] = 0
    try:
        sizes = read_json(case.version / sizes_name(TRAIN))
        found[sizes_name(TRAIN)] = sum(sizes.values())
    except (OSError, ValueError, AttributeError, TypeError):
        found[f"{sizes_name(TRAIN)} (missing or torn)"] = 0
    for name, samples in found.items():
        if samples != case.samples:
            yield Finding(
                code="count.mismatch",
                severity="error",
                remedy=f"tarmac repair {case.version}",
                where={"file": name},
                evidence={"problem": f"the manifest has {case.samples:,} samples, {name} {samples:,}"},
                command=f"tarmac repair {case.version}",
            )


def _batches(case: OwnCase) -> Iterator[Finding]:
    if case.samples and (batch := overfull(case.config, case.version, case.rows)) is not None:
        yield Finding(
            code="worker.starved",
            severity="error" if batch.is_wrong else "warning",
            remedy=batch.remedy,
            evidence={"problem": batch.problem},
            config={"train.batch_size": batch.fitting},
        )
    split = case.manifest.splits.get(TRAIN)
    if case.config.loader.reader == "streaming" and split is not None and split.shards < _workers(case):
        yield Finding(
            code="shards.too_few",
            severity="warning",
            remedy=f"take loader.workers {max(split.shards, 1)}, loader.reader: indexed, or smaller shards",
            evidence={
                "problem": f"{counted(split.shards, 'shard')} for {counted(_workers(case), 'worker')} of the "
                "streaming reader: several read the same shards"
            },
            config={"loader.workers": max(split.shards, 1)},
        )


def _workers(case: OwnCase) -> int:
    """The loader's workers; where they are to be measured, as many as there are cores at most."""
    return case.cores if case.config.loader.workers == "auto" else case.config.loader.workers


def _warmup(case: OwnCase) -> Iterator[Finding]:
    train = case.train.model_copy(update={"steps": case.steps, "epochs": None})
    warmup = train.warmup_steps
    if warmup < case.steps:
        return
    rates = train.lr.values() if isinstance(train.lr, dict) else [train.lr]
    ends = max(rates) * case.steps / max(warmup, 1)
    yield Finding(
        code="schedule.warmup",
        severity="warning",
        remedy=f"take train.warmup {max(case.steps // 10, 1)}, a tenth of the steps",
        evidence={
            "problem": f"{warmup:,} warm-up steps of {case.steps:,}: the learning rate ends at {ends:.1e}, "
            f"never {max(rates):.1e}"
        },
        config={"train.warmup": max(case.steps // 10, 1)},
    )


def largest_image(version: Path) -> int:
    """An upper bound of the pixels of the train split's images, by the statistics that Parquet keeps of each
    group of rows; 0 where the table has none."""
    try:
        table = pq.ParquetFile(version / samples_name(TRAIN))
    except (OSError, ValueError):
        return 0
    columns = {name: number for number, name in enumerate(table.schema_arrow.names)}
    if not {"width", "height"} <= columns.keys():
        return 0
    most = 0
    for group in range(table.metadata.num_row_groups):
        row_group = table.metadata.row_group(group)
        sides = [row_group.column(columns[name]).statistics for name in ("width", "height")]
        if all(side is not None and side.has_min_max for side in sides):
            most = max(most, int(sides[0].max) * int(sides[1].max))
    return most


def _oversized(case: OwnCase) -> Iterator[Finding]:
    if (most := largest_image(case.version)) > LARGE_PIXELS:
        yield Finding(
            code="image.oversized",
            severity="warning",
            remedy="set dataset.image.max_side to 1024 and build again: each is decoded whole for every step",
            where={"split": TRAIN},
            evidence={"problem": f"images of up to {most / 1e6:,.0f} million pixels"},
            config={"dataset.image.max_side": 1024},
        )


def _memory(case: OwnCase) -> Iterator[Finding]:
    if case.train.pack is not None and case.cost is None:
        return  # how much a row holds is known to those alone who have packed some
    prefetch = PREFETCH if case.config.loader.prefetch == "auto" else case.config.loader.prefetch
    cost = case.cost or _estimate(case)
    ranks = case.config.engine.train.processes
    share = max(case.train.batch_size // ranks, 1)
    part = min(case.train.micro_batch or share, share)
    held = held_out(case.manifest.splits)
    judged = min(case.config.judged_at_once, case.manifest.splits[held].samples) if held is not None else 0
    size = LoaderSize(_workers(case), prefetch, part, ranks, -(-share // part), judged)
    is_given = case.config.evaluate is not None and case.config.evaluate.batch_size is not None
    names = {**NAMES, "judged": "evaluate.batch_size"} if is_given else NAMES
    for finding in memory.judge_memory(cost, size, case.limits, names):
        yield _over_all_ranks(finding, ranks)


def _estimate(case: OwnCase) -> memory.LoaderCost:
    """What a sample costs, by the recipe's own account or by the side of its images."""
    if case.volumes is not None:
        return memory.estimate_volumes(case.volumes, largest_sample(case.version))
    side = case.model.get("vision_cfg", {}).get("image_size", DEFAULT_SIDE)
    side = max(side) if isinstance(side, list) else side
    return memory.estimate(side, largest_image(case.version))


def largest_sample(version: Path) -> int:
    """Bytes of the train split's largest sample as stored; 0 without a sound index, which `_counts` finds."""
    try:
        return int(read_index(version, TRAIN)["length"].max(initial=0))
    except DataError:
        return 0


def too_small(version: Path, wanted: Sequence[int]) -> tuple[int, ...] | None:
    """The least sides of the train split's volumes, by the table of samples, where one is below `wanted`."""
    try:
        table = pq.read_table(version / samples_name(TRAIN), columns=["depth", "height", "width"])
    except (OSError, ValueError):
        return None
    least = tuple(int(pc.min(column).as_py() or 0) for column in table.columns)
    return least if any(side < part for side, part in zip(least, wanted, strict=True)) else None


def _volumes(case: OwnCase) -> Iterator[Finding]:
    wanted = case.volumes
    least = None if wanted is None else too_small(case.version, wanted)
    if wanted is None or least is None:
        return
    said, asked = (" x ".join(map(str, sides)) for sides in (least, wanted))
    yield Finding(
        code="keys.mismatch",
        severity="error",
        remedy=f"build with dataset.volume.shape: {list(wanted)}, or take a smaller train.model.shape",
        where={"split": TRAIN},
        evidence={"problem": f"volumes of no more than {said} voxels, and the model reads {asked}"},
        config={"dataset.volume.shape": list(wanted)},
    )


def _over_all_ranks(finding: Finding, ranks: int) -> Finding:
    """The finding with the batch size as the config has it, over all ranks."""
    config = dict(finding.config or {})
    if "train.batch_size" in config:
        config["train.batch_size"] *= ranks
    return replace(finding, config=config or None)


def weights(model: Mapping[str, Any]) -> int:
    """Parameters of a CLIP of two transformers, to a few percent; 0 where the description is of another kind.

    A block of width w has 12 w² (attention 4 w², the two layers of its MLP 8 w²); beside the blocks count the
    embeddings of tokens and patches.
    """
    vision, text = model.get("vision_cfg", {}), model.get("text_cfg", {})
    towers = [(one.get("width"), one.get("layers")) for one in (vision, text)]
    if not all(isinstance(width, int) and isinstance(layers, int) for width, layers in towers):
        return 0
    blocks = sum(12 * layers * width * width for width, layers in towers)
    tokens = text.get("vocab_size", 49408) * text["width"]
    return int(blocks + tokens + 3 * vision.get("patch_size", 16) ** 2 * vision["width"])


def _disk(case: OwnCase) -> Iterator[Finding]:
    """All checkpoints of the run against the room where runs lie."""
    each = BYTES_PER_WEIGHT * weights(case.model) + (4 * weights(case.model) if case.train.ema else 0)
    count = math.ceil(case.steps / case.train.checkpoint_every)
    if each * count > case.free_bytes:
        fitting = max(int(case.free_bytes // each), 1)
        every = math.ceil(case.steps / fitting)
        yield Finding(
            code="disk.too_small",
            severity="error",
            remedy=f"take train.checkpoint_every {every}, or put `runs` on a larger disk",
            where={"file": str(case.config.runs)},
            evidence={
                "problem": f"{counted(count, 'checkpoint')} of {memory.gigabytes(each)} need "
                f"{memory.gigabytes(each * count)}, and {memory.gigabytes(case.free_bytes)} are free"
            },
            config={"train.checkpoint_every": every},
        )


def _weights(case: OwnCase) -> Iterator[Finding]:
    """Files and models that the training loads and that are not on this machine, or not as they were."""
    needs = options_type(case.train.recipe).model_validate(case.train.model).needs
    for lack in hub.lacks(needs, hub.read_lock(case.config.runs), is_deep=case.is_deep):
        yield lack.finding()


def _teachers(case: OwnCase) -> Iterator[Finding]:
    """The widths of all samples' embeddings against those of the teachers that the recipe is told of."""
    if case.train.recipe != "clip_reinforced":
        return
    from tasks.models.reinforced.clip_reinforced_options import ReinforcedOptions

    wanted = ReinforcedOptions.model_validate(case.train.model).width
    there = _widths(case.version)
    wrong = [width for width in there if width != wanted]
    if wrong:
        samples = sum(there[width] for width in wrong)
        yield Finding(
            code="reinforcement.teachers",
            severity="error",
            remedy="name by train.model.teachers the width of each teacher that the data was made with, in "
            "their order",
            where={"file": samples_name(TRAIN)},
            evidence={
                "problem": f"{counted(samples, 'sample')} of {case.samples:,} with embeddings "
                f"{', '.join(map(str, wrong))} wide, and train.model.teachers has {wanted}"
            },
        )


def _widths(version: Path) -> dict[int, int]:
    """How many samples have embeddings of which width, of those that could be judged when they were built;
    empty where the table has no such column."""
    try:
        column = pq.read_table(version / samples_name(TRAIN), columns=["embedding_width"]).column(0)
    except (OSError, ValueError, IndexError):
        return {}
    return {one["values"]: one["counts"] for one in column.drop_null().value_counts().to_pylist()}


def room(folder: Path) -> float:
    """Free bytes of the disk that a folder lies on, or will lie on."""
    there = next(one for one in (folder.absolute(), *folder.absolute().parents) if one.exists())
    return float(shutil.disk_usage(there).free)
