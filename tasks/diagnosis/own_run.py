"""Judges a config of Tarmac's own before it trains, by the records of its dataset's version.

Nothing is decoded and torch is not imported: the manifest, the index's header and the statistics of the table
of samples suffice, within a second, however many shards there are.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.core.errors import DataError
from tasks.core.files import read_json
from tasks.core.findings import Finding, Severity
from tasks.core.schema import Config, Train
from tasks.core.units import counted
from tasks.dataset.version.index import read_index
from tasks.dataset.version.layout import samples_name, sizes_name
from tasks.dataset.version.manifest import Manifest
from tasks.diagnosis import memory
from tasks.diagnosis.bench import PREFETCH
from tasks.diagnosis.foreign.judgement import LARGE_PIXELS
from tasks.diagnosis.memory import LoaderSize, gigabytes
from tasks.models import hub
from tasks.models.held_out import held_out
from tasks.models.recipes import levers, options_type
from tasks.runs.data import overfull
from tasks.runs.footprint import SPARE, Footprint
from tasks.runs.gpus import share_gpus

TRAIN = "train"
BYTES_PER_WEIGHT = 12
"""In a checkpoint: a weight in float32 and the two averages of AdamW."""
NAMES = {"workers": "loader.workers", "prefetch": "loader.prefetch", "batch_size": "train.batch_size"}


@dataclass(frozen=True)
class OwnCase:
    """A config with a train block, the version that it trains on, and the limits of this machine."""

    config: Config
    train: Train
    version: Path
    manifest: Manifest
    cores: int
    limits: memory.MachineLimits
    free_bytes: float
    cost: memory.LoaderCost | None = None
    """The memory cost of a sample, or of a row of packed samples, where it was measured."""
    is_deep: bool = False
    """Whether to read the weights instead of only checking that the files exist."""
    rows: int | None = None
    """The number of rows that the samples are packed into, where it was measured."""
    footprint: Footprint | None = None
    """What a rank takes of its GPU, where it was computed."""
    gpu_bytes: float | None = None
    """The memory of this machine's smallest GPU, where it is known."""

    @property
    def shares_gpu(self) -> bool:
        """Whether evaluations run beside the training on its GPU."""
        evaluate = self.config.evaluate
        return evaluate is not None and evaluate.when == "beside" and share_gpus(self.config.engine)

    @cached_property
    def samples(self) -> int:
        return self.manifest.splits[TRAIN].samples if TRAIN in self.manifest.splits else 0

    @cached_property
    def shards(self) -> int:
        return self.manifest.splits[TRAIN].shards if TRAIN in self.manifest.splits else 0

    @cached_property
    def steps(self) -> int:
        """Optimizer steps, computed from the manifest's count where the config gives `epochs`."""
        if self.train.steps is not None:
            return self.train.steps
        return math.ceil(self.samples * (self.train.epochs or 1) / self.train.batch_size)

    @property
    def workers(self) -> int:
        """The loader's workers; where they are still to be measured, at most as many as there are cores."""
        return self.cores if self.config.loader.workers == "auto" else self.config.loader.workers

    @cached_property
    def volumes(self) -> tuple[int, int, int] | None:
        """(depth, height, width) of the CT volumes that the model reads; None where it reads none."""
        return options_type(self.train.recipe).model_validate(self.train.model).input_shape

    @cached_property
    def model(self) -> Mapping[str, Any]:
        """The model's description; empty for a recipe whose models cannot be described without torch."""
        return described(self.train)


def described(train: Train) -> Mapping[str, Any]:
    """Return open_clip's description of the model; empty for another kind of model."""
    if train.recipe not in ("clip", "clip_reinforced"):
        return {}
    from tasks.models.clip.clip_options import ClipOptions

    keys = {key: value for key, value in train.model.items() if key in ClipOptions.model_fields}
    return ClipOptions.model_validate(keys).described or {}


