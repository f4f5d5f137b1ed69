"""Judges a training command before it starts: does every worker of every rank get a batch?

The judgement is a pure function of the case. The rules about what the pipeline makes of the samples' members
stand in `members.py`; here are those about shards, counts, time and memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tasks.core.findings import Finding, Severity
from tasks.core.units import counted
from tasks.diagnosis import memory
from tasks.diagnosis.foreign.case import Case
from tasks.diagnosis.foreign.members import judge_members
from tasks.diagnosis.memory import LoaderSize

UNEVEN = 1.5
"""The ratio between the worker with the most samples and the one with the fewest that is reported."""
COUNTS_DIFFER = 0.01
FETCHED_AHEAD = 2
"""The batches that torch's loader fetches ahead for each worker."""
LARGE_PIXELS = 25_000_000
"""An image above it takes half a second and 75 MB to decode; open_clip's main branch drops such images."""
REFUSED_PIXELS = 2 * 89_478_485
"""Twice Pillow's MAX_IMAGE_PIXELS: above it Pillow refuses to decode."""
SLOW_WARMUP_S = 60.0


def judge_command(case: Case) -> list[Finding]:
    """Return every cause for which a worker gets no batch, or the run differs from what was meant."""
    missing = list(_missing(case))
    if any(one.severity == "error" for one in missing):
        return missing  # with no shard at all, the advice of the other rules would mislead
    rules = (judge_members, _refused, _starved, _counts, _warmup, _shuffle, _oversized, _memory)
    return [*missing, *(finding for rule in rules for finding in rule(case))]


def ruled_out(case: Case, findings: Sequence[Finding]) -> Iterator[Mapping[str, Any]]:
    """Yield what people suspect in such cases, with the figure that disproves it."""
    codes = {one.code for one in findings}
    if "shuffle.warmup" not in codes and (seconds := _fill_s(case)) is not None:
        filled = f"each worker's shuffle buffer would fill in {max(seconds, 0.1):.1f} s"
        yield {"code": "shuffle.warmup", "evidence": filled}
    if not codes & {"shards.too_few", "worker.starved"} and not case.data.is_resampled:
        tars = counted(len(case.survey.locations), "shard")
        yield {"code": "shards.too_few", "evidence": f"{tars} for {counted(case.workers, 'worker')}"}


def _missing(case: Case) -> Iterator[Finding]:
    gone = [one for one in case.survey.tars.values() if one.damage and not one.looked_at]
    if not gone:
        return
    wild = "; the trainer expands {000000..000017} and no *" if "*" in (case.data.tars or "") else ""
    severity: Severity = "error" if len(gone) == len(case.survey.tars) else "warning"
    problem = f"{counted(len(gone), 'shard')} cannot be read; the trainer skips them"
    evidence = {"problem": problem, "first": f"{gone[0].location}: {gone[0].damage}"}
    where = {"shard": gone[0].location}
    yield Finding("shard.missing", severity, f"give shards that exist{wild}", where, evidence)


