"""How shards and samples are shared out among ranks and workers, against what the command says of them."""

from __future__ import annotations

from collections.abc import Iterator

from tasks.core.findings import Finding
from tasks.core.units import counted
from tasks.diagnosis.foreign.case import Case

UNEVEN = 1.5
"""Between the worker with the most samples and the one with the fewest, beyond which it is reported."""
COUNTS_DIFFER = 0.01


def judge_shares(case: Case) -> Iterator[Finding]:
    """Workers that get too little for a batch, and numbers that the shards do not bear out."""
    yield from _refused(case)
    yield from _starved(case)
    yield from _counts(case)
    yield from _warmup(case)


def _refused(case: Case) -> Iterator[Finding]:
    """What the trainer would end with before it reads a sample."""
    tars = len(case.survey.locations)
    refusal = case.answer.refusal if case.answer is not None else None
    if not case.data.is_resampled and tars < case.workers:
        each = max(tars // case.command.ranks, 1)
        yield Finding(
            code="shards.too_few",
            severity="error",
            remedy=f"take --workers {each} or --dataset-resampled, or pack the samples into more shards",
            where={"rule": refusal.place} if refusal is not None else {},
            evidence={
                "problem": f"{counted(tars, 'shard')} for {counted(case.workers, 'worker')} of "
                f"{counted(case.command.ranks, 'rank')}: some would get none"
            },
            flags={"--workers": each} if tars >= case.command.ranks else {"--dataset-resampled": True},
        )
    elif refusal is not None:
        option = case.data.samples_option
        yield Finding(
            code="count.mismatch",
            severity="error",
            remedy=f"give {option} {case.valid_samples}, or a sizes.json beside the first shard",
            where={"rule": refusal.place},
            evidence={"problem": f"the trainer ends at once: {refusal.text or refusal.kind}"},
            flags={option: case.valid_samples},
        )


def _starved(case: Case) -> Iterator[Finding]:
    """Workers that own fewer samples than a batch, and workers that own far more than others."""
    if case.answer is None or not case.answer.assigned or not case.valid_samples:
        return
    seen = case.survey.tars
    average = case.valid_samples / len(case.survey.locations)
    owned = {
        (rank, worker): sum(case.valid(seen[tar]) if tar in seen else average for tar in tars)
        for rank, its in enumerate(case.answer.assigned)
        for worker, tars in enumerate(its)
    }
    least, most = min(owned, key=lambda one: owned[one]), max(owned.values())
    poor = [one for one, samples in owned.items() if samples < case.data.batch_size]
    if poor:
        rank, worker = least
        fewer = max(int(case.valid_samples // (case.data.batch_size * case.command.ranks * 2)), 1)
        fewer = min(fewer, max(case.data.workers - 1, 0) or 1)
        yield Finding(
            code="worker.starved",
            severity="error",
            remedy=f"take --workers {fewer} or a smaller --batch-size, or more shards",
            where={"rank": rank, "worker": worker},
            evidence={
                "problem": f"{len(poor)} of {counted(len(owned), 'worker')} own fewer samples than a batch "
                f"of {case.data.batch_size:,}: they read for ever and yield nothing",
                "least": f"worker {worker} of rank {rank}: {owned[least]:,.0f} samples",
            },
            flags={"--workers": fewer},
        )
    elif most > UNEVEN * owned[least]:
        yield Finding(
            code="batches.uneven",
            severity="warning",
            remedy="pack the samples into shards of one size, a multiple of the workers in number",
            where={"rank": least[0], "worker": least[1]},
            evidence={
                "problem": f"a worker owns {owned[least]:,.0f} samples and another {most:,.0f}: each yields "
                "as many batches, so the samples of the first are seen more often"
            },
        )


def _counts(case: Case) -> Iterator[Finding]:
    stated = case.data.samples
    if stated is None or case.data.is_resampled or not case.survey.is_whole or not case.valid_samples:
        return
    if abs(stated - case.valid_samples) > COUNTS_DIFFER * case.valid_samples:
        option = case.data.samples_option
        yield Finding(
            code="count.mismatch",
            severity="warning",
            remedy=f"give {option} {case.valid_samples}",
            evidence={
                "problem": f"{option} says {stated:,} samples, the shards hold {case.valid_samples:,} that "
                "the trainer takes: an epoch is another than was meant"
            },
            flags={option: case.valid_samples},
        )


def _warmup(case: Case) -> Iterator[Finding]:
    steps, warmup, rate = case.steps, case.data.warmup_steps, case.data.learning_rate
    if steps is None or warmup < steps or not steps:
        return
    reached = f": the learning rate ends at {rate * steps / warmup:.1e}, never {rate:.0e}" if rate else ""
    shorter = max(steps // 10, 1)
    yield Finding(
        code="schedule.warmup",
        severity="warning",
        remedy=f"give --warmup {shorter}, a tenth of the steps",
        evidence={"problem": f"{warmup:,} warm-up steps of {steps:,}{reached.replace('e-0', 'e-')}"},
        flags={"--warmup": shorter},
    )