def judge_own_run(case: OwnCase) -> list[Finding]:
    """Return every cause for which the run would fail, stall, or differ from what was meant."""
    return [
        *_modality(case),
        *_counts(case),
        *_batches(case),
        *_warmup(case),
        *_oversized(case),
        *_volumes(case),
        *(() if options_type(case.train.recipe).is_external else _memory(case)),
        *_gpu_memory(case),
        *_disk(case),
        *_weights(case),
        *_teachers(case),
    ]


def _modality(case: OwnCase) -> Iterator[Finding]:
    kind, there = options_type(case.train.recipe), case.manifest.modality
    if not kind.takes(there):
        remedy = f"train on a dataset of modality {kind.modality}, or take the recipe for {there}"
        where = {"file": str(case.version / "manifest.json")}
        problem = f"recipe {case.train.recipe} reads {kind.modality}, the dataset holds {there}"
        yield Finding("keys.mismatch", "error", remedy, where=where, evidence={"problem": problem})


def _counts(case: OwnCase) -> Iterator[Finding]:
    """Compare the manifest with the index and `sizes.json`."""
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
    fix = f"tarmac repair {case.version}"
    for name, samples in found.items():
        if samples != case.samples:
            evidence = {"problem": f"the manifest has {case.samples:,} samples, {name} {samples:,}"}
            yield Finding(
                "count.mismatch", "error", fix, where={"file": name}, evidence=evidence, command=fix
            )


def _batches(case: OwnCase) -> Iterator[Finding]:
    if case.samples and (batch := overfull(case.config, case.version, case.rows)) is not None:
        severity: Severity = "error" if batch.is_wrong else "warning"
        evidence, config = {"problem": batch.problem}, {"train.batch_size": batch.fitting}
        yield Finding("worker.starved", severity, batch.remedy, evidence=evidence, config=config)
    is_streaming = case.config.loader.reader == "streaming"
    if is_streaming and TRAIN in case.manifest.splits and case.shards < case.workers:
        remedy = f"take loader.workers {max(case.shards, 1)}, loader.reader: indexed, or smaller shards"
        problem = (
            f"{counted(case.shards, 'shard')} for {counted(case.workers, 'worker')} of the streaming reader: "
            "several read the same shards"
        )
        config = {"loader.workers": max(case.shards, 1)}
        yield Finding("shards.too_few", "warning", remedy, evidence={"problem": problem}, config=config)