def _refused(case: Case) -> Iterator[Finding]:
    """Find errors that the trainer would end with before it reads a sample."""
    tars, ranks = len(case.survey.locations), case.command.ranks
    refusal = case.answer.refusal if case.answer is not None else None
    where = {"rule": refusal.place} if refusal is not None else {}
    if not case.data.is_resampled and tars < case.workers:
        each = max(tars // ranks, 1)
        counts = f"{counted(tars, 'shard')} for {counted(case.workers, 'worker')} of {counted(ranks, 'rank')}"
        remedy = f"take --workers {each} or --dataset-resampled, or pack the samples into more shards"
        flags = {"--workers": each} if tars >= ranks else {"--dataset-resampled": True}
        evidence = {"problem": f"{counts}: some would get none"}
        yield Finding("shards.too_few", "error", remedy, where=where, evidence=evidence, flags=flags)
    elif refusal is not None:
        option = case.data.samples_option
        remedy = f"give {option} {case.valid_samples}, or a sizes.json beside the first shard"
        evidence = {"problem": f"the trainer ends at once: {refusal.text or refusal.kind}"}
        flags = {option: case.valid_samples}
        yield Finding("count.mismatch", "error", remedy, where=where, evidence=evidence, flags=flags)


def _starved(case: Case) -> Iterator[Finding]:
    """Find workers that own fewer samples than a batch, and workers that own far more than others."""
    if case.answer is None or not case.answer.assigned or not case.valid_samples:
        return
    tars, average = case.survey.tars, case.valid_samples / len(case.survey.locations)
    owned = {
        (rank, worker): sum(case.valid(tars[one]) if one in tars else average for one in some)
        for rank, workers in enumerate(case.answer.assigned)
        for worker, some in enumerate(workers)
    }
    (rank, worker), most = min(owned, key=lambda one: owned[one]), max(owned.values())
    least, where = owned[rank, worker], {"rank": rank, "worker": worker}
    batch = case.data.batch_size
    poor = [one for one, samples in owned.items() if samples < batch]
    if poor:
        fewer = max(int(case.valid_samples // (batch * case.command.ranks * 2)), 1)
        fewer = min(fewer, max(case.data.workers - 1, 0) or 1)
        problem = (
            f"{len(poor)} of {counted(len(owned), 'worker')} own fewer samples than a batch of {batch:,}: "
            "they read for ever and yield nothing"
        )
        evidence = {"problem": problem, "least": f"worker {worker} of rank {rank}: {least:,.0f} samples"}
        remedy = f"take --workers {fewer} or a smaller --batch-size, or more shards"
        yield Finding("worker.starved", "error", remedy, where, evidence, flags={"--workers": fewer})
    elif most > UNEVEN * least:
        problem = (
            f"a worker owns {least:,.0f} samples and another {most:,.0f}: each yields as many batches, so "
            "the samples of the first are seen more often"
        )
        remedy = "pack the samples into shards of one size, a multiple of the workers in number"
        yield Finding("batches.uneven", "warning", remedy, where=where, evidence={"problem": problem})


def _counts(case: Case) -> Iterator[Finding]:
    stated, valid = case.data.samples, case.valid_samples
    if stated is None or case.data.is_resampled or not case.survey.is_whole or not valid:
        return
    if abs(stated - valid) > COUNTS_DIFFER * valid:
        option = case.data.samples_option
        problem = (
            f"{option} gives {stated:,} samples, and the trainer takes {valid:,} of the shards: an epoch is "
            "not what was meant"
        )
        evidence, remedy = {"problem": problem}, f"give {option} {valid}"
        yield Finding("count.mismatch", "warning", remedy, evidence=evidence, flags={option: valid})


def _warmup(case: Case) -> Iterator[Finding]:
    steps, warmup, rate = case.steps, case.data.warmup_steps, case.data.learning_rate
    if steps is None or warmup < steps or not steps:
        return
    reached = f": the learning rate ends at {rate * steps / warmup:.1e}, never {rate:.0e}" if rate else ""
    evidence = {"problem": f"{warmup:,} warm-up steps of {steps:,}{reached.replace('e-0', 'e-')}"}
    flags = {"--warmup": max(steps // 10, 1)}
    remedy = f"give --warmup {flags['--warmup']}, a tenth of the steps"
    yield Finding("schedule.warmup", "warning", remedy, evidence=evidence, flags=flags)


def _fill_s(case: Case) -> float | None:
    """Return the seconds until all shuffle buffers hold what they need before the first sample comes out."""
    if not case.bytes_per_s or not case.data.buffered:
        return None
    share = case.survey.samples / case.workers if not case.data.is_resampled else case.data.buffered
    samples = min(case.data.buffered, share) * case.workers
    return samples * case.survey.sample_bytes / case.bytes_per_s


def _shuffle(case: Case) -> Iterator[Finding]:
    seconds = _fill_s(case)
    if seconds is None or seconds < SLOW_WARMUP_S:
        return
    problem = (
        f"each of {counted(case.workers, 'worker')} reads {case.data.buffered:,} samples before its first "
        f"batch: {seconds / 60:.0f} min at {(case.bytes_per_s or 0) / 1e6:,.0f} MB/s"
    )
    remedy = "copy the shards to a faster disk, or take fewer workers; the first batch comes after that"
    yield Finding("shuffle.warmup", "warning", remedy, evidence={"problem": problem})


def _oversized(case: Case) -> Iterator[Finding]:
    large = [one for one in case.survey.pixels if one[0] > LARGE_PIXELS]
    if not large:
        return
    pixels, key, tar = max(large)
    refused = sum(one[0] > REFUSED_PIXELS for one in large)
    silent = f"; Pillow refuses {refused} of them, which are dropped" if refused else ""
    problem = (
        f"{len(large)} of {len(case.survey.pixels)} images measured have more than "
        f"{LARGE_PIXELS / 1e6:.0f} million pixels{silent}"
    )
    remedy = "scale the images down once: `tarmac build` with dataset.image.max_side"
    evidence = {"problem": problem, "largest": f"{pixels / 1e6:,.0f} million pixels"}
    where, config = {"shard": tar, "key": key}, {"dataset.image.max_side": 1024}
    yield Finding("image.oversized", "warning", remedy, where, evidence, config=config)


def _memory(case: Case) -> Iterator[Finding]:
    """Compare shuffle buffers of undecoded samples, and batches ahead, with the memory of the machine."""
    if case.limits is None or not case.survey.looked_at:
        return
    samples = min(case.data.buffer, case.survey.samples)
    pixels = max((one[0] for one in case.survey.pixels), default=0)
    cost = memory.estimate(_image_side(case), pixels, buffer=samples * case.survey.sample_bytes)
    size = LoaderSize(case.data.workers, FETCHED_AHEAD, case.data.batch_size, case.command.ranks)
    names = {"workers": "--workers", "batch_size": "--batch-size"}
    yield from memory.judge_memory(cost, size, case.limits, names, are_flags=True)


def _image_side(case: Case) -> int:
    """Return the side of the model's image by the options, else by open_clip's description of the model."""
    forced = int(case.command.number("--force-image-size", default=0))
    name = (case.command.option("--model") or "").replace("/", "-")
    path = case.command.source(f"open_clip/model_configs/{name}.json")
    if forced or path is None:
        return memory.image_side(forced)
    described = json.loads(path.read_text(encoding="utf-8"))
    return memory.image_side(described.get("vision_cfg", {}).get("image_size"))
