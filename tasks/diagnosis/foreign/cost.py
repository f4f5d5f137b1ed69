"""What reading a training command's data takes: time until the first batch, pixels, memory."""

from __future__ import annotations

import json
from collections.abc import Iterator

from tasks.core.findings import Finding
from tasks.core.units import counted
from tasks.diagnosis import memory
from tasks.diagnosis.foreign.case import Case
from tasks.diagnosis.memory import LoaderSize

DEFAULT_SIDE, FETCHED_AHEAD = 224, 2
"""Pixels of a model's image where its description is not found, and batches that torch's loader fetches ahead
for each worker."""
LARGE_PIXELS = 25_000_000
"""Of an image: above it decoding takes half a second and 75 MB; open_clip's main branch drops such images."""
REFUSED_PIXELS = 2 * 89_478_485
"""Twice Pillow's MAX_IMAGE_PIXELS: above it Pillow refuses to decode."""
SLOW_WARMUP_S = 60.0


def judge_cost(case: Case) -> Iterator[Finding]:
    """A long wait for the first batch, and images or loaders that this machine's memory does not bear."""
    yield from _shuffle(case)
    yield from _oversized(case)
    yield from _memory(case)


def fill_s(case: Case) -> float | None:
    """Seconds until all shuffle buffers hold what they need before the first sample comes out."""
    if not case.bytes_per_s or not case.data.buffered:
        return None
    share = case.survey.samples / case.workers if not case.data.is_resampled else case.data.buffered
    samples = min(case.data.buffered, share) * case.workers
    return samples * case.survey.sample_bytes / case.bytes_per_s


def _shuffle(case: Case) -> Iterator[Finding]:
    seconds = fill_s(case)
    if seconds is None or seconds < SLOW_WARMUP_S:
        return
    yield Finding(
        code="shuffle.warmup",
        severity="warning",
        remedy="copy the shards to a faster disk, or take fewer workers; the first batch comes after that",
        evidence={
            "problem": f"each of {counted(case.workers, 'worker')} reads {case.data.buffered:,} samples "
            f"before its first batch: {seconds / 60:.0f} min at {(case.bytes_per_s or 0) / 1e6:,.0f} MB/s"
        },
    )


def _oversized(case: Case) -> Iterator[Finding]:
    large = [one for one in case.survey.pixels if one[0] > LARGE_PIXELS]
    if not large:
        return
    pixels, key, tar = max(large)
    refused = sum(one[0] > REFUSED_PIXELS for one in large)
    silent = f"; Pillow refuses {refused} of them, which are dropped" if refused else ""
    yield Finding(
        code="image.oversized",
        severity="warning",
        remedy="scale the images down once: `tarmac build` with dataset.image.max_side",
        where={"shard": tar, "key": key},
        evidence={
            "problem": f"{len(large)} of {len(case.survey.pixels)} images measured have more than "
            f"{LARGE_PIXELS / 1e6:.0f} million pixels{silent}",
            "largest": f"{pixels / 1e6:,.0f} million pixels",
        },
        config={"dataset.image.max_side": 1024},
    )


def _memory(case: Case) -> Iterator[Finding]:
    """Shuffle buffers of undecoded samples, and batches ahead, against what the machine gives."""
    if case.limits is None or not case.survey.looked_at:
        return
    samples = min(case.data.buffer, case.survey.samples)
    pixels = max((one[0] for one in case.survey.pixels), default=0)
    cost = memory.estimate(_image_side(case), pixels, buffer=samples * case.survey.sample_bytes)
    size = LoaderSize(case.data.workers, FETCHED_AHEAD, case.data.batch_size, case.command.ranks)
    names = {"workers": "--workers", "batch_size": "--batch-size"}
    yield from memory.judge_memory(cost, size, case.limits, names, are_flags=True)


def _image_side(case: Case) -> int:
    """By the options, or the description that open_clip has of the model."""
    forced = case.command.number("--force-image-size", default=0)
    path = case.command.source(
        f"open_clip/model_configs/{(case.command.option('--model') or '').replace('/', '-')}.json"
    )
    if forced or path is None:
        return int(forced) or DEFAULT_SIDE
    side = json.loads(path.read_text(encoding="utf-8")).get("vision_cfg", {}).get("image_size", DEFAULT_SIDE)
    return int(max(side) if isinstance(side, list) else side)