def _warmup(case: OwnCase) -> Iterator[Finding]:
    train = case.train.model_copy(update={"steps": case.steps, "epochs": None})
    warmup = train.warmup_steps
    if warmup < case.steps:
        return
    rates = train.lr.values() if isinstance(train.lr, dict) else [train.lr]
    ends, shorter = max(rates) * case.steps / max(warmup, 1), max(case.steps // 10, 1)
    problem = (
        f"{warmup:,} warm-up steps of {case.steps:,}: the learning rate ends at {ends:.1e}, never "
        f"{max(rates):.1e}"
    )
    remedy, config = f"take train.warmup {shorter}, a tenth of the steps", {"train.warmup": shorter}
    yield Finding("schedule.warmup", "warning", remedy, evidence={"problem": problem}, config=config)


def largest_image(version: Path) -> int:
    """Return an upper bound of the pixels of the train split's images, by the statistics that Parquet keeps
    for each group of rows; 0 where the table has none."""
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
        remedy = "set dataset.image.max_side to 1024 and build again: each is decoded whole for every step"
        evidence = {"problem": f"images of up to {most / 1e6:,.0f} million pixels"}
        config = {"dataset.image.max_side": 1024}
        yield Finding("image.oversized", "warning", remedy, {"split": TRAIN}, evidence, config=config)


def _memory(case: OwnCase) -> Iterator[Finding]:
    if case.train.pack is not None and case.cost is None:
        return  # how much a row holds is known only once some were packed
    prefetch = PREFETCH if case.config.loader.prefetch == "auto" else case.config.loader.prefetch
    cost = case.cost or _estimate(case)
    engine = case.config.engine.train
    share = max(case.train.batch_size // engine.processes, 1)
    part = min(case.train.micro_batch or share, share)
    held = held_out(case.manifest.splits)
    judged = min(case.config.judged_at_once, case.manifest.splits[held].samples) if held is not None else 0
    size = LoaderSize(case.workers, prefetch, part, engine.per_node, -(-share // part), judged)
    is_given = case.config.evaluate is not None and case.config.evaluate.batch_size is not None
    names = {**NAMES, "judged": "evaluate.batch_size"} if is_given else NAMES
    for finding in memory.judge_memory(cost, size, case.limits, names):
        config = dict(finding.config or {})
        if "train.batch_size" in config:  # the config counts the samples over all ranks
            config["train.batch_size"] *= engine.processes
        yield replace(finding, config=config or None)


def _gpu_memory(case: OwnCase) -> Iterator[Finding]:
    """Compare what a rank takes of its GPU, and an evaluation beside it where it shares that, with what it
    has."""
    rank, room = case.footprint, case.gpu_bytes
    if rank is None or room is None:
        return
    there = f"of the {gigabytes(room)} of a GPU"
    if rank.most > SPARE * room:
        evidence = {"problem": f"a rank takes {rank}, {there}"}
        remedy = f"lower {levers(case.train)}, set train.checkpointing, or engine.train.shard with more GPUs"
        yield Finding("memory.exceeded", "error", remedy, evidence=evidence)
    elif case.shares_gpu and rank.most + rank.beside > SPARE * room:
        both = f"a rank takes {gigabytes(rank.most)} and an evaluation beside it {gigabytes(rank.beside)}"
        remedy = "take evaluate.when: idle, or lower train.micro_batch or evaluate.batch_size"
        evidence, config = {"problem": f"{both}, {there}"}, {"evaluate.when": "idle"}
        yield Finding("memory.exceeded", "warning", remedy, evidence=evidence, config=config)


def _estimate(case: OwnCase) -> memory.LoaderCost:
    """Estimate the memory cost of a sample by the shape of its volumes or the side of its images."""
    if case.volumes is None:
        side = memory.image_side(case.model.get("vision_cfg", {}).get("image_size"))
        return memory.estimate(side, largest_image(case.version), tensors=0)
    stored = 0
    with suppress(DataError):  # an index that is not sound is reported by `_counts`
        stored = int(read_index(case.version, TRAIN)["length"].max(initial=0))
    return memory.estimate_volumes(case.volumes, stored)


def too_small(version: Path, wanted: Sequence[int]) -> tuple[int, ...] | None:
    """Return the smallest sides of the train split's volumes, if one is below `wanted`."""
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
    there, asked = (" x ".join(map(str, sides)) for sides in (least, wanted))
    remedy = f"build with dataset.volume.shape: {list(wanted)}, or take a smaller train.model.shape"
    evidence = {"problem": f"volumes of no more than {there} voxels, and the model reads {asked}"}
    config = {"dataset.volume.shape": list(wanted)}
    yield Finding("keys.mismatch", "error", remedy, {"split": TRAIN}, evidence, config=config)


def weights(model: Mapping[str, Any]) -> int:
    """Estimate the parameters of a CLIP of two transformers to a few percent; 0 for another kind of model.

    A block of width w has 12 w² (attention 4 w², the two layers of its MLP 8 w²). The embeddings of tokens
    and patches are added.
    """
    vision, text = model.get("vision_cfg", {}), model.get("text_cfg", {})
    towers = [(one.get("width"), one.get("layers")) for one in (vision, text)]
    if not all(isinstance(width, int) and isinstance(layers, int) for width, layers in towers):
        return 0
    blocks = sum(12 * layers * width * width for width, layers in towers)
    tokens = text.get("vocab_size", 49408) * text["width"]
    return int(blocks + tokens + 3 * vision.get("patch_size", 16) ** 2 * vision["width"])


def checkpoints_of(config: Config, train: Train, steps: int) -> tuple[int, int]:
    """Return how many checkpoints of a run of `steps` lie on the disk at once, and the bytes of each; 0 bytes
    for a model whose size is not known. Those that wait to be evaluated stay."""
    per_weight = 8 if train.lora else BYTES_PER_WEIGHT + (4 if train.ema else 0)
    each = per_weight * weights(described(train))
    count = math.ceil(steps / train.checkpoint_every) + config.evaluates_start
    if train.keep is not None:
        on_the_way = 1
        several = steps // train.keep.every if train.keep.every else 0
        waiting = config.evaluate.steps(steps) if config.evaluate is not None and _wait(config) else ()
        count = min(count, train.keep.latest + train.keep.best + several + on_the_way + len(waiting))
    return count, each


def _wait(config: Config) -> bool:
    """Whether checkpoints wait for the training's end to be evaluated."""
    when = "" if config.evaluate is None else config.evaluate.when
    return when == "after" or (when == "idle" and share_gpus(config.engine))


def _disk(case: OwnCase) -> Iterator[Finding]:
    """Compare the size of all checkpoints of the run with the free space where runs lie."""
    count, each = checkpoints_of(case.config, case.train, case.steps)
    if each * count > case.free_bytes:
        fitting = max(int(case.free_bytes // each), 1)
        every = math.ceil(case.steps / fitting)
        problem = (
            f"{counted(count, 'checkpoint')} of {memory.gigabytes(each)} need "
            f"{memory.gigabytes(each * count)}, and {memory.gigabytes(case.free_bytes)} are free"
        )
        remedy = (
            f"take train.keep {{latest: 2}} or train.checkpoint_every {every}, or a larger disk for `runs`"
        )
        where, config = {"file": str(case.config.runs)}, {"train.checkpoint_every": every}
        yield Finding("disk.too_small", "error", remedy, where, {"problem": problem}, config=config)


def _weights(case: OwnCase) -> Iterator[Finding]:
    """Find files and models that the training loads and that are missing here, or have changed."""
    needs = options_type(case.train.recipe).model_validate(case.train.model).needs
    for lack in hub.lacks(needs, hub.read_lock(case.config.runs), is_deep=case.is_deep):
        yield lack.finding()


def _teachers(case: OwnCase) -> Iterator[Finding]:
    """Compare the widths of all samples' embeddings with those of the teachers in the config."""
    if case.train.recipe != "clip_reinforced":
        return
    from tasks.models.reinforced.clip_reinforced_options import ReinforcedOptions

    wanted = ReinforcedOptions.model_validate(case.train.model).width
    there = _widths(case.version)
    wrong = [width for width in there if width != wanted]
    if wrong:
        samples = counted(sum(there[width] for width in wrong), "sample")
        widths = ", ".join(map(str, wrong))
        of_data = f"{samples} of {case.samples:,} with embeddings {widths} wide"
        problem = f"{of_data}, and train.model.teachers has {wanted}"
        of_each = "the width of each teacher that the data was made with, in their order"
        remedy = f"name by train.model.teachers {of_each}"
        where = {"file": samples_name(TRAIN)}
        yield Finding("reinforcement.teachers", "error", remedy, where=where, evidence={"problem": problem})


def _widths(version: Path) -> dict[int, int]:
    """Return how many samples have embeddings of each width, as far as the build could tell; empty where the
    table has no such column."""
    try:
        column = pq.read_table(version / samples_name(TRAIN), columns=["embedding_width"]).column(0)
    except (OSError, ValueError, IndexError):
        return {}
    return {one["values"]: one["counts"] for one in column.drop_null().value_counts().to_pylist()}


def room(folder: Path) -> float:
    """Return the free bytes of the disk that a folder lies on, or will lie on."""
    there = next(one for one in (folder.absolute(), *folder.absolute().parents) if one.exists())
    return float(shutil.disk_usage(there).free)
